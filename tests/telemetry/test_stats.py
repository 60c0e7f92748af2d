"""Statistics of many topics and groups are merged into few."""

from __future__ import annotations

import msgspec
import pytest

from korvet.telemetry.stats import OTHER, GroupLag, GroupStats, LakeLag, LogStats, TableSize, limited


def log(topic: str, partition: int, size_bytes: int, age_ms: int | None) -> LogStats:
    return LogStats(
        topic=topic,
        partition=partition,
        records=size_bytes // 10,
        size_bytes=size_bytes,
        index_rows=1,
        start_offset=0,
        end_offset=size_bytes // 10,
        oldest_age_ms=age_ms,
    )


LOGS = [
    log("a", 0, 10, 5),
    log("a", 1, 20, None),
    log("b", 0, 100, 7),
    log("c", 0, 30, None),
    log("d", 0, 5, 50),
]


def test_up_to_the_limit_partitions_have_their_own_row() -> None:
    assert limited(LOGS, 5) == LOGS
    assert limited([], 0) == []


def test_above_the_limit_logs_are_merged_by_topic_largest_first() -> None:
    merged = limited(LOGS, 4)
    assert [(item.topic, item.partition, item.size_bytes, item.records) for item in merged] == [
        ("b", None, 100, 10),
        ("a", None, 30, 3),
        ("c", None, 30, 3),
        ("d", None, 5, 0),
    ]
    assert [item.oldest_age_ms for item in merged] == [7, 5, None, 50]
    assert {(item.start_offset, item.end_offset) for item in merged} == {(None, None)}


def test_topics_above_the_limit_become_one_row() -> None:
    merged = limited(LOGS, 2)
    assert [(item.topic, item.size_bytes) for item in merged] == [("b", 100), ("a", 30), (OTHER, 35)]
    assert merged[2].oldest_age_ms == 50
    [rest] = limited(LOGS, 0)
    assert (rest.topic, rest.size_bytes, rest.index_rows) == (OTHER, 165, 5)


def test_the_dirty_ratio_is_by_all_bytes_of_a_topic_and_absent_for_several_topics() -> None:
    never = log("a", 0, 300, None)
    logs = [msgspec.structs.replace(never, compacted_bytes=100), never, log("b", 0, 50, None)]
    assert [item.dirty_ratio for item in logs] == [pytest.approx(2 / 3), None, None]
    assert [item.dirty_ratio for item in limited(logs, 2)] == [pytest.approx(5 / 6), None]
    [rest] = limited(logs, 0)
    assert (rest.compacted_bytes, rest.dirty_ratio) == (100, None)
    assert msgspec.structs.replace(never, size_bytes=0, compacted_bytes=0).dirty_ratio == 0


def test_lags_of_groups_are_merged_by_group_and_topic() -> None:
    def lag(group: str, topic: str, partition: int | None, records: int, age_ms: int) -> GroupLag:
        return GroupLag(group=group, topic=topic, partition=partition, records=records, age_ms=age_ms)

    lags = [
        lag("a", "t", 0, 1, 99),
        lag("a", "t", 1, 2, 98),
        lag("a", "u", 0, 9, 91),
        lag("b", "t", 0, 4, 96),
    ]
    by_topic = [lag("a", "u", None, 9, 91), lag("b", "t", None, 4, 96), lag("a", "t", None, 3, 99)]
    assert limited(lags, 3) == by_topic
    assert limited(lags, 1) == [by_topic[0], lag(OTHER, OTHER, None, 7, 99)]


def test_the_sum_of_groups_has_no_generation() -> None:
    def group(name: str, members: int, generation: int | None = 3) -> GroupStats:
        return GroupStats(group=name, members=members, generation=generation)

    groups = [group("a", 0), group("b", 5), group("c", 2), group("d", 2)]
    assert limited(groups, 2) == [group("b", 5), group("c", 2), group(OTHER, 2, None)]
    assert limited(groups, 0) == [group(OTHER, 9, None)]


def test_lags_of_archiving_are_merged_by_topic() -> None:
    def lag(topic: str, partition: int | None, records: int, age_ms: int | None) -> LakeLag:
        archived = None if partition is None else 7
        return LakeLag(
            topic=topic, partition=partition, archived_offset=archived, records=records, age_ms=age_ms
        )

    lags = [lag("a", 0, 1, 50), lag("a", 1, 2, 70), lag("b", 0, 9, None), lag("c", 0, 0, 0)]
    assert limited(lags, 1) == [lag("b", None, 9, None), lag(OTHER, None, 3, 70)]


def test_the_largest_tables_keep_their_own_row() -> None:
    def table(topic: str, size: int, files: int = 1) -> TableSize:
        return TableSize(topic=topic, files=files, records=10 * files, bytes=size)

    assert limited([table("a", 5), table("b", 9), table("c", 7)], 1) == [table("b", 9), table(OTHER, 12, 2)]
