"""Group commit: what goes to Redis together, and that each append keeps its own result and its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from korvet.errors import AppendUnknownError, ErrorCode
from korvet.log import group_commit
from korvet.log.store import LogStore
from korvet.log.types import Appended
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.observer import Observer
from korvet.redis.slots import slot_of
from tests.support.commands import commands_of
from tests.support.log_bench import Bench, code_of
from tests.support.processes import wait_until
from tests.support.proxy import Proxy, turn
from tests.support.redis_cluster import RedisCluster


@contextmanager
def calls(bench: Bench, expected: int) -> Iterator[None]:
    """Expect this number of calls of scripts."""
    with commands_of(bench.raw) as ran:
        yield
    assert ran["evalsha"] == expected


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def base(outcome: object) -> int:
    assert isinstance(outcome, Appended), outcome
    return outcome.base_offset


def test_appends_of_one_turn_are_one_call_for_each_partition(bench: Bench) -> None:
    first = bench.append(b"first")
    with calls(bench, 2):
        begun = [bench.logs.begin_append([bench.made(value)]) for value in values(10)]
        other = bench.logs.begin_append([bench.made(b"other", partition=bench.at(1))])
        assert all(each.in_order and not each.ready for each in begun)
        outcomes = [each.result()[0] for each in begun]
        base(other.result()[0])
    bases = [base(each) for each in outcomes]
    assert bases == list(range(bases[0], bases[0] + 10))
    assert bases[0] > first
    assert bench.values() == [b"first", *values(10)]


def test_what_arrives_in_the_next_turn_is_a_call_of_its_own(bench: Bench) -> None:
    bench.append(b"first")
    with calls(bench, 2):
        one = bench.logs.begin_append([bench.made(b"a")])
        turn()
        two = bench.logs.begin_append([bench.made(b"b")])
        outcomes = [each.result()[0] for each in (one, two)]
    assert base(outcomes[0]) < base(outcomes[1])


@pytest.mark.slow
@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_appends_of_two_connections_follow_a_slot_that_moves_before_their_turn_ends(
    redis_cluster: RedisCluster, storage_format: Any
) -> None:
    redis = Redis(redis_cluster.url, timeout_ms=5000, connect_timeout_ms=5000)
    stream = Keys("korvet").stream("orders", 0)
    source = redis_cluster.node_of(stream)
    bench = Bench(redis, source.client, storage_format)
    first = bench.append(b"first")
    begun = {
        (number, producer): bench.logs.begin_append(
            [bench.made(b"%d.%d" % (producer, number), producer=producer, epoch=0, sequence=number)]
        )
        for number in range(3)
        for producer in (1, 2)
    }
    redis_cluster.move_slot(slot_of(stream), next(each for each in redis_cluster.nodes if each is not source))
    source.client.config_resetstat()

    def connection(producer: int) -> list[int]:
        return [base(begun[number, producer].result()[0]) for number in range(3)]

    running = [gevent.spawn(connection, producer) for producer in (2, 1)]
    two, one = (each.get() for each in running)
    assert source.client.info("errorstats")["errorstat_MOVED"]["count"]
    assert first < min(one + two)
    at = {offset: value for offset, value in bench.read_all() if value != b"first"}
    assert [at[offset] for offset in one] == [b"1.0", b"1.1", b"1.2"]
    assert [at[offset] for offset in two] == [b"2.0", b"2.1", b"2.2"]
    assert (one, two, len(at)) == (sorted(one), sorted(two), 6)
    redis.close()


def test_a_call_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append(b"first")
    monkeypatch.setattr(group_commit, "CALL_BATCHES_MAX", 4)
    with calls(bench, 3):
        outcomes = [bench.logs.begin_append([bench.made(value)]) for value in values(10)]
        bases = [base(each.result()[0]) for each in outcomes]
    assert bases == sorted(bases)
    assert bench.values() == [b"first", *values(10)]


def test_a_call_holds_no_more_bytes_than_one_large_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.append(b"first")
    monkeypatch.setattr(group_commit, "CALL_BYTES_MAX", 3000)
    large = os.urandom(1200)
    with calls(bench, 2):
        begun = [bench.logs.begin_append([bench.made(value)]) for value in (large, large, large, b"small")]
        bases = [base(each.result()[0]) for each in begun]
    assert bases == sorted(bases)


def test_a_call_holds_no_more_entries_than_some_milliseconds_worth(record_bench: Bench) -> None:
    bench = record_bench
    bench.append(b"first")
    with calls(bench, 2):
        begun = [bench.logs.begin_append([bench.made(*values(1500))]) for _ in range(2)]
        assert base(begun[0].result()[0]) < base(begun[1].result()[0])


def test_what_is_large_is_sent_before_the_turn_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append(b"first")
    length = bench.raw.xlen(bench.partition.stream)
    monkeypatch.setattr(group_commit, "GROUP_BYTES", 1000)
    begun = bench.logs.begin_append([bench.made(os.urandom(1200))])
    # Nothing here gives the loop a turn.
    wait_until(lambda: bench.raw.xlen(bench.partition.stream) > length, "the batch is in Redis")
    base(begun.result()[0])


@pytest.mark.parametrize("turns", range(4))
def test_appends_that_come_before_there_is_a_connection_keep_their_order(
    bench: Bench, redis_url: str, turns: int
) -> None:
    redis = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000)
    logs = LogStore(redis, redis, Keys("korvet"))
    begun = [logs.begin_append([bench.made(value)]) for value in values(3)]
    turn(turns)  # after two the greenlet that sends them waits for the connection
    begun += [logs.begin_append([bench.made(value)]) for value in (b"3", b"4")]
    bases = [base(each.result()[0]) for each in begun]
    assert bases == sorted(bases)
    assert bench.values() == values(5)
    redis.close()


@pytest.mark.parametrize("turns", range(4))
def test_appends_that_come_while_others_wait_for_the_connection_keep_their_order(
    bench: Bench, turns: int
) -> None:
    bench.append(b"first")
    bench.redis.reconnect("a test")  # the epoch stays known: the greenlet that sends waits with no group left
    begun = [bench.logs.begin_append([bench.made(value)]) for value in values(3)]
    turn(turns)
    begun += [bench.logs.begin_append([bench.made(value)]) for value in (b"3", b"4")]
    assert all(isinstance(each.result()[0], Appended) for each in begun)
    assert bench.values() == [b"first", *values(5)]


def test_where_no_reply_comes_the_outcome_of_all_is_unknown(bench: Bench, network: Proxy) -> None:
    redis = Redis(network.url, timeout_ms=60_000, connect_timeout_ms=10_000)
    logs = LogStore(redis, redis, Keys("korvet"))
    base(logs.append([bench.made(b"first")])[0])
    network.cut_after_to_client = network.bytes_to_client
    begun = [
        logs.begin_append([bench.made(b"x", producer=producer, epoch=0, sequence=0)]) for producer in (7, -1)
    ]
    outcomes = [each.result()[0] for each in begun]
    assert [isinstance(each, AppendUnknownError) and each.idempotent for each in outcomes] == [True, False]
    redis.close()


def test_if_who_waits_for_the_reply_is_stopped_the_others_get_theirs(bench: Bench) -> None:
    bench.append(b"first")
    begun = [bench.logs.begin_append([bench.made(value)]) for value in values(3)]
    waiting = [gevent.spawn(each.result) for each in begun]
    turn()  # all of them wait: the first for the reply, the others for the first
    waiting[0].kill()
    found: list[Any] = [each.get() for each in waiting[1:]]
    assert base(found[0][0]) < base(found[1][0])
    assert bench.values() == [b"first", *values(3)]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_is_gone_before_anything_is_sent_keeps_nobody_waiting(bench: Bench, gone: int) -> None:
    bench.append(b"first")
    waiting = [gevent.spawn(bench.append, value) for value in values(3)]
    gevent.spawn(waiting[gone].kill)
    del waiting[gone]
    assert sorted(each.get() for each in waiting) == [each.get() for each in waiting]
    assert bench.values() == [b"first", *values(3)]


def test_nothing_is_sent_if_what_was_refused_before_may_not_be_any_more(bench: Bench) -> None:
    bench.append(b"first")
    one, two = (bench.logs.begin_append([bench.made(value)]) for value in (b"a", b"b"))
    bench.redis.order.change()  # in the same turn: a slot has moved, or an epoch is known
    assert not one.in_order
    turn()
    assert bench.values() == [b"first"]
    assert base(one.result()[0]) < base(two.result()[0])
    assert bench.values() == [b"first", b"a", b"b"]


def test_what_begins_after_a_change_does_not_join_what_began_before(bench: Bench) -> None:
    bench.append(b"first")
    of_another = bench.logs.begin_append([bench.made(b"other")])
    bench.redis.order.change()
    one = bench.logs.begin_append([bench.made(b"1")])
    assert one.in_order
    turn()
    two = bench.logs.begin_append([bench.made(b"2")])
    assert base(one.result()[0]) < base(two.result()[0])
    base(of_another.result()[0])


def test_all_who_wait_get_their_result_though_nothing_was_sent_at_first(bench: Bench) -> None:
    bench.append(b"first")
    waiting = [gevent.spawn(bench.append, value) for value in values(3)]
    gevent.spawn(bench.redis.order.change)  # after they began, and before the turn ends
    found = [each.get(timeout=30) for each in waiting]
    assert set(bench.values()) == {b"first", *values(3)}
    assert len(set(found)) == 3


def test_external_entries_are_settled_for_all_in_order(bench: Bench) -> None:
    bench.append(b"first")
    bench.external(2500 if bench.format == "batch" else 2100)
    begun = [bench.logs.begin_append([bench.made(value)]) for value in values(3)]
    bases = [base(each.result()[0]) for each in begun]
    assert bases == sorted(bases)
    assert bench.values()[-3:] == values(3)


def test_an_error_of_one_batch_is_counted_as_one_of_its_script(bench: Bench, redis_url: str) -> None:
    failed: list[tuple[str, str]] = []

    class Failures(Observer):
        def script_failed(self, script: str, error: str) -> None:
            failed.append((script, error))

    redis = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000, observer=Failures())
    logs = LogStore(redis, redis, Keys("korvet"))
    base(logs.append([bench.made(b"first", producer=7, epoch=0, sequence=0)])[0])
    [refused] = logs.append([bench.made(b"x", producer=7, epoch=0, sequence=9)])
    assert code_of(refused) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert failed[-1:] == [(f"log/append_{bench.format}", "OUT_OF_ORDER_SEQUENCE_NUMBER")]
    redis.close()
