"""korvet/spark/source.py as Spark follows topics: positions in checkpoints, what is lost, waiting and replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from korvet.errors import KafkaError, LakeError
from korvet.lake.scan import offset_after
from korvet.lake.source import SourceTopic
from korvet.spark import source
from korvet.spark.source import COLUMNS, KorvetDataSource
from tests.support import redis_servers
from tests.support.archives import FORMATS, Format, Topics, archive, topics_in, trim
from tests.support.processes import wait_until


def options(topics: Topics, **more: str) -> dict[str, str]:
    return {"redis.url": topics.source.redis_url, "lake": topics.lake, "topic": "orders"} | more


def stream(topics: Topics, **more: str) -> Any:
    return KorvetDataSource(options(topics, **more)).streamReader(COLUMNS)


def batches(reader: Any, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, int, int, int]]]:
    """Read on from a position to the end; return the position there, and topic, partition and range of each part."""
    parts = []
    while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
        results = [
            partition.value for partition in reader.partitions(start, end) if partition.value is not None
        ]
        parts += [(result.topic.name, result.partition.index, result.first, result.end) for result in results]
        start = end
    return start, sorted(parts)


ON = {"failOnDataLoss": "false"}


def test_what_a_stream_cannot_go_on_with_is_one_clear_error(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], *(b"1" for _ in range(10)))
    reader = stream(topics, startingOffsets="earliest")
    began = reader.initialOffset()
    assert began == position(topic, 0)
    other = {"topics": {"orders": {"id": "B" * 22, "offsets": {"0": 7}}}}
    gone = {"topics": {"bills": {"id": topic.id, "offsets": {"0": 0}}}}
    for start, problem in (
        (
            other,
            r"orders was deleted and re-created .*, and orders-0 now begins at offset 0 \(failOnDataLoss",
        ),
        (position(topic, 11), "holds offsets 0 to 9, not 11"),
        (gone, "bills was deleted, or is not read any more.*failOnDataLoss=false goes on"),
    ):
        with pytest.raises(LakeError, match=problem):
            reader.latestOffset(start, ReadAllAvailable())
        with pytest.raises(LakeError, match=problem):
            reader.partitions(start, start)
    with pytest.raises(ValueError, match="a checkpoint of another source"):
        reader.partitions({"index": 1}, began)
    two = '{"orders": {"0": 1, "1": 1}}'
    wrong = KorvetDataSource(options(topics, startingOffsets=two)).reader(COLUMNS)
    with pytest.raises(ValueError, match="given for all partitions: orders-1 is not read"):
        wrong.partitions()


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_stream_that_retention_has_passed_fails_or_goes_on_and_counts_what_it_passed_over(
    topics: Topics, storage_format: Format
) -> None:
    [first, second] = topics.make("orders", storage_format, partitions=2).partitions
    for partition in (first, second):
        topics.produce(partition, *(b"%d" % at for at in range(10)))
    made = [offset for offset, *_ in topics.produced[first.topic_id, 0]]
    strict, lax = stream(topics), stream(topics, **ON)
    start = position(topics.stores.topic("orders"), made[2], made[0])
    planned = strict.latestOffset(start, ReadAllAvailable())
    topics.trim(first, made[6])
    whole = ("orders", 1, made[0], planned["topics"]["orders"]["offsets"]["1"])
    with pytest.raises(
        LakeError, match=rf"orders-0 holds offsets {made[6]} to .*, not {made[2]}: records were"
    ):
        strict.latestOffset(start, ReadAllAvailable())
    end, parts = batches(lax, start)
    lost = {"orders": {"0": {"count": made[6] - made[2], "first": made[2], "end": made[6]}}}
    assert (end["topics"], end["lost"]) == (planned["topics"], lost)
    assert parts == [("orders", 0, made[6], made[9] + 1), whole]
    # Of a batch that was planned before, and is repeated, the next one counts what is lost since.
    repeating = stream(topics, **ON)
    result = [
        item.value.first for item in repeating.partitions(start, planned) if item.value.partition.index == 0
    ]
    assert result == [made[6]]
    after, parts = batches(repeating, planned)
    assert (after["lost"], parts) == (lost, [])
    # What the checkpoint has counted is decided, whatever the option is now.
    counting = lax.latestOffset(start, ReadAllAvailable())
    assert [item.value.partition.index for item in strict.partitions(start, counting)] == [1]
    # A second loss adds up, also where nothing is left.
    topics.produce(first, b"10", b"11")
    topics.trim(first, topics.bounds(first).high_watermark)
    again, parts = batches(lax, after)
    assert (
        again["lost"]["orders"]["0"]["count"]
        == lost["orders"]["0"]["count"] + again["topics"]["orders"]["offsets"]["0"] - made[9] - 1
    )
    assert parts == []
    # Where Redis has come back with older data, reading goes on at the end there is.
    past = json.loads(json.dumps(again))
    past["topics"]["orders"]["offsets"]["0"] += 5
    end, _ = batches(lax, past)
    assert end["topics"] == again["topics"]


@pytest.mark.parametrize(
    "named", [{"subscribe": "orders,bills", "topic": ""}, {"subscribePattern": ".*", "topic": ""}]
)
def test_a_topic_that_was_deleted_is_a_loss_only_if_it_is_named(
    topics: Topics, named: dict[str, str]
) -> None:
    made = [topics.make(name, "batch", number=number) for number, name in enumerate(("orders", "bills"))]
    for topic in made:
        topics.produce(topic.partitions[0], b"1", b"2")
    strict, lax = stream(topics, startingOffsets="earliest", **named), stream(topics, **named, **ON)
    start = strict.initialOffset()
    topics.delete("bills")
    left = position(made[0], 2), [("orders", 0, 0, 2)]
    assert batches(lax, start) == left
    if "subscribe" in named:
        with pytest.raises(LakeError, match="bills was deleted"):
            batches(strict, start)
    else:
        assert batches(strict, start) == left
    # One that is created later is read from its start.
    topics.produce(topics.make("bills", "batch", number=5).partitions[0], b"3")
    assert batches(lax, left[0])[1] == [("bills", 0, 0, 1)]


@pytest.mark.parametrize(("storage_format", "known"), [("record", False), ("batch", True)])
def test_a_topic_that_was_re_created_is_read_from_its_start_or_not_at_all(
    topics: Topics, storage_format: Format, *, known: bool
) -> None:
    [partition] = topics.make("orders", storage_format).partitions
    topics.produce(partition, b"1", b"2", b"3")
    strict, lax = stream(topics, startingOffsets="earliest"), stream(topics, **ON)
    start, _ = batches(strict, strict.initialOffset())
    topics.delete("orders")
    new = topics.make("orders", storage_format, number=7)
    topics.produce(new.partitions[0], *(b"%d" % at for at in range(9)))
    made = [offset for offset, *_ in topics.produced[new.id, 0]]
    topics.trim(new.partitions[0], made[2])
    problem = f"orders was deleted and re-created .id {new.id}, not {partition.topic_id}"
    with pytest.raises(LakeError, match=problem):
        batches(strict, start)
    end, parts = batches(lax, start)
    assert parts == [("orders", 0, made[2], made[8] + 1)]
    # Of a log whose offsets are times, nobody knows the first.
    lost = {"lost": {"orders": {"0": {"count": 2, "first": 0, "end": 2}}}} if known else {}
    assert end == position(new, made[8] + 1) | lost
    # A batch of the old topic reads nothing of the new one when it is repeated.
    old = {"topics": {"orders": {"id": partition.topic_id, "offsets": {"0": 0}}}}
    assert lax.partitions(old, start) == []


def position(topic: SourceTopic, *offsets: int) -> dict[str, object]:
    """Return a checkpoint at offsets of the first partitions."""
    numbered = {str(at): offset for at, offset in enumerate(offsets)}
    return {"topics": {topic.name: {"id": topic.id, "offsets": numbered}}}


def test_a_stream_goes_on_from_a_checkpoint_of_the_version_before(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2")
    reader = KorvetDataSource(options(topics)).streamReader(COLUMNS)
    former: dict[str, object] = {"topic_id": topic.id, "offsets": {"0": 1}}
    latest = reader.latestOffset(former, ReadAllAvailable())
    assert latest == position(topic, 2)
    assert [partition.value.first for partition in reader.partitions(former, latest)] == [1]


def test_a_stream_begins_at_a_position_of_before_with_what_came_and_went_since(topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    topics.produce(topic.partitions[0], b"1", b"2", b"3")
    now = KorvetDataSource(options(topics, startingOffsets="latest")).streamReader(COLUMNS)
    began = now.initialOffset()
    topics.produce(topic.partitions[0], b"4")
    for kept, expected in ((began, {"0": 3, "1": 0}), ({"topics": {}}, {"0": 0, "1": 0})):
        given = options(topics, startingOffsets="latest", startingPosition=json.dumps(kept))
        result = KorvetDataSource(given).streamReader(COLUMNS).initialOffset()
        assert result == {"topics": {"orders": {"id": topic.id, "offsets": expected}}}
    other: Any = {"topics": {"orders": {"id": "another", "offsets": {"0": 1}}}}
    reader = KorvetDataSource(options(topics, startingPosition=json.dumps(other))).streamReader(COLUMNS)
    with pytest.raises(LakeError, match="orders was deleted and re-created"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_a_stream_that_reads_all_there_is_ends_at_a_position_if_one_is_given(topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    for partition in topic.partitions:
        topics.produce(partition, b"1", b"2", b"3")
    given = options(topics, endingPosition=json.dumps(position(topic, 2)))
    reader: Any = KorvetDataSource(given).streamReader(COLUMNS)
    reader.prepareForTriggerAvailableNow()
    for begin, end in ((0, 2), (2, 2), (3, 3)):
        latest = reader.latestOffset(position(topic, begin), ReadAllAvailable())
        assert latest["topics"]["orders"]["offsets"] == {"0": end, "1": 0}


def test_a_stream_takes_topics_that_begin_to_match_its_pattern_from_their_start(topics: Topics) -> None:
    given = options(topics, topic="", subscribePattern="order.*")
    reader = KorvetDataSource(given).streamReader(COLUMNS)
    began = reader.initialOffset()
    assert began == {"topics": {}}
    for number, name in enumerate(("orders", "order-items", "bills")):
        topics.produce(topics.make(name, "batch", number=number).partitions[0], b"1", b"2")
    latest = reader.latestOffset(began, ReadAllAvailable())
    assert sorted(latest["topics"]) == ["order-items", "orders"]
    parts = [partition.value for partition in reader.partitions(began, latest)]
    assert sorted((part.topic.name, part.first, part.end) for part in parts) == [
        ("order-items", 0, 2),
        ("orders", 0, 2),
    ]


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_stream_waits_for_its_least_records_but_not_for_long(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format)
    [partition] = topic.partitions
    given = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "7", "maxTriggerDelay": "2m"}
    now = 1000.0
    monkeypatch.setattr(source, "monotonic", lambda: now)
    reader = KorvetDataSource(options(topics, **given)).streamReader(COLUMNS)
    began, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert limit == ReadMinRows(7)
    for at in range(3):
        topics.produce(partition, b"1", b"2")
        if at == 1:
            archive(topics)
        assert reader.latestOffset(began, limit) == began
    # All there is: not what this trigger waits for.
    assert reader.latestOffset(began, ReadAllAvailable()) != began
    topics.produce(partition, b"7")
    first = reader.latestOffset(began, limit)
    assert first == reader.reportLatestOffset()
    topics.produce(partition, b"8")
    assert reader.latestOffset(first, limit) == first
    now += 120
    second = reader.latestOffset(first, limit)
    assert second == reader.reportLatestOffset() != first
    # With both limits, and none of them where Spark is to read what there is, and to end.
    given["maxOffsetsPerTrigger"] = "8"
    reader = KorvetDataSource(options(topics, **given)).streamReader(COLUMNS)
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    assert reader.latestOffset(second, ReadMaxRows(8)) == second
    topics.produce(partition, b"9")
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(second, ReadMaxRows(8)) == reader.reportLatestOffset() != second


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_stream_reads_what_replicas_have_and_waits_while_they_are_away(
    tmp_path: Path, storage_format: Format
) -> None:
    with redis_servers.master() as master, topics_in(master.url, tmp_path / "lake") as topics:
        topic = topics.make("orders", storage_format, min_insync_replicas="2")
        [partition] = topic.partitions
        source_of_orders = KorvetDataSource(options(topics, startingOffsets="earliest"))
        reader = source_of_orders.streamReader(COLUMNS)
        began = reader.initialOffset()
        with master.replica():
            topics.produce(partition, b"held")
            held = position(topic, topics.produced[topic.id, 0][0][0] + 1)
            # One question waits for half a second only; a stream asks again.
            wait_until(lambda: reader.latestOffset(began, ReadAllAvailable()) == held, "the replica has it")
        topics.produce(partition, b"of the master only")
        assert reader.latestOffset(held, ReadAllAvailable()) == reader.reportLatestOffset() == held
        # A stream that is started again reads the batch that it had begun.
        reader = source_of_orders.streamReader(COLUMNS)
        [part] = reader.partitions(began, held)
        [rows] = reader.read(part)
        assert isinstance(rows, pa.RecordBatch)
        assert rows.num_rows == 1
        with pytest.raises(KafkaError, match="OFFSET_NOT_AVAILABLE"):
            source_of_orders.reader(COLUMNS).partitions()
        newest = position(topic, topics.produced[topic.id, 0][1][0] + 1)
        with master.replica():
            wait_until(lambda: reader.latestOffset(held, ReadAllAvailable()) == newest, "it has that too")


def test_a_stream_gets_on_though_what_it_counts_goes_to_the_lake_meanwhile(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "record")
    [partition] = topic.partitions
    topics.produce(partition, *(b"%d" % at for at in range(10)))
    reader = KorvetDataSource(options(topics, startingOffsets="earliest")).streamReader(COLUMNS)
    began = reader.initialOffset()
    counted = offset_after

    def late(*args: Any) -> int:
        monkeypatch.setattr(source, "offset_after", counted)
        archive(topics)
        trim(topics, partition)
        return counted(*args)

    monkeypatch.setattr(source, "offset_after", late)
    fourth = topics.produced[topic.id, 0][3][0]
    assert reader.latestOffset(began, ReadMaxRows(4)) == position(topic, fourth + 1)
    # Where it goes again and again, all is one batch.
    monkeypatch.setattr(source, "offset_after", lambda _stores, _log, first, _count: first)
    assert reader.latestOffset(began, ReadMaxRows(4)) == reader.reportLatestOffset()
