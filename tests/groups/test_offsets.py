"""Committed offsets on a real server, in both formats: commits, fetches, and the Redis groups that mirror them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offset_reads import Committed
from korvet.groups.offsets import Commit, CommittedOffsets, Committer, OffsetStore, OffsetToCommit
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.observer import Observer
from korvet.topics.registry import PARTITIONS_AT_ONCE, TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.lua.support import memory_left
from tests.support.domain import Domain
from tests.support.log_bench import TOPIC_ID, Bench
from tests.support.redis_requests import requests_of
from tests.support.refusals import value
from tests.support.virtual_clock import VirtualClock

KEYS = Keys("korvet")
NOBODY = Committer("billing")


class Offsets:
    """The store on a topic of three partitions."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.raw = bench, bench.raw
        self.store = OffsetStore(bench.redis, KEYS, mirror=True)

    def commit(self, offset: int, partition: int = 0, topic_id: str = TOPIC_ID) -> bool:
        at = self.bench.at(partition, topic_id=topic_id)
        [prevented] = self.store.commit(NOBODY, [Commit(at, offset, 3, 'a "note" ☃')])
        self.store.flush()
        return prevented is None

    def fetch(self, *partitions: int) -> list[Committed | None]:
        asked = [(NOBODY.group, TopicPartition("orders", partition)) for partition in partitions]
        return [value([row]) for row in self.store.fetch(asked)]

    def read_up_to(self, partition: int = 0) -> str:
        [group] = self.raw.xinfo_groups(KEYS.stream("orders", partition))
        assert group["name"] == b"billing"
        last_id: bytes = group["last-delivered-id"]
        return last_id.decode()


@pytest.fixture
def offsets(bench: Bench) -> Offsets:
    return Offsets(bench)


def test_what_was_committed_is_returned_as_it_was(offsets: Offsets) -> None:
    assert offsets.commit(2**63 - 1, 1)
    first, second = offsets.fetch(0, 1)
    assert first is None
    assert second is not None
    assert (second.offset, second.epoch, second.metadata) == (2**63 - 1, 3, 'a "note" ☃')
    assert offsets.store.fetch_all(["billing", "nobody"]) == [{TopicPartition("orders", 1): second}, {}]
    assert offsets.store.fetch([("nobody", TopicPartition("orders", 1))]) == [None]
    assert offsets.fetch() == []


@pytest.mark.embedded  # the memory of one server
def test_a_commit_that_full_memory_takes_counts_as_no_failed_script(offsets: Offsets, redis_url: str) -> None:
    failed: list[str] = []

    class Failures(Observer):
        def script_failed(self, script: str, error: str) -> None:
            failed.append(f"{script} {error}")

    redis = Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000, observer=Failures())
    offsets.store = OffsetStore(redis, KEYS, mirror=True)
    assert offsets.commit(5)
    with memory_left(offsets.raw, -1):
        assert offsets.commit(6)
    assert not failed
    redis.close()


@pytest.mark.embedded  # the memory of one server
def test_a_commit_goes_on_where_memory_is_full_and_a_longer_one_is_refused(offsets: Offsets) -> None:
    offsets.commit(5)
    longer = [Commit(offsets.bench.at(index), 6, 3, "x" * 4096) for index in range(3)]
    with memory_left(offsets.raw, -1):
        prevented = offsets.store.commit(NOBODY, longer)
        assert [item and item.code for item in prevented] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
        assert offsets.commit(10_000)
        assert offsets.store.commit(Committer("new"), longer[:1]) != [None]
    [committed, *others] = offsets.fetch(0, 1, 2)
    assert committed is not None
    assert (committed.offset, committed.metadata) == (10_000, 'a "note" ☃')
    assert others == [None, None]


def test_rows_of_another_incarnation_are_no_commits(offsets: Offsets) -> None:
    offsets.commit(5)
    offsets.raw.hset(offsets.bench.partition.state, "topic", "another")
    assert offsets.fetch(0) == [None]
    assert offsets.store.fetch_all(["billing"]) == [{}]
    assert {item.at for item in offsets.store.stored("billing")} == {TopicPartition("orders", 0)}
    offsets.raw.delete(offsets.bench.partition.state)
    assert offsets.fetch(0) == [None]


@pytest.mark.parametrize("row", ["x", "[]", '{"offset":"5"}', "{}"])
def test_a_row_that_nobody_can_have_written_is_an_error(offsets: Offsets, row: str) -> None:
    offsets.commit(5)
    offsets.raw.hset(KEYS.group_offsets("billing"), KEYS.stream("orders", 0), row)
    with pytest.raises(KafkaError, match="korvet:group:billing:offsets") as refused:
        offsets.fetch(0)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        value(offsets.store.fetch_all(["billing"]))
    assert offsets.fetch(1) == [None]


def test_a_field_that_is_no_partition_is_left_out(offsets: Offsets) -> None:
    offsets.commit(5)
    key = KEYS.group_offsets("billing")
    row = offsets.raw.hget(key, KEYS.stream("orders", 0))
    offsets.raw.hset(key, mapping={"orders:0": row, "korvet:topics": row, b"\xff": row})
    assert set(value(offsets.store.fetch_all(["billing"]))) == {TopicPartition("orders", 0)}


def test_a_state_that_cannot_be_read_is_an_error_not_no_commit(offsets: Offsets) -> None:
    """A consumer that gets no commit would read all again, or skip all."""
    offsets.commit(5)
    offsets.raw.set(offsets.bench.partition.state, "x")
    with pytest.raises(KafkaError, match="state") as refused:
        offsets.fetch(0)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_redis_group_has_read_what_lies_before_the_committed_offset(offsets: Offsets) -> None:
    first = offsets.bench.append(b"a")
    second = offsets.bench.append(b"b")
    offsets.commit(0)
    assert offsets.read_up_to() == "0-0"
    offsets.commit(second)
    [[_, entries]] = offsets.raw.xreadgroup("billing", "c", {KEYS.stream("orders", 0): ">"})
    assert len(entries) == 1
    offsets.commit(first)
    [[_, entries]] = offsets.raw.xreadgroup("billing", "c", {KEYS.stream("orders", 0): ">"})
    assert len(entries) == 2
    offsets.commit(second + 1)
    assert offsets.raw.xreadgroup("billing", "c", {KEYS.stream("orders", 0): ">"}) in ([], {})


def test_a_trimmed_stream_takes_any_commit(offsets: Offsets) -> None:
    offset = offsets.bench.append(b"a")
    offsets.raw.xtrim(KEYS.stream("orders", 0), maxlen=0)
    for committed in (offset, 0, 2**62):
        assert offsets.commit(committed)
    assert offsets.bench.append(b"b") > offset


def test_rows_lie_in_redis_as_documented(offsets: Offsets) -> None:
    offsets.commit(5)
    row = json.loads(offsets.raw.hget("korvet:group:billing:offsets", "korvet:orders:0"))
    ms = row.pop("ms")
    assert row == {"offset": 5, "epoch": 3, "metadata": 'a "note" ☃', "topic_id": TOPIC_ID}
    assert abs(ms - int(offsets.raw.time()[0]) * 1000) < 60_000


def test_a_deletion_that_sees_other_offsets_tries_again(
    offsets: Offsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets.commit(5)
    pipeline = offsets.bench.redis.pipeline
    late = [lambda: offsets.commit(6, 1), lambda: offsets.commit(7, 2)]

    def committed_meanwhile(commands: Any) -> Any:
        result = pipeline(commands)
        if late:
            late.pop()()
        return result

    monkeypatch.setattr(offsets.bench.redis, "pipeline", committed_meanwhile)
    offsets.store.delete_group("billing")
    assert late == []
    assert offsets.raw.keys("*:group:*") == []
    assert offsets.raw.zcard(KEYS.groups) == 0


def committed_of(here: Domain, clock: Clock = CLOCK) -> CommittedOffsets:
    here.topics.create(TopicSpec(name="orders", partitions=2 * PARTITIONS_AT_ONCE + 1))
    return CommittedOffsets(OffsetStore(here.redis, KEYS, mirror=True, clock=clock), here.topics, Settings())


def at(partition: int, offset: int) -> PartitionRef[OffsetToCommit]:
    return PartitionRef(TopicRef("orders"), partition, OffsetToCommit(offset, -1, ""))


def test_the_last_of_several_commits_for_one_partition_counts_and_one_script_holds_so_many(
    here: Domain, clock: VirtualClock
) -> None:
    committed = committed_of(here, clock)
    wide = [at(item, 7) for item in range(2 * PARTITIONS_AT_ONCE + 1)]
    assert committed.commit(NOBODY, wide[:1]) == [None]  # Redis has the script from now on
    committed._store.flush()
    requests = requests_of(here.redis)
    assert set(committed.commit(NOBODY, wide)) == {None}
    assert requests == 3 * [("group/commit", 1)]
    repeated = [at(item % 2, item) for item in range(2 * PARTITIONS_AT_ONCE)]
    assert set(committed.commit(NOBODY, [*repeated, at(-1, 0)])[:-1]) == {None}
    assert requests == 4 * [("group/commit", 1)]
    result = committed.fetch([("billing", TopicPartition("orders", index)) for index in range(len(wide))])
    assert [row and value([row]).offset for row in result] == [
        2 * PARTITIONS_AT_ONCE - 2,
        2 * PARTITIONS_AT_ONCE - 1,
        *[7] * (len(wide) - 2),
    ]


def test_a_group_that_changes_between_two_scripts_of_a_commit_refuses_the_rest_only(
    here: Domain, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = OffsetStore.commit

    def change_afterwards(*args: Any, **options: Any) -> Any:
        outcomes = commit(*args, **options)
        raw_redis.hset(KEYS.group_state("billing"), "state", "Stable")
        return outcomes

    monkeypatch.setattr(OffsetStore, "commit", change_afterwards)
    outcomes = committed_of(here).commit(NOBODY, [at(item, 7) for item in range(PARTITIONS_AT_ONCE + 1)])
    *first, last = outcomes
    assert set(first) == {None}
    assert isinstance(last, KafkaError)
    assert last.code == ErrorCode.UNKNOWN_MEMBER_ID
