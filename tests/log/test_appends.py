"""Appends of a worker: their order in Redis, and an outcome for each batch.

What the core decides by itself is tested in core/proto/tests; here it has a real Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
import redis as redis_py

from korvet.errors import (
    AppendUnknownError,
    ErrorCode,
    RecordsRefusedError,
    StorageUnavailableError,
)
from korvet.log.store import LogStore
from korvet.log.types import Appended
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.slots import slot_of
from tests.support import redis_servers
from tests.support.appends import config_of
from tests.support.batches import Record
from tests.support.domain import domain
from tests.support.log_bench import Bench, code_of
from tests.support.processes import wait_until
from tests.support.proxy import Proxy, turn, until
from tests.support.redis_cluster import RedisCluster


@contextmanager
def opened(url: str, timeout_ms: int = 60_000) -> Iterator[LogStore]:
    """Give the logs of another worker."""
    redis = Redis(url, timeout_ms=timeout_ms, connect_timeout_ms=5000)
    yield LogStore(redis, redis, Keys("korvet"))
    redis.close()


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def base(outcome: object) -> int:
    assert isinstance(outcome, Appended), outcome
    return outcome.base_offset


def append(logs: LogStore, *batches: Any) -> list[int]:
    return [base(outcome) for outcome in logs.append(batches)]


@pytest.mark.slow
@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_batches_follow_a_slot_that_has_moved_in_their_order(
    redis_cluster: RedisCluster, storage_format: Any
) -> None:
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    stream = Keys("korvet").stream("orders", 0)
    source = redis_cluster.node_of(stream)
    bench = Bench(redis, source.client, storage_format)
    first = bench.append(b"first")
    redis_cluster.move_slot(slot_of(stream), next(each for each in redis_cluster.nodes if each is not source))
    source.client.config_resetstat()

    def producer(number: int) -> list[int]:
        made = (
            bench.made(b"%d.%d" % (number, sequence), producer=number, epoch=0, sequence=sequence)
            for sequence in range(3)
        )
        return append(bench.logs, *made)

    one, two = (each.get() for each in [gevent.spawn(producer, number) for number in (1, 2)])
    assert source.client.info("errorstats")["errorstat_MOVED"]["count"]
    assert first < min(one + two)
    at = {offset: value for offset, value in bench.read_all() if value != b"first"}
    assert [at[offset] for offset in one] == [b"1.0", b"1.1", b"1.2"]
    assert [at[offset] for offset in two] == [b"2.0", b"2.1", b"2.2"]
    assert (one, two, len(at)) == (sorted(one), sorted(two), 6)
    redis.close()


@pytest.mark.parametrize("turns", range(4))
def test_appends_that_come_before_there_is_a_connection_keep_their_order(
    bench: Bench, redis_url: str, turns: int
) -> None:
    with opened(redis_url) as logs:
        begun = [gevent.spawn(append, logs, bench.made(value)) for value in values(3)]
        turn(turns)
        begun += [gevent.spawn(append, logs, bench.made(value)) for value in (b"3", b"4")]
        bases = [each.get() for each in begun]
    assert bases == sorted(bases)
    assert bench.values() == values(5)


@pytest.mark.parametrize("turns", range(4))
def test_appends_that_come_while_others_wait_for_the_connection_keep_their_order(
    bench: Bench, turns: int
) -> None:
    bench.append(b"first")
    bench.redis.reconnect("a test")  # the epoch stays known
    begun = [gevent.spawn(bench.append, value) for value in values(3)]
    turn(turns)
    begun += [gevent.spawn(bench.append, value) for value in (b"3", b"4")]
    gevent.joinall(begun, raise_error=True)
    assert bench.values() == [b"first", *values(5)]


def test_where_no_reply_comes_the_outcome_of_all_is_unknown(bench: Bench, network: Proxy) -> None:
    with opened(network.url) as logs:
        append(logs, bench.made(b"first"))
        network.cut_after_to_client = network.bytes_to_client
        outcomes = logs.append([bench.made(b"x", producer=7, epoch=0, sequence=0), bench.made(b"x")])
    assert [isinstance(each, AppendUnknownError) and each.idempotent for each in outcomes] == [True, False]


def test_if_who_waits_for_an_append_is_stopped_the_others_get_theirs(bench: Bench) -> None:
    bench.append(b"first")
    waiting = [gevent.spawn(bench.append, value) for value in values(3)]
    turn()  # all of them are sent
    waiting[0].kill()
    bases = [each.get() for each in waiting[1:]]
    assert bases == sorted(bases)
    assert bench.values() == [b"first", *values(3)]


def test_of_an_append_for_which_nobody_waits_any_more_nothing_is_kept(bench: Bench) -> None:
    bench.append(b"first")
    waiting = gevent.spawn(bench.append, b"second")
    turn()
    waiting.kill()
    until(lambda: bench.logs.appends.core.count == 0)
    assert bench.values() == [b"first", b"second"]


def test_a_missing_script_is_sent_again_for_all_in_order(bench: Bench) -> None:
    bench.append(b"first")
    bench.raw.script_flush()
    begun = [gevent.spawn(bench.append, value) for value in values(3)]
    bases = [each.get() for each in begun]
    assert bases == sorted(bases)
    assert bench.values() == [b"first", *values(3)]


def test_external_entries_are_settled_for_all(bench: Bench) -> None:
    bench.append(b"first")
    bench.external(2500 if bench.format == "batch" else 2100)
    bases = append(bench.logs, *(bench.made(value) for value in values(3)))
    assert len({*bases}) == 3
    assert {*bench.values()[-3:]} == {*values(3)}


def test_a_gap_stays_one_beside_a_log_that_cannot_be_read(bench: Bench) -> None:
    bench.append(b"first", producer=5, epoch=0, sequence=0)
    damaged = bench.at(1)
    bench.raw.delete(damaged.stream)
    bench.raw.set(damaged.stream, "no stream")
    outcomes = bench.logs.append([bench.made(b"x", partition=damaged)])
    outcomes += bench.logs.append([bench.made(b"x", producer=5, epoch=0, sequence=2)])
    codes = [code_of(each) for each in outcomes]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]


def test_a_refusal_names_the_records_that_are_wrong_and_still_does_without_its_frames(bench: Bench) -> None:
    config = config_of(cleanup_policy="compact")
    keyless = Record(b"v", None)
    [refused, taken] = bench.logs.append(
        [bench.made(b"a", keyless, config=config), bench.made(b"b", config=config)]
    )
    assert isinstance(refused, RecordsRefusedError)
    assert refused.code == ErrorCode.INVALID_RECORD
    bare = refused.without_frames()
    assert (bare.__traceback__, bare.__context__) == (None, None)
    assert [at for at, _ in bare.records] == [at for at, _ in refused.records] == [1]
    assert base(taken) >= 0
    assert bench.values() == [b"b"]


@pytest.mark.slow
def test_a_redis_that_is_busy_with_a_script_has_written_nothing_and_says_so() -> None:
    with (
        redis_servers.embedded_server("--busy-reply-threshold", "1") as url,
        domain(url) as here,
        redis_py.Redis.from_url(url) as stored,
        ThreadPoolExecutor(1) as other,
    ):
        bench = Bench(here.redis, stored, "dense", topic="others")
        bench.append(b"v", producer=5, epoch=0, sequence=0)
        running = other.submit(stored.eval, "while true do end", 0)
        second = bench.made(b"v", producer=5, epoch=0, sequence=1)
        with redis_py.Redis.from_url(url) as watcher:
            wait_until(lambda: _is_busy(watcher), "a script that blocks Redis")
            [refused] = bench.logs.append([second])
            watcher.script_kill()
            assert isinstance(running.exception(), redis_py.ResponseError)
            # Known to be not written: neither is the batch in the log, nor is its producer to find that out.
            assert type(refused) is StorageUnavailableError
            assert watcher.xlen(bench.partition.stream) == 1
        assert append(bench.logs, second) == [1]


def _is_busy(watcher: redis_py.Redis) -> bool:
    try:
        watcher.ping()
    except redis_py.ResponseError as error:
        return "BUSY" in str(error) or "busy" in str(error)
    return False


def test_a_fault_of_one_who_hears_of_appends_leaves_nobody_waiting(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("a fault")

    bench.logs.appends.on_noted = fail
    with gevent.Timeout(10):
        assert bench.append(b"a") < bench.append(b"b")
