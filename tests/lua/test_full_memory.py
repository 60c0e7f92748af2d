"""The scripts where memory is full (maxmemory): what needs memory writes nothing, what gives it back goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from korvet.redis import scripts
from korvet.topics.entry_ids import DENSE
from tests.lua.group.support import EVERY_KEY, GROUP, OFFSETS, PENDING, WITH_ASSIGNMENTS, Group
from tests.lua.support import (
    ABORTED,
    CHANGES,
    OPEN,
    REGISTRY,
    STREAM,
    TOPIC_ID,
    Appended,
    Log,
    memory_left,
    of_partition,
    run,
    unchanged,
)

GROUPS = "korvet:groups"
REPLACE_ONLY = {
    *("group/commit", "group/join", "group/sync", "consumer/update", "streams/begin"),
    *("row/replace", "schedule/write"),
}
"""They run a second time with another head, and then store no more than there was."""
MARKERS_ONLY = {"log/append_record", "log/append_batch"}
"""They run a second time with a head, for markers, and then write nothing else."""
STORE_MORE = {
    *("compaction/write", "partition/create"),
    *(f"topic/{name}" for name in ("claim", "create")),
    *(f"transaction/{name}" for name in ("add", "init")),
    *("group/commit_transaction", "share/alter"),
}
ONLY_REMOVE_OR_READ = {"group/look", "producer/expire"}


def test_every_script_runs_but_those_that_store_more() -> None:
    """By the flag of its head Redis lets a script write; one without a head may run commands that need no memory."""
    names = {script.name for script in scripts.all_scripts()}
    heads = {name: scripts.get(name).source.partition("\n")[0] for name in names}
    refused = {name for name, head in heads.items() if not re.search("flags=(allow-oom|no-writes)", head)}
    assert refused == REPLACE_ONLY | MARKERS_ONLY | STORE_MORE | ONLY_REMOVE_OR_READ
    assert {name for name in names if scripts.get(name).when_full} == REPLACE_ONLY | MARKERS_ONLY
    assert not {name for name in ONLY_REMOVE_OR_READ | MARKERS_ONLY if heads[name].startswith("#!")}


@pytest.mark.parametrize(
    "of_batch",
    [
        {"producer": 7, "sequence": 1, "transaction": "t0"},
        {"producer": 8, "transaction": "t5"},
    ],
    ids=["appended", "a transaction opened"],
)
def test_nothing_is_written(log: Log, of_batch: dict[str, Any]) -> None:
    log.appended("a", producer=7, transaction="t5")
    with unchanged(log.client), memory_left(log.client, -1), pytest.raises(redis.OutOfMemoryError):
        log.append("b", **of_batch)


@pytest.mark.parametrize("outcome", "ca")
def test_of_the_batches_of_an_append_markers_are_written(log: Log, outcome: str) -> None:
    first = log.appended("a", producer=7, transaction="t5")
    log.appended("b", producer=8, transaction="t3")
    log.external("*", "by another client") if log.script == "log/append_record" else None
    batches = (
        log.batch("c", producer=7, sequence=1, transaction="t0"),
        log.batch("", producer=7, sequence=-1, transaction=f"{outcome}5"),
        log.batch("d"),
        log.batch("a", producer=7, transaction="t5"),
    )
    with memory_left(log.client, -1):
        full, marker, also_full, duplicate = log.append_all(*batches)
    assert isinstance(full, redis.OutOfMemoryError)
    assert isinstance(also_full, redis.OutOfMemoryError)
    assert isinstance(marker, Appended)
    assert isinstance(duplicate, Appended)
    assert (marker.outcome, marker.base) == (b"APPENDED", log.offsets()[-1])
    assert (duplicate.outcome, duplicate.base) == (b"DUPLICATE", first)
    assert [name for name, _ in log.client.zrange(OPEN, 0, -1, withscores=True)] == [b"8"]
    assert log.client.zcard(ABORTED) == (outcome == "a")


@pytest.mark.parametrize("bits", [10, DENSE])
@pytest.mark.parametrize("entry_id", ["*", "0-*"])
def test_external_entries_that_an_append_would_move_stay(raw_redis: Any, bits: int, entry_id: str) -> None:
    log = Log(raw_redis, bits)
    for value in "abc":
        log.external(entry_id, value)
    with unchanged(raw_redis), memory_left(raw_redis, -1), pytest.raises(redis.OutOfMemoryError):
        log.append("d")
    log.settle()
    assert log.values() == list("abc")


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
                assert raw_redis.xlen(STREAM) == 0
            else:
                break
    assert left_bytes > 0
    assert log.values() == values
    assert log.next() == log.offsets()[-1] + 1


COMMITTED = f'{{"offset":99,"epoch":1,"metadata":"abc","topic_id":"{TOPIC_ID}","ms":'


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (COMMITTED.replace("99", "100000000000000000"), 1),
        (COMMITTED.replace("abc", "de"), 1),
        (COMMITTED.replace("abc", "abcd"), -2),
        (COMMITTED.replace("abc", '\\"metadata\\":'), -2),
    ],
    ids=["a later offset", "shorter metadata", "longer metadata", "metadata as a row"],
)
def test_a_commit_replaces_what_is_no_shorter(raw_redis: Any, row: str, outcome: int) -> None:
    def commit(*rows: str) -> Any:
        head = ["g", raw_redis.time()[0] * 1000, -1, "", "", 0, 0, 1]
        parts = [part for at, item in enumerate(rows) for part in (of_partition(STREAM, at), TOPIC_ID, item)]
        return run(raw_redis, "group/commit", EVERY_KEY, [*head, *parts])

    assert commit(COMMITTED) == [1]
    with memory_left(raw_redis, -1):
        assert commit(row, COMMITTED) == [outcome, -2]
    stored = raw_redis.hgetall(OFFSETS)
    assert stored.keys() == {STREAM.encode()}
    assert stored[STREAM.encode()].decode().startswith(row if outcome == 1 else COMMITTED)


def test_no_group_begins_and_no_transaction_commits_offsets(raw_redis: Any) -> None:
    now_ms = raw_redis.time()[0] * 1000
    plain = ["g", now_ms, -1, "", "", 0, 0, 1, STREAM, TOPIC_ID, COMMITTED]
    transactional = ["g", now_ms, -1, "", "", 0, 0, 1, 0, 7, STREAM, TOPIC_ID, COMMITTED]
    group = Group(raw_redis)
    with unchanged(raw_redis), memory_left(raw_redis, -1):
        assert run(raw_redis, "group/commit", EVERY_KEY, plain) == [-2]
    calls = (
        lambda: run(raw_redis, "group/commit_transaction", EVERY_KEY, transactional),
        lambda: group.join("", "a"),
    )
    for call in calls:
        with unchanged(raw_redis), memory_left(raw_redis, -1), pytest.raises(redis.OutOfMemoryError):
            call()


def test_what_is_listed_is_looked_at_and_nothing_is_listed(raw_redis: Any) -> None:
    raw_redis.zadd(GROUPS, {"g": 9})
    with memory_left(raw_redis, -1):
        assert run(raw_redis, "schedule/write", [GROUPS], ["LT", 5, "g", 5, "h"]) == 0
        assert run(raw_redis, "schedule/write", [GROUPS], ["CH", 4, "g", 5, "h"]) == 1
    assert raw_redis.zrange(GROUPS, 0, -1, withscores=True) == [(b"g", 4.0)]


def test_transactions_end_and_groups_can_be_deleted(raw_redis: Any) -> None:
    now_ms = raw_redis.time()[0] * 1000
    transaction = ["g", now_ms, -1, "", "", 0, 0, 1, 0, 7, STREAM, TOPIC_ID, COMMITTED]
    raw_redis.zadd(GROUPS, {"g": 5})
    assert run(raw_redis, "group/commit_transaction", EVERY_KEY, transaction) == [1]
    with memory_left(raw_redis, -1):
        ended = run(raw_redis, "group/end_transaction", [GROUP, OFFSETS, PENDING], [0, 1, 0, 7, "commit"])
        assert len(ended) == 2
        later_ms = -1000
        assert run(raw_redis, "group/expire_transactions", [PENDING], ["0", 10, later_ms]) == [b"0", 1]
        assert run(raw_redis, "group/forget", WITH_ASSIGNMENTS, ["keep", "x", "", "", STREAM, ""])
        assert run(raw_redis, "group/delete", WITH_ASSIGNMENTS, ["g", STREAM]) == 1
        _, again_ms, *due = run(raw_redis, "schedule/due", [GROUPS], [10, 1000])
        assert due == [b"g", b"5"]
        assert run(raw_redis, "schedule/unlist", [GROUPS], ["g", again_ms]) == 1
    assert raw_redis.exists(*WITH_ASSIGNMENTS, GROUPS) == 0


def test_members_of_groups_go_on_and_nobody_joins(raw_redis: Any) -> None:
    group = Group(raw_redis)
    group.stable("a", "b", "large" * 800)
    with memory_left(raw_redis, -1):
        assert group.leave(("large" * 800, "")) == [b"NONE"]
        group.join("b")
        generation = int(group.join("a")[2])
        assert (
            group.sync("a", generation, "a", "b", "x" * 3990)[0] == b"SYNCED"
        )  # what has left is free for others
        assert group.heartbeat("a", generation) == 1
        for how in ({}, {"require_known_member_id": True}, {"instance": "i"}):
            with unchanged(raw_redis), pytest.raises(redis.OutOfMemoryError):
                group.join("", "c", **how)
        assert group.join("b", metadata="x" * 4000)[0] == b"WAIT"
        with unchanged(raw_redis), pytest.raises(redis.OutOfMemoryError):
            group.join("a", metadata="x" * 5000)
        generation = int(group.join("a")[2])
        assert group.sync("b", generation)[0] == b"WAIT"
        with unchanged(raw_redis), pytest.raises(redis.OutOfMemoryError):
            group.sync("a", generation, "x" * 5000, "b")
        assert group.sync("a", generation, "a", "b")[0] == b"SYNCED"
        assert group.advance() > 0
        assert group.leave(("b", "")) == [b"NONE"]
    assert group.state() == "PreparingRebalance"


def test_a_static_member_restarts(raw_redis: Any) -> None:
    group = Group(raw_redis)
    generation = int(group.join("", "a", instance="i")[2])
    group.sync("a", generation, "a", instance="i")
    with memory_left(raw_redis, -1):
        assert group.join("", "again", instance="i")[1] == b"again"


def test_a_setting_changes_and_a_right_is_revoked_and_few_are_added(raw_redis: Any) -> None:
    def replace(before: str, after: str) -> Any:
        args = ["orders", before, after, "orders", REGISTRY, 100, ""]
        return run(raw_redis, "row/replace", [REGISTRY, CHANGES], args)

    row = "a row with settings"
    assert replace("", row) == b"1"
    with memory_left(raw_redis, -1):
        assert replace(row, f"{row}, and one more") == b"2"
        with unchanged(raw_redis), pytest.raises(redis.OutOfMemoryError):
            replace(f"{row}, and one more", "x" * 2000)
        assert replace(f"{row}, and one more", "") == b"3"
        assert replace("", row) == b"4"
        assert replace(row, "") == b"5"
        raw_redis.config_set("maxmemory", 0)
        raw_redis.hset(REGISTRY, mapping={str(number): "row" for number in range(100)})
    with unchanged(raw_redis), memory_left(raw_redis, -1), pytest.raises(redis.OutOfMemoryError):
        replace("", row)
