"""How a worker finds out what replicas have of the logs that it reads, against a real master with real replicas."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import gevent
import msgspec
import pytest
from korvet_core import Fetched

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.log import high_watermark, replication
from korvet.log.high_watermark import HighWatermarks
from korvet.log.offsets import OffsetFound, OffsetQuery
from korvet.log.replication import Replicas
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Read
from korvet.protocol.types import SpecialTimestamp
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.slots import tag_of
from korvet.topics.registry import TopicSpec
from korvet.topics.types import Partition
from tests.support import redis_servers
from tests.support.batches import values
from tests.support.commands import commands_of
from tests.support.domain import Domain, domain
from tests.support.fetching import FetchResult
from tests.support.processes import wait_until
from tests.support.proxy import until
from tests.support.redis_cluster import ClusterNode, redis_cluster
from tests.support.transactions import TransactionalProducer, consumed

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")


class Setup(NamedTuple):
    """A worker on a master with one replica; `raw` is a client of the master, `following` one of the replica."""

    worker: Domain
    raw: Any
    following: Any

    def fetch(self, topic: str = "orders", offset: int = 0) -> FetchResult:
        """Fetch without waiting for more."""
        [result] = self.worker.fetch(self.worker.wanted(topic, offset=offset))
        assert result.error is ErrorCode.NONE
        return result

    def shown(self, topic: str = "orders", offset: int = 0) -> list[bytes | None]:
        return values(b"".join(self.fetch(topic, offset).chunks))

    @contextlib.contextmanager
    def replica_cut_off(self) -> Iterator[None]:
        """Let the replica lose its master; it follows it again in the end."""
        host = self.following.info("replication")
        self.following.execute_command("REPLICAOF", "127.0.0.1", "1")
        wait_until(lambda: not self.raw.info("replication")["connected_slaves"], "it is gone")
        yield
        self.following.execute_command("REPLICAOF", host["master_host"], host["master_port"])
        wait_until(lambda: self.following.info("replication")["master_link_status"] == "up", "it follows")

    @contextlib.contextmanager
    def replica_hangs(self) -> Iterator[None]:
        """Stop the replica, which counts as in sync all the while."""
        pid = self.following.info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(params=["record", "batch"])
def setup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    monkeypatch.setattr(replication, "INSYNC_AGE_S", 0.0)
    with (
        redis_servers.master() as master,
        master.replica() as following,
        domain(master.url, Settings(replicas=1)) as worker,
    ):
        made = Setup(worker, master.client, following)
        worker.topics.create(TopicSpec(name="orders", configs={"storage.format": request.param}))
        worker.append("orders", b"one")
        wait_until(lambda: made.shown() == [b"one"], "it is shown")
        yield made


@pytest.fixture
def there(setup: Setup) -> Iterator[TransactionalProducer]:
    """Give a producer whose markers wait for no replicas."""
    with domain(setup.worker.url) as view:
        yield TransactionalProducer(view)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read, and a WAIT, be so long that the replica has answered by then, on a machine however busy."""
    monkeypatch.setattr(high_watermark, "WAIT_SECONDS", 30.0)
    monkeypatch.setattr(replication, "COMMAND_MS_MAX", 30_000)


@pytest.mark.usefixtures("patient")
def test_only_a_read_past_what_is_known_asks_the_replicas(setup: Setup) -> None:
    with commands_of(setup.raw) as ran:
        assert setup.shown() == setup.shown() == [b"one"]
    assert not ran["wait"]
    setup.worker.append("orders", b"two")
    with commands_of(setup.raw) as ran:
        assert setup.shown() == setup.shown() == [b"one", b"two"]
    assert ran["wait"] == 1


def test_logs_whose_topics_want_no_replicas_ask_nobody(setup: Setup) -> None:
    with commands_of(setup.raw) as ran, domain(setup.worker.url) as worker:
        worker.append("orders", b"two")
        [result] = worker.fetch(worker.wanted("orders"))
        assert values(b"".join(result.chunks)) == [b"one", b"two"]
    assert not ran["wait"]


@pytest.mark.usefixtures("patient")
def test_a_log_that_wants_more_replicas_than_there_are_holds_up_no_other(setup: Setup) -> None:
    view = setup.worker
    view.topics.create(TopicSpec(name="dear", configs={"min.insync.replicas": "3"}))
    view.append("dear", b"dear")
    view.append("orders", b"two")
    dear, orders = view.fetch(view.wanted("dear"), view.wanted("orders"))
    assert values(b"".join(orders.chunks)) == [b"one", b"two"]
    assert (dear.error, dear.chunks, dear.high_watermark) == (ErrorCode.NONE, [], dear.log_start)


@pytest.mark.usefixtures("patient")
def test_what_was_read_of_a_former_history_is_not_shown(setup: Setup) -> None:
    view = setup.worker
    watermarks = view.log.watermarks
    partition = view.topics.get("orders").partition(0)
    view.append("orders", b"two")
    histories = watermarks.begin([partition])
    [read] = view.log.read([Read(partition, 0, 100)])
    setup.raw.execute_command("DEBUG", "CHANGE-REPL-ID")  # as if it had been a replica in between
    [limited] = watermarks.limit(histories, [partition], [read])
    assert isinstance(limited, Fetched)
    assert limited.high_watermark < limited.end_offset
    assert setup.shown() == [b"one", b"two"]


@pytest.mark.usefixtures("patient")
def test_what_was_held_of_a_former_history_is_forgotten(setup: Setup) -> None:
    with commands_of(setup.raw) as ran:
        assert setup.shown() == [b"one"]
        setup.raw.execute_command("DEBUG", "CHANGE-REPL-ID")
        setup.worker.redis.reconnect("lost")
        assert setup.shown() == [b"one"]
    assert ran["wait"] == 1


def test_a_consumer_far_behind_learns_of_a_later_end_without_waiting(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(high_watermark, "AGE_SECONDS", 0.0)
    view = setup.worker
    first = setup.fetch().high_watermark
    view.append("orders", b"two")
    [result] = view.fetch(view.wanted("orders", bytes_max=1))
    assert values(b"".join(result.chunks)) == [b"one"]

    def moved() -> bool:
        [later] = view.fetch(view.wanted("orders", bytes_max=1))
        return later.high_watermark > first

    until(moved)


def test_bounds_are_those_of_consumers(setup: Setup) -> None:
    view = setup.worker
    partition = view.topics.get("orders").partition(0)
    with setup.replica_cut_off():
        end = setup.fetch().high_watermark
        view.append("orders", b"two")
        [visible], [all_of_it] = view.log.visible_bounds([partition]), view.log.bounds([partition])
        assert isinstance(visible, Bounds)
        assert isinstance(all_of_it, Bounds)
        assert visible == all_of_it._replace(high_watermark=end)
        assert visible != all_of_it
        assert setup.shown() == [b"one"]
    wait_until(lambda: setup.shown() == [b"one", b"two"], "it is shown")
    assert view.log.visible_bounds([partition]) == view.log.bounds([partition])


def test_the_end_of_a_log_is_known_at_once_after_a_failover(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is final for those who ask: some clients raise an error if it is not known."""
    monkeypatch.setattr(replication, "INSYNC_AGE_S", 60.0)
    with domain(setup.worker.url, Settings(replicas=1)) as view:
        partition = view.topics.get("orders").partition(0)
        with setup.replica_cut_off():
            with commands_of(setup.raw) as ran:
                [result] = view.log.visible_bounds([partition])
            assert isinstance(result, Bounds)
            assert result.high_watermark == -1
            assert ran["hmget"] == 1
        setup.raw.execute_command("DEBUG", "CHANGE-REPL-ID")
        assert view.log.visible_bounds([partition]) == view.log.bounds([partition])


def test_where_a_log_begins_asks_no_replicas(setup: Setup) -> None:
    view = setup.worker
    partition = view.topics.get("orders").partition(0)
    with setup.replica_cut_off():
        view.append("orders", b"two")
        earliest = [
            OffsetQuery(partition, SpecialTimestamp.EARLIEST),
            OffsetQuery(partition, SpecialTimestamp.EARLIEST_LOCAL),
        ]
        with commands_of(setup.raw) as ran:
            [first, same] = view.offsets.find(earliest)
        assert ran["info"] == 1  # that counts
        assert view.offsets.find([*earliest, OffsetQuery(partition, SpecialTimestamp.LATEST)])[:2] == [
            first,
            same,
        ]
        assert (
            first
            == same
            == OffsetFound(setup.fetch().log_start, leader_epoch=view.log.epochs.current(partition.stream))
        )


def test_a_fetch_that_waits_shows_what_replicas_have_later(setup: Setup) -> None:
    """The append has woken it already, and nothing else is announced."""
    view = setup.worker
    position = setup.fetch().high_watermark
    with setup.replica_cut_off():
        waiting = view.begin_fetch(view.wanted("orders", offset=position))
        core = view.log.appends.core
        core.take_fetch_noted()
        view.append("orders", b"two")
        until(lambda: core.take_fetch_noted()[2])  # it was woken and has read, and waits on
        assert not waiting.dead
    [result] = waiting.get(timeout=60)
    assert values(b"".join(result.chunks)) == [b"two"]


def test_a_replica_that_hangs_is_waited_for_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch reads in many pieces, and each would wait."""
    waits: list[float] = []

    def wait(rounds: list[Any], seconds: float) -> None:
        waits.append(seconds)
        gevent.wait(rounds, seconds)

    monkeypatch.setattr(Replicas, "wait", lambda _, rounds, seconds: wait(rounds, seconds))
    monkeypatch.setattr(high_watermark, "AGE_SECONDS", 600.0)
    view = setup.worker
    partition = view.topics.get("orders").partition(0)
    with setup.replica_hangs():
        view.append("orders", b"two")
        assert setup.shown() == setup.shown() == [b"one"]
        assert len(waits) == 1
        view.log.visible_bounds([partition])
        assert len(waits) == 1
        with monkeypatch.context() as later:
            later.setattr(high_watermark, "AGE_SECONDS", 0.0)
            assert setup.shown() == [b"one"]
        assert len(waits) == 2
    wait_until(lambda: setup.shown() == [b"one", b"two"], "it is shown")
    view.append("orders", b"three")
    assert setup.shown() == [b"one", b"two", b"three"]


def test_nodes_that_are_masters_no_more_are_forgotten() -> None:
    with redis_cluster(masters=3) as cluster:
        clients = [Redis(cluster.url, timeout_ms=5000, connect_timeout_ms=5000) for _ in range(2)]
        reads, waits = clients
        replicas = Replicas(lambda: waits, reads, KEYS, replicas=1, timeout_ms=5000)
        watermarks = HighWatermarks(reads, replicas)
        log = LogStore(reads, reads, KEYS)
        logs = [log.partition("orders", index, "id", 8) for index in range(50)]
        gone, to, other = cluster.nodes

        def of(node: ClusterNode) -> Partition:
            return next(item for item in logs if cluster.node_of(item.stream) is node)

        watermarks.begin([of(gone), of(to)])
        slots = [*next(iter(gone.known()[gone.id]))]
        for node in cluster.nodes:
            node.call("CLUSTER", "DELSLOTSRANGE", *slots)
        to.call("CLUSTER", "ADDSLOTSRANGE", *slots)
        wait_until(lambda: all(item.known() == to.known() for item in cluster.nodes), "the slots are moved")
        left = KEYS.epoch_of(tag_of(slots[0]))
        until(lambda: not reads.call("GET", left) and len(reads.known_nodes()) == 1)
        watermarks.begin([of(other)])
        assert {node.name for node in watermarks._nodes} == {to.address, other.address}
        for client in clients:
            client.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_open_as_long_as_replicas_lack_its_end(
    setup: Setup, there: TransactionalProducer, *, commit: bool
) -> None:
    """A failover could lose the marker, and the transaction end in another way."""
    view, producer = setup.worker, there
    partition = view.topics.get("orders").partition(0)
    wanted = msgspec.structs.replace(view.wanted("orders"), committed=True)
    opened = producer.write(b"two")
    view.append("orders", b"three")
    assert setup.shown() == [b"one", b"two", b"three"]

    def stable() -> int:
        [bounds] = view.log.visible_bounds([partition])
        assert isinstance(bounds, Bounds)
        return bounds.stable_offset

    with setup.replica_cut_off():
        if commit:
            producer.commit()
        else:
            producer.abort()
        [result] = view.fetch(wanted)
        assert values(b"".join(result.chunks)) == [b"one"]
        assert result.last_stable_offset == stable() <= opened
        [result] = view.fetch(msgspec.structs.replace(wanted, offset=result.last_stable_offset, bytes_max=1))
        assert result.chunks == []
        assert setup.shown() == [b"one", b"two", b"three"]
    wait_until(lambda: setup.shown()[3:] != [], "the marker is shown")
    [result] = view.fetch(wanted)
    assert result.last_stable_offset == result.high_watermark == stable()
    data, aborted = b"".join(result.chunks), result.aborted or ()
    assert len(aborted) == int(not commit)
    two = [b"two"] if commit else []
    assert consumed(data, 0, aborted, committed=True).values == [b"one", *two, b"three"]


@pytest.mark.usefixtures("patient")
def test_a_small_read_below_the_high_watermark_waits_for_the_end_of_its_transaction(setup: Setup) -> None:
    view = setup.worker
    producer = TransactionalProducer(view)
    offset = producer.write(b"two")
    for _ in range(3):
        view.append("orders", b"x" * 1000)
    assert len(setup.shown()) == 5
    producer.commit()
    wanted = view.wanted("orders", offset=offset, bytes_max=1)
    [result] = view.fetch(msgspec.structs.replace(wanted, committed=True))
    assert values(b"".join(result.chunks)) == [b"two"]
