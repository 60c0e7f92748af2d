"""Records that leave their stream and stay in the log: a group that is a Redis group of it loses none of them."""

from __future__ import annotations

from typing import Any

import pytest
import redis as redis_py

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.log.compaction import Compactor
from korvet.log.compaction_store import CompactionStore
from korvet.log.remote.archived import Archived, RemoteOffsetStore
from korvet.log.retention import Policy, RetainedLog, Retention
from korvet.log.share_parts import convert_redis_groups
from korvet.log.trim import Trimmer, TrimStore
from korvet.share.types import RELEASE
from korvet.topics.config import effective
from tests.log.cleaning import compact
from tests.share.support import GROUP, Part
from tests.support.batches import Record


def in_flight(queue: Part, count: int = 8) -> list[int]:
    """Return the offsets of records, of which the first is done with, three are locked and one is released."""
    offsets = [queue.bench.append(Record(b"v%d" % n, b"k%d" % n, 5)) for n in range(count)]
    queue.begin(offsets[0])
    queue.take("m1", 2)
    queue.take("m2", 3)
    queue.acknowledged(offsets[0])
    queue.acknowledged(offsets[3], member="m2", type_=RELEASE)
    return offsets


def expect_the_same_group(queue: Part, offsets: list[int]) -> None:
    """Expect what `in_flight` has left, in a part of kind `ranges`."""
    queue.kind = "ranges"
    assert queue.raw.hget(queue.share, f"h:{GROUP}").startswith(b"ranges ")
    assert queue.raw.xinfo_groups(queue.stream) == []
    assert queue.state() == (offsets[1], offsets[5], 4)
    assert queue.take("m3") == [(offsets[3], 2), (offsets[5], 1), (offsets[6], 1), (offsets[7], 1)]
    assert not queue.acknowledged(offsets[1], member="m1")
    assert not queue.acknowledged(offsets[2], offsets[4], member="m2")
    assert not queue.acknowledged(offsets[3], *offsets[5:], member="m3")
    assert queue.state() == (offsets[7] + 1, offsets[7] + 1, 0)


def test_a_pass_of_compaction_converts_it(queue: Part) -> None:
    offsets = in_flight(queue)
    bench = queue.bench
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
    compactor = Compactor(
        CompactionStore(bench.redis), bench.logs, buffer_bytes=1 << 20, decompressed_bytes_max=1 << 20
    )
    [plan], errors = compactor.plans([(queue.partition, effective(configs, Settings()))], lambda: None)
    assert not errors
    assert compactor.compact(plan, lambda: None) is not None
    expect_the_same_group(queue, offsets)


def test_what_is_pending_keeps_its_locks(queue: Part) -> None:
    offsets = in_flight(queue)
    queue.expire(offsets[2])
    queue.begin(None, "ranges")
    queue.kind = "ranges"
    assert queue.raw.xinfo_groups(queue.stream) == []
    result = queue.asked("m3", at=offsets[7] + 1)
    assert (result.ranges, result.read_next) == ([], offsets[2])
    assert result.wake_ms is not None
    assert result.wake_ms <= queue.policy.lock_ms
    queue.expire()
    assert queue.take("m3", 4) == [(offsets[1], 2), (offsets[2], 2), (offsets[3], 2), (offsets[4], 2)]


def test_no_redis_group_begins_on_a_log_that_is_compacted_or_is_being_compacted(queue: Part) -> None:
    offsets = [queue.bench.append(b"v") for _ in range(3)]
    queue.raw.hset(queue.partition.state, "clean_token", "mine")
    queue.begin(offsets[0])
    assert queue.raw.xinfo_groups(queue.stream) == []
    queue.store.delete(GROUP, [queue.partition])
    queue.raw.hdel(queue.partition.state, "clean_token")
    compact(queue.bench, 0, 2)
    queue.begin(offsets[0])
    assert queue.raw.hget(queue.share, f"h:{GROUP}").startswith(b"ranges ")
    queue.kind = "ranges"
    # What compaction has removed is passed over.
    assert queue.take() == [(offsets[0], 1), (offsets[2], 1)]


def test_retention_that_leaves_records_to_the_remote_tier_converts_it_first(queue: Part) -> None:
    offsets = in_flight(queue)
    bench = queue.bench
    mirror = RemoteOffsetStore(bench.redis).mirror
    assert not isinstance(mirror([Archived(queue.partition, offsets[5], offsets[0])])[0], KafkaError)
    store = TrimStore(bench.redis)
    retention = Retention(bench.logs, store, Trimmer(bench.logs, store, lambda _reason, _records: None))
    assert not [*retention.enforce([RetainedLog(queue.partition, Policy(0, archived_only=True))])]
    assert bench.bounds().redis_start == offsets[5]
    assert queue.state() == (offsets[1], offsets[5], 4)
    assert queue.raw.hget(queue.share, f"h:{GROUP}").startswith(b"ranges ")


def test_a_group_that_is_converted_loses_its_redis_group_and_no_other_does(queue: Part) -> None:
    in_flight(queue)
    queue.raw.xgroup_create(queue.stream, "their-own", "0")
    convert_redis_groups(queue.bench.redis, queue.partition)
    assert [xinfo_group["name"] for xinfo_group in queue.raw.xinfo_groups(queue.stream)] == [b"their-own"]
    with pytest.raises(redis_py.ResponseError, match="NOGROUP"):
        queue.raw.xreadgroup(GROUP, "worker", {queue.stream: ">"})


def test_a_group_with_too_much_pending_keeps_its_records_where_they_are(queue: Part) -> None:
    queue.bench.external(5001)
    assert queue.bench.logs.external.settle(queue.partition) is None
    queue.begin(0)
    queue.raw.xreadgroup(GROUP, "worker", {queue.stream: ">"}, count=5001)
    before: Any = queue.raw.xpending(queue.stream, GROUP)
    with pytest.raises(KafkaError, match="5001 entries are pending in group workers") as caught:
        convert_redis_groups(queue.bench.redis, queue.partition)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert queue.raw.xpending(queue.stream, GROUP) == before
