"""Leader epochs: what a list of them says, and how a worker learns of another history of Redis, on real servers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.epochs import (
    Epochs,
    EpochStart,
    KnownEnds,
    LeaderEpochs,
    epoch_at,
    epoch_end,
    next_epoch_start,
    parse_epochs,
)
from korvet.log.store import LogStore
from korvet.log.types import Appended
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.slots import slot_of
from tests.support.commands import commands_of
from tests.support.log_bench import Bench
from tests.support.partition_state import change_log
from tests.support.proxy import proxy, until
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_cluster import redis_cluster as started_cluster
from tests.support.redis_servers import DurableServer, embedded_server
from tests.support.refusals import refusal

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
NOWHERE = Redis("unix:///nowhere.sock", timeout_ms=100, connect_timeout_ms=100)
Elsewhere = Callable[[], Bench]
LIST: Epochs = (EpochStart(3, 0), EpochStart(5, 10), EpochStart(9, 40))


def test_the_list_is_read_oldest_first() -> None:
    assert parse_epochs(b"9@40 5@10 3@0") == LIST
    assert parse_epochs(None) == ()
    for wrong in (b"garbage", b"1", b"x@1", b"1@"):
        with pytest.raises(ValueError, match="invalid literal"):
            parse_epochs(wrong)


def test_an_offset_has_the_epoch_that_began_last_before_it() -> None:
    assert [epoch_at(LIST, at) for at in (0, 9, 10, 39, 40, 99)] == [3, 3, 5, 5, 9, 9]
    assert (epoch_at((), 7), epoch_at(LIST[1:], 9)) == (0, 0)
    assert [next_epoch_start(LIST, at) for at in (0, 10, 40)] == [10, 40, math.inf]


@pytest.mark.parametrize(
    ("asked", "current", "end"),
    [
        (9, 9, (9, 50)),
        (9, 11, (9, 50)),  # nothing was written in 11: it begins at the end
        (11, 11, (11, 50)),
        (10, 11, (9, 50)),
        (12, 11, (-1, -1)),
        (-1, 11, (-1, -1)),
        (8, 9, (5, 40)),
        (5, 9, (5, 40)),
        (4, 9, (3, 10)),
        (3, 9, (3, 10)),
        (2, 9, (2, 0)),
        (-2, 9, (-2, 0)),
        # Another worker has begun 9, and this one has not noticed: consumers would start over after (-1, -1).
        (9, 5, (9, 50)),
        (8, 5, (5, 40)),
        (10, 5, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(asked: int, current: int, end: tuple[int, int]) -> None:
    assert epoch_end(LIST, asked, current, 0, 50) == end


def test_an_epoch_whose_records_are_all_deleted_ends_where_the_log_begins() -> None:
    assert [epoch_end(LIST, asked, 9, 25, 50) for asked in (-2, 3, 5)] == [(-2, 25), (3, 25), (5, 40)]


def test_without_a_list_every_epoch_but_a_later_one_ends_with_the_log() -> None:
    assert [epoch_end((), asked, 4, 0, 50) for asked in (4, 3, 5)] == [(4, 50), (3, 50), (-1, -1)]


@pytest.fixture
def server() -> Iterator[str]:
    with embedded_server() as url:
        yield url


@pytest.fixture(params=["record", "batch"])
def own(server: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Give a log on a server of its own."""
    redis = Redis(server, timeout_ms=5000, connect_timeout_ms=5000)
    with redis_py.Redis.from_url(server) as raw:
        yield Bench(redis, raw, request.param)
    redis.close()


def begin_history(raw: Any) -> None:
    """Make the server a replica for a moment, and a master of another history, with all connections alive."""
    raw.execute_command("REPLICAOF", "127.0.0.1", "1")
    raw.execute_command("REPLICAOF", "NO", "ONE")


def another_worker(url: str, bench: Bench) -> Bench:
    """Return the log as a worker sees it that has connected later."""
    made = Bench.__new__(Bench)
    made.__dict__ |= bench.__dict__
    made.redis = Redis(url, timeout_ms=5000, connect_timeout_ms=5000)
    made.logs = type(bench.logs)(made.redis, made.redis, KEYS)
    return made


@pytest.fixture
def elsewhere(own: Bench, server: str) -> Iterator[Elsewhere]:
    """Give what begins another history, and returns the log as a worker sees it that has connected later."""
    made: list[Bench] = []

    def connected() -> Bench:
        begin_history(own.raw)
        made.append(another_worker(server, own))
        return made[-1]

    yield connected
    for file in made:
        file.redis.close()


def test_workers_with_one_history_have_one_epoch_and_ask_once(own: Bench, server: str) -> None:
    epoch = own.epoch
    other = another_worker(server, own)
    assert other.epoch == epoch > 0
    with commands_of(own.raw) as ran:
        for _ in range(10):
            own.append(b"a")
            own.read(0)
            own.bounds()
    assert ran["info"] == 1  # that counts; a script would look at INFO for the epoch
    other.redis.close()


def test_a_worker_that_did_not_notice_appends_in_the_epoch_that_another_one_has_begun(
    own: Bench, elsewhere: Elsewhere
) -> None:
    own.append(b"a")
    first = own.epoch
    other = elsewhere()
    end = own.bounds().high_watermark
    other.append(b"b")
    assert other.epoch > first == own.epoch
    own.append(b"c")
    assert own.epoch == other.epoch
    assert own.values() == [b"a", b"b", b"c"]
    [fetched] = own.logs.bounds([own.partition])
    assert not isinstance(fetched, KafkaError)
    assert fetched.epochs == ((first, 0), (other.epoch, end))


def set_epoch(bench: Bench, epoch: int) -> None:
    """Have the whole log be of a leader epoch."""
    bench.raw.hset(bench.partition.state, "epochs", f"{epoch}@0")
    change_log(bench.raw, bench.partition.state, epoch=epoch)


def test_a_log_of_a_later_epoch_than_its_node_makes_the_node_begin_a_later_one(own: Bench) -> None:
    """It has come from another node of a cluster: nothing was lost, and readers know its epoch."""
    own.append(b"a")
    later = own.epoch + 1000
    set_epoch(own, later)
    [outcome] = own.logs.append([own.made(b"b")])
    assert isinstance(outcome, Appended)
    assert own.epoch == later + 1
    first, before = parse_epochs(own.raw.hget(own.partition.state, "epochs"))[::-1]
    assert (first.epoch, before) == (later + 1, EpochStart(later, 0))
    assert before.start < first.start <= outcome.base_offset
    assert own.values() == [b"a", b"b"]


def test_a_read_of_a_log_of_a_later_epoch_makes_its_node_begin_a_later_one(own: Bench) -> None:
    own.append(b"a")
    later = own.epoch + 1000
    set_epoch(own, later)
    assert own.logs.check_epoch(own.partition, -1, parse_epochs(f"{later}@0".encode())) == later + 1
    assert refusal(own.logs.check_epoch, own.partition, later) == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("has_moved", [True, False])
def test_workers_learn_of_another_history_while_the_first_slot_of_a_node_moves(*, has_moved: bool) -> None:
    with started_cluster(masters=2) as cluster:
        source, to = cluster.nodes
        workers = [Redis(cluster.url, timeout_ms=5000, connect_timeout_ms=5000) for _ in range(2)]
        known = [LeaderEpochs(worker, KEYS) for worker in workers]
        for redis, epochs in zip(workers, known, strict=True):
            epochs.refresh_all(redis)
        nodes = [worker.node_named(source.address) for worker in workers]
        first = known[0].known(nodes[0])
        cluster.begin_move(0, to)
        cluster.move_keys(source, to, source.call("CLUSTER", "GETKEYSINSLOT", 0, 10))
        if has_moved:
            cluster.end_move(0, source, to)
        source.call("DEBUG", "CHANGE-REPL-ID")
        for redis, epochs in zip(workers, known, strict=True):
            epochs.refresh_all(redis)
        [one, other] = [epochs.known(node) for epochs, node in zip(known, nodes, strict=True)]
        assert one == other > first > 0
        for worker in workers:
            worker.close()


def test_a_client_that_knows_the_epoch_of_the_node_before_learns_a_later_one(
    redis_cluster: RedisCluster,
) -> None:
    """Nothing was written in that epoch, so the log does not say it."""
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    log = LogStore(redis, redis, KEYS)
    partition = log.partition("orders", 0, "an id", 8)
    before = redis.node_of(partition.stream)
    later = log.epochs.refresh(before, log.epochs.of(before) + 1000)
    assert log.check_epoch(partition, later) == later
    to = next(node for node in redis_cluster.nodes if node.address != before.name)
    redis_cluster.move_slot(slot_of(partition.stream), to)
    assert redis.call("EXISTS", partition.state) == 0
    assert 0 < log.check_epoch(partition, -1) < later
    assert refusal(log.check_epoch, partition, later) == ErrorCode.FENCED_LEADER_EPOCH
    assert log.check_epoch(partition, later + 1) == later + 1
    assert refusal(log.check_epoch, partition, later + 2) == ErrorCode.UNKNOWN_LEADER_EPOCH
    redis.close()


def test_each_partition_has_the_epoch_of_its_node_and_one_request_has_one_answer(
    redis_cluster: RedisCluster,
) -> None:
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    log = LogStore(redis, redis, KEYS)
    partitions = [log.partition("orders", index, "an id", 8) for index in range(12)]
    request = log.epochs.now()
    before = request.of(partitions)
    node = redis.node_of(partitions[0].stream)
    later = log.epochs.refresh(node, log.epochs.of(node) + 1000)
    expected = [
        later if redis.node_of(item.stream) is node else epoch
        for item, epoch in zip(partitions, before, strict=True)
    ]
    assert log.epochs.now().of(partitions) == tuple(expected)
    assert set(expected) & set(before)
    assert request.of(partitions) == before
    redis.close()


def test_a_worker_that_never_knew_the_node_before_has_a_later_epoch_begun_as_well() -> None:
    with started_cluster(masters=2) as cluster:
        redis = Redis(cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
        log = LogStore(redis, redis, KEYS)
        partition = log.partition("orders", 0, "an id", 8)
        # The node has lived for long, the one that had the log and has left the cluster for less.
        node = redis.node_of(partition.stream)
        own = {"history": node.connect(), "epoch": 1000}
        cluster.node_of(partition.stream).client.hset(KEYS.epoch_of(redis.tag_of(node.name)), mapping=own)
        assert log.check_epoch(partition, -1) == 1000
        former = 2000
        assert refusal(log.check_epoch, partition, former) == ErrorCode.FENCED_LEADER_EPOCH
        current = log.check_epoch(partition, -1)
        assert current > former
        # One that a client makes up, and may repeat: the next is not believed so soon.
        assert refusal(log.check_epoch, partition, current + 10) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert log.check_epoch(partition, -1) == current
        assert refusal(log.check_epoch, partition, current + 1000) == ErrorCode.UNKNOWN_LEADER_EPOCH
        redis.close()


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_an_append_never_reaches_another_history_with_the_epoch_of_the_one_before(
    storage_format: Any,
) -> None:
    with DurableServer() as durable, redis_py.Redis.from_url(durable.url) as raw:
        redis = Redis(durable.url, timeout_ms=5000, connect_timeout_ms=5000)
        bench = Bench(redis, raw, storage_format)
        bench.append(b"a")
        first, end = bench.epoch, bench.bounds().high_watermark
        durable.crash()
        until(lambda: _appends(bench))
        [bounds] = bench.logs.bounds([bench.partition])
        assert not isinstance(bounds, KafkaError)
        assert bounds.epochs == ((first, 0), (bench.epoch, end))
        assert bench.epoch > first
        redis.close()


def test_a_connection_to_the_master_that_was_replaced_is_closed() -> None:
    with embedded_server() as old, embedded_server() as new, proxy(old) as name:
        appends, reads = (Redis(name.url, timeout_ms=5000, connect_timeout_ms=5000) for _ in range(2))
        with redis_py.Redis.from_url(new) as raw_new, redis_py.Redis.from_url(old) as raw_old:
            bench = Bench(appends, raw_old, "batch")
            Bench(Redis(new, timeout_ms=5000, connect_timeout_ms=5000), raw_new, "batch")
            logs = type(bench.logs)(appends, reads, KEYS)
            first = logs.epochs.of(appends.nodes()[0])
            # The name leads to another master. What reads connects again; what appends has noticed nothing.
            name.lead_to(new)
            reads.reconnect("for the test")
            assert logs.epochs.of(reads.nodes()[0]) == logs.epochs.of(appends.nodes()[0]) > first
            histories = {item.nodes()[0].history for item in (appends, reads)}
            assert histories == {raw_new.info("replication")["master_replid"]}
            [outcome] = logs.append([bench.made(b"here")])
            assert isinstance(outcome, Appended)
            assert raw_new.xlen(bench.partition.stream) == 1
        for item in (appends, reads):
            item.close()


def test_the_check_of_a_clients_epoch(own: Bench, server: str) -> None:
    current = own.logs.check_epoch(own.partition, -1)
    assert own.logs.check_epoch(own.partition, current) == current
    for epoch, code in (
        (current - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
        (current + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        assert refusal(own.logs.check_epoch, own.partition, epoch) == code


def test_a_client_that_knows_a_later_epoch_makes_a_worker_ask_for_it(
    own: Bench, elsewhere: Elsewhere
) -> None:
    first = own.epoch
    other = elsewhere()
    assert own.logs.check_epoch(own.partition, other.epoch) == other.epoch > first


def test_a_redis_that_takes_no_writes_is_not_asked_for_each_partition_of_a_fetch(
    own: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.log.epochs._REFRESH_S_MIN", 600.0)
    own.append(b"a")
    own.raw.config_set("min-replicas-to-write", 1)
    begin_history(own.raw)
    own.redis.reconnect("for the test")
    own.node.connect()
    own.raw.config_resetstat()
    for _ in range(10):
        with pytest.raises(StorageUnavailableError, match="NOREPLICAS"):
            own.logs.check_epoch(own.partition, -1)
    assert own.raw.info("errorstats")["errorstat_NOREPLICAS"]["count"] == 1
    own.raw.config_set("min-replicas-to-write", 0)
    monkeypatch.setattr("korvet.log.epochs._REFRESH_S_MIN", 0.0)
    until(lambda: _is_known(own))


@pytest.mark.parametrize("key", [("hset", "epoch", "many"), ("set", "no hash")])
def test_an_epoch_that_cannot_be_read_is_not_asked_for_for_each_partition_of_a_fetch(
    own: Bench, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr("korvet.log.epochs._REFRESH_S_MIN", 600.0)
    own.append(b"a")
    begin_history(own.raw)
    own.redis.reconnect("for the test")
    own.node.connect()
    own.raw.delete(KEYS.epoch)
    command, *args = key
    own.raw.execute_command(command, KEYS.epoch, *args)
    with commands_of(own.raw) as ran:
        for _ in range(10):
            with pytest.raises(StorageUnavailableError, match="gives no leader epoch"):
                own.logs.check_epoch(own.partition, -1)
    assert ran["evalsha"] == 1
    assert own.logs.epochs.current(own.partition.stream) > 0
    own.raw.delete(KEYS.epoch)
    monkeypatch.setattr("korvet.log.epochs._REFRESH_S_MIN", 0.0)
    until(lambda: _is_known(own))


def test_external_entries_are_taken_in_over_a_connection_to_another_history(own: Bench) -> None:
    own.append(b"a")
    own.raw.xadd(own.partition.stream, {"value": "external"})
    begin_history(own.raw)
    own.redis.reconnect("for the test")
    own.logs.external.step(own.partition)
    assert own.values()[1:] == ([b"external"] if own.format == "record" else [])


def _is_known(bench: Bench) -> bool:
    with contextlib.suppress(StorageUnavailableError):
        return bench.logs.check_epoch(bench.partition, -1) > 0
    return False


def test_metadata_has_the_last_epoch_while_redis_is_away() -> None:
    with DurableServer() as durable, redis_py.Redis.from_url(durable.url) as raw:
        redis = Redis(durable.url, timeout_ms=5000, connect_timeout_ms=5000)
        bench = Bench(redis, raw, "batch")
        assert bench.logs.epochs.current(bench.partition.stream) > 0
        epoch = bench.epoch
        durable.kill()
        with pytest.raises(StorageUnavailableError):
            redis.call("PING")
        assert bench.logs.epochs.current(bench.partition.stream) == epoch
        redis.close()
    never = Redis("unix:///nowhere.sock", timeout_ms=100, connect_timeout_ms=100)
    assert type(bench.logs)(never, never, KEYS).epochs.current(bench.partition.stream) == -1


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_worker_reports_once_that_redis_has_lost_records(
    storage_format: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[None] = []
    with DurableServer() as durable, redis_py.Redis.from_url(durable.url) as raw:
        redis = Redis(durable.url, timeout_ms=5000, connect_timeout_ms=5000)
        bench = Bench(redis, raw, storage_format)
        bench.logs = LogStore(redis, redis, KEYS, on_lost=lambda: lost.append(None))
        bench.append(b"kept")
        cut = bench.bounds().high_watermark
        copy = durable.copy()
        bench.append(b"lost", b"lost too")
        end = bench.bounds().high_watermark
        durable.go_back(copy)
        # Another worker writes before this one looks: only the epochs show the loss, and where.
        other = another_worker(durable.url, bench)
        other.append(b"1", b"2", b"3")
        with contextlib.suppress(StorageUnavailableError):
            redis.call("PING")
        until(lambda: _appends(bench))
        assert not lost  # an append alone does not say where the log was cut
        bench.bounds()
        bench.read(0)
        [line] = [record for record in caplog.records if "Redis has lost records" in record.getMessage()]
        assert line.levelname == "ERROR"
        text = str(vars(line))
        assert all(part in text for part in ("orders:0", str(cut), str(end)))
        assert lost == [None]
        other.redis.close()
        redis.close()


def _appends(bench: Bench) -> bool:
    [outcome] = bench.logs.append([bench.made(b"4")])
    return isinstance(outcome, Appended)


def test_an_older_answer_of_the_same_history_is_no_loss() -> None:
    lost: list[None] = []
    log = LogStore(NOWHERE, NOWHERE, KEYS)
    ends = KnownEnds(log.appends.core, lambda: lost.append(None))
    here = log.partition("orders", 0, "id", 10, "batch")
    again = log.partition("orders", 0, "another", 10, "batch")
    ends.note(here, 5, 100, ())
    ends.note(here, 5, 90, (EpochStart(5, 0),))
    ends.note(again, 6, 0, ())  # another topic of that name
    ends.note(here, 6, 100, (EpochStart(5, 0),))
    assert not lost
    ends.note(here, 7, 130, (EpochStart(5, 0), EpochStart(7, 99)))
    assert lost == [None]


@pytest.mark.parametrize("sees", ["a read", "bounds", "a duplicate"])
def test_what_another_worker_wrote_in_an_epoch_that_this_one_does_not_know_is_no_loss(
    own: Bench, elsewhere: Elsewhere, sees: str
) -> None:
    lost: list[None] = []
    own.logs = LogStore(own.redis, own.redis, KEYS, on_lost=lambda: lost.append(None))
    own.append(b"a")
    first = own.epoch
    other = elsewhere()
    written = own.made(b"b", producer=7, epoch=0, sequence=0)
    other.logs.append([written])
    if sees == "a read":
        own.read(0)
    elif sees == "bounds":
        own.bounds()
    else:
        [again] = own.logs.append([written])
        assert isinstance(again, Appended)
        assert again.duplicate
        first = min(first, own.epoch - 1)  # the append was refused, and has learned it
    assert own.epoch in (first, other.epoch)
    own.append(b"c")
    assert own.epoch == other.epoch > first
    own.bounds()
    assert not lost
