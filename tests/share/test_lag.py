"""korvet/share/lag.py: the lag of share groups in all partitions, and the age of the first record."""

from __future__ import annotations

import time

from korvet.errors import ErrorCode, KafkaError
from korvet.log.index import IndexStore
from korvet.share.lag import ShareLagReader
from korvet.share.types import Begin, ShareOffsets
from korvet.telemetry.stats import GroupLag
from tests.groups.test_lag import sorted_out
from tests.share.support import GROUP, POLICY, Part
from tests.support.batches import Record
from tests.support.log_bench import TOPIC_ID

HOUR_MS = 3_600_000


def read(part: Part, *groups: str) -> tuple[list[GroupLag], list[KafkaError]]:
    reader = ShareLagReader(part.store, IndexStore(part.bench.redis))
    steps = reader.read(groups or (GROUP,), part.bench.partitions)
    return sorted_out([outcome for outcomes in steps for outcome in outcomes])


def test_records_that_are_not_done_with_are_counted_and_the_first_of_them_has_the_age(part: Part) -> None:
    now_ms = int(time.time() * 1000)
    offsets = [part.bench.append(Record(timestamp=now_ms - hours * HOUR_MS)) for hours in (5, 4, 3, 2)]
    assert read(part) == ([], [])
    part.begin(offsets[0])
    seen = []
    for act in (
        lambda: None,
        lambda: part.take(count=3),
        lambda: part.acknowledge(offsets[1]),
        lambda: part.acknowledge(offsets[0]),
        lambda: part.acknowledge(offsets[2]),
        part.take,
        lambda: part.acknowledge(offsets[3]),
    ):
        act()
        [[lag], errors] = read(part)
        assert (lag.group, lag.topic, lag.partition, errors) == (GROUP, "orders", 0, [])
        seen.append((lag.records, lag.age_ms // HOUR_MS))
        [begun] = part.store.offsets(GROUP, [part.bench.at(0)])
        assert isinstance(begun, ShareOffsets)
        assert lag.offset == begun.start
    assert seen == [(4, 5), (4, 5), (3, 5), (2, 3), (1, 2), (1, 2), (0, 0)]


def test_each_group_is_counted_where_it_has_begun_and_no_other_is(part: Part) -> None:
    name = "a:{b} é"
    is_redis = part.kind == "redis"
    for partition in part.bench.partitions:
        part.bench.append(b"v", partition=partition)
    begun = [(name, 0), (name, 2), ("gone", 0), (GROUP, 1)]
    asks = [Begin(part.bench.at(index), group, 0, is_redis, POLICY) for group, index in begun]
    assert None not in part.store.begin(asks)
    lags, errors = read(part, name, GROUP, "nobody")
    assert {(lag.group, lag.partition, lag.records) for lag in lags} == {
        (name, 0, 1),
        (name, 2, 1),
        (GROUP, 1, 1),
    }
    assert errors == []


def test_what_is_damaged_keeps_nothing_else_from_being_counted(part: Part) -> None:
    part.bench.append(b"v")
    part.begin()
    one, two = (part.bench.partitions[index].share_groups for index in (1, 2))
    part.raw.set(one, "no hash")
    part.raw.hset(two, f"h:{GROUP}", "no header")
    lags, errors = read(part)
    assert [(lag.partition, lag.records) for lag in lags] == [(0, 1)]
    assert [error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert one in errors[0].message


def test_a_topic_that_is_deleted_has_no_lag_and_is_no_error(part: Part) -> None:
    part.bench.append(b"v")
    part.begin()
    header = part.raw.hgetall(part.share)
    part.bench.topics.deletion.delete({"orders": TOPIC_ID})
    part.raw.hset(part.share, mapping=header)  # as if it went between two round trips
    assert read(part) == ([], [])
