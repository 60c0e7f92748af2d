"""The scripts where memory is full (maxmemory): what needs memory writes nothing, what gives it back goes on."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.group.support import Group
from tests.lua.support import (
    CHANGES,
    EPOCH,
    REGISTRY,
    SHARE,
    SIDE_KEYS,
    STATE,
    STREAM,
    TOPIC_ID,
    BatchLog,
    Log,
    memory_left,
    run,
    unchanged,
)
from tests.lua.transaction.support import Transaction

FORMATS = pytest.mark.parametrize("log_of", [Log, BatchLog])


def test_an_append_writes_nothing(raw_redis: Any, log: Log) -> None:
    log.appended("a", producer=7)
    with unchanged(log.client), memory_left(raw_redis, -1), pytest.raises(redis.OutOfMemoryError):
        log.append("b", producer=7, sequence=1)


def test_no_transaction_is_opened_or_ended(raw_redis: Any, log: Log) -> None:
    log.appended("a", producer=7, transaction="t5")
    batches = (
        log.batch("b", producer=8, transaction="t5"),
        log.batch("b", producer=7, sequence=-1, transaction="a5"),
    )
    for each in batches:
        with unchanged(log.client), memory_left(raw_redis, -1), pytest.raises(redis.OutOfMemoryError):
            log.append_all(each)


def test_an_append_during_which_memory_becomes_full_is_whole(raw_redis: Any) -> None:
    log = Log(raw_redis)
    values = ["v" * 200] * 10_000
    # How much the arguments weigh, before the script begins, is Redis' secret. In steps that are smaller than what the
    # script writes, the first limit under which it may begin is one that it passes on its way.
    for left_bytes in range(0, 32 << 20, 512 << 10):
        with memory_left(raw_redis, left_bytes):
            try:
                log.appended(*values)
            except redis.OutOfMemoryError:
                assert raw_redis.exists(STREAM) == 0
            else:
                break
    assert left_bytes > 0
    assert log.values() == values
    assert log.next() == log.offsets()[-1] + 1


def test_a_topic_can_be_deleted(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, "orders", "row")
    Log(raw_redis).appended("a")
    offsets = "korvet:group:g:offsets"
    raw_redis.hset(offsets, STREAM, f'{{"topic_id":"{TOPIC_ID}"}}')

    def replace(before: str, after: str) -> Any:
        args = ["orders", before, after, "orders", REGISTRY, 100, ""]
        return run(raw_redis, "row/replace", [REGISTRY, CHANGES], args)

    with memory_left(raw_redis, -1):
        assert replace("row", "the same row, marked") == b"1"
        assert run(raw_redis, "topic/clear", [STATE, STREAM, *SIDE_KEYS], [TOPIC_ID, 100, 1000, STREAM]) == 1
        assert run(
            raw_redis, "topic/forget", [offsets, "{korvet:group:g:offsets}:pending"], [TOPIC_ID, "0", 100]
        ) == [b"0", 1]
        assert replace("the same row, marked", "") == b"2"
    assert raw_redis.keys() == [CHANGES.encode()]


def test_a_log_learns_that_it_is_archived_and_may_be_trimmed(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    log.appended("a")
    log.appended("b")
    with memory_left(raw_redis, -1):
        assert run(raw_redis, "lake/mirror", [STATE], [TOPIC_ID, 2, 0]) == [b"2", b"0"]
        assert run(raw_redis, "lake/expire", [STATE], [TOPIC_ID, 1]) == b"1"


def test_a_keeper_gets_and_keeps_its_lease(raw_redis: Any) -> None:
    keys = ("korvet:keeper", "{korvet:keeper}:fence")
    with memory_left(raw_redis, -1):
        assert run(raw_redis, "keeper/lease", keys, ("a", 60_000)) == [1, b"1"]
        assert run(raw_redis, "keeper/lease", keys, ("a", 60_000)) == [1, b"1"]


@pytest.mark.parametrize("entry_id", ["*", "5-5000"])
def test_external_entries_are_taken_in(raw_redis: Any, entry_id: str) -> None:
    log = Log(raw_redis)
    log.external(entry_id, "a")
    with memory_left(raw_redis, -1):
        log.settle()
    assert log.values() == ["a"]
    assert log.next() == log.offsets()[0] + 1


def test_entries_that_are_no_batches_are_removed(raw_redis: Any) -> None:
    log = BatchLog(raw_redis)
    log.external("5-0", "a")
    raw_redis.xdel(STREAM, "5-0")
    with memory_left(raw_redis, -1):
        log.settle()
    assert log.last_id() == "0-1"


def test_a_transaction_can_be_ended_and_its_id_expires_but_none_is_opened(raw_redis: Any) -> None:
    transaction = Transaction(raw_redis)
    by = transaction.begin()
    transaction.opened(by)
    with memory_left(raw_redis, -1):
        then = transaction.ended(by, "commit", bumps=True)
        with unchanged(raw_redis), pytest.raises(redis.OutOfMemoryError):
            transaction.opened(then)
        assert transaction.end(then, "abort", bumps=True)[0] == b"DONE"
        assert transaction.expire(0) == -2
    assert raw_redis.dbsize() == 0


def test_consumers_can_commit_and_groups_can_be_deleted(raw_redis: Any) -> None:
    group = [f"{{korvet:group:g:offsets}}:{each}" for each in ("group", "members", "deadlines")]
    keys = [*group, "korvet:group:g:offsets", "{korvet:group:g:offsets}:pending"]
    listed = ["korvet:groups"]
    with memory_left(raw_redis, -1):
        args = ["g", 0, -1, "", "", 0, 0, 1, STREAM, TOPIC_ID, '{"ms":']
        unlisted, now_ms = run(raw_redis, "group/commit", keys, args)
        assert unlisted == b"UNLISTED"
        assert run(raw_redis, "schedule/write", listed, ["CH", 5, "g"]) == 1
        assert run(raw_redis, "group/commit", keys, ["g", now_ms, *args[2:]]) == [1]
        transaction = ["g", 0, -1, "", "", 0, 0, 1, 0, 7, STREAM, TOPIC_ID, '{"ms":']
        assert run(raw_redis, "group/commit_transaction", keys, transaction) == [1]
        assert len(run(raw_redis, "group/end_transaction", [keys[0], *keys[3:]], [0, 1, 0, 7, "commit"])) == 2
        later_ms = -1000
        assert run(raw_redis, "group/expire_transactions", keys[4:], ["0", 10, later_ms]) == [b"0", 1]
        keys.append("{korvet:group:g:offsets}:assignments")
        assert run(raw_redis, "group/forget", keys, ["keep", "x", "", "", STREAM, ""])
        assert run(raw_redis, "group/delete", keys, ["g", STREAM]) == 1
        _, again_ms, *due = run(raw_redis, "schedule/due", listed, [10, 1000])
        assert due == [b"g", b"5"]
        assert run(raw_redis, "schedule/unlist", listed, ["g", again_ms]) == 1
    assert raw_redis.exists(*keys, *listed) == 0


def test_members_of_groups_go_on(raw_redis: Any) -> None:
    group = Group(raw_redis)
    generation = group.stable("a")
    with memory_left(raw_redis, -1):
        assert group.heartbeat("a", generation) == 1
        with pytest.raises(redis.ResponseError, match="MEMBER_ID_REQUIRED"):
            group.join(new="b", require_known_member_id=True)
        assert group.join("b")[0] == b"WAIT"
        with pytest.raises(redis.ResponseError, match="REBALANCE_IN_PROGRESS"):
            group.heartbeat("a", generation)
        generation = int(group.join("a")[2])
        assert group.sync("b", generation)[0] == b"WAIT"
        assert group.sync("a", generation, "a", "b")[0] == b"SYNCED"
        assert group.advance() > 0
        assert group.leave(("b", "")) == [b"NONE"]
    assert group.state() == "PreparingRebalance"


@pytest.mark.parametrize("kind", ["redis", "ranges"])
def test_a_share_group_works_on(raw_redis: Any, kind: str) -> None:
    log = Log(raw_redis)
    first = log.appended("a", "b")
    head, keys = [TOPIC_ID, "g", log.bits, "m"], (STREAM, STATE, SHARE)
    read = [first, first + 2, EPOCH, 1, first, first + 1]
    with memory_left(raw_redis, -1):
        assert (
            run(raw_redis, "share/acquire", keys, [*head, first, kind, 1, "cut", 1000, 5, 10, *read])[3]
            == b"%d" % first
        )
        assert (
            run(raw_redis, "share/acknowledge", keys, [*head, STREAM, 1000, 5, 10, "", first, first, 1]) == 0
        )
        assert run(raw_redis, "share/look", keys, head[:3])[:3] == [b"%d" % (first + 1)] * 2 + [b"0"]
        assert run(raw_redis, "share/alter", keys, [*head[:3], first, kind, 1000]) == 1
        assert run(raw_redis, "share/delete", keys, head[:3]) == 1
