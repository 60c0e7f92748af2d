"""The PySpark data source `korvet`: topics as DataFrames over both tiers, in batches and as streams.

Offsets and records go from Redis and the lake to Spark's Python workers as Arrow, whatever state brokers are in: none
is used. Reading changes nothing: positions are only in Spark's checkpoints, and nothing is trimmed. Filters of a query
on partition, offset and timestamp become bounds of what is read. Writing is in `sink`.

    register(spark)
    spark.read.format("korvet").options(**{"redis.url": URL, "lake": DIRECTORY, "topic": NAME}).load()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    StructType,
)

from korvet.errors import LakeError
from korvet.lake.scan import (
    PartitionSnapshot,
    PartReader,
    ScanPart,
    ScanRange,
    TimestampRange,
    data_loss_error,
    first_offset_from,
    offset_after,
    scan_parts,
    select_columns,
    snapshots,
)
from korvet.lake.schema import OFFSET, PARTITION, TIMESTAMP
from korvet.lake.source import LakeStores
from korvet.lake.tasks import alternating
from korvet.spark.options import EARLIEST, LATEST, ReadEdge, ReadOptions, read_options, sink_options
from korvet.spark.sink import BatchSink, StreamSink, checked_options

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


_ANY = (-math.inf, math.inf)


class FilterBounds(NamedTuple):
    """Values of each column from the smallest to the largest, both included; timestamps in microseconds."""

    partition: tuple[float, float] = _ANY
    offset: tuple[float, float] = _ANY
    timestamp: tuple[float, float] = _ANY


def filter_bounds(filters: Iterable[Filter]) -> FilterBounds:
    """Return bounds that contain all rows that pass the filters.

    They may be wider, never narrower: Spark evaluates each filter again on the rows that it gets.
    """
    found = dict.fromkeys((PARTITION, OFFSET, TIMESTAMP), _ANY)
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) == 1 and attribute[0] in found:
            low, high = _range(each)
            first, last = found[attribute[0]]
            found[attribute[0]] = (max(first, low), min(last, high))
    return FilterBounds(**found)


def _range(each: Filter) -> tuple[float, float]:
    """Return the smallest and the largest value that passes a filter."""
    value: Any = getattr(each, "value", None)
    # NULL, which equals nothing, is none of them.
    values = [one for one in value if one is not None] if isinstance(each, In) else [value]
    numbers = [number for one in values if (number := _number(one)) is not None]
    if not numbers or len(numbers) < len(values):
        return _ANY
    if isinstance(each, EqualTo | In):
        return min(numbers), max(numbers)
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return numbers[0], math.inf
    if isinstance(each, LessThan | LessThanOrEqual):
        return -math.inf, numbers[0]
    return _ANY


def _number(value: object) -> float | None:
    """Return a value as columns have it, None for one that is not of their types."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND if value.tzinfo else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


_HEADER = StructType().add("key", "string").add("value", "binary")
COLUMNS = (
    StructType()
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestamp_type", "integer")
    .add("key", "binary")
    .add("value", "binary")
    .add("headers", ArrayType(_HEADER))
    .add("timestamp_ms", "long")
    .add("attributes", "short")
    .add("producer_id", "long")
    .add("producer_epoch", "short")
)
"""Those of korvet.lake.schema, which says what they mean."""

_ATTEMPTS_MAX = 5
"""To count records of a log that moves to the lake meanwhile: then all of it is the next batch."""


def register(session: SparkSession) -> None:
    """Register the format `korvet` with a session, and push filters down to it."""
    session.dataSource.register(KorvetDataSource)
    # Spark refuses sources that take filters if this is off.
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class KorvetDataSource(DataSource):
    """One topic; korvet.spark.options has its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "korvet"

    def schema(self) -> StructType:
        """Return all columns; a query may name some of them, with these types, by `.schema(...)`."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a topic; raises ValueError for wrong options."""
        return _BatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows a topic; raises ValueError for wrong options."""
        return _StreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return a writer of rows; raises ValueError for wrong options or columns, AdminError."""
        if overwrite:
            raise ValueError("records can only be appended: use mode append")
        return BatchSink(checked_options(sink_options(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return a writer of the rows of a stream; raises the same."""
        if overwrite:
            raise ValueError("records can only be appended: use output mode append")
        return StreamSink(checked_options(sink_options(self.options), schema))


class _Rows:
    """The rows of parts as Spark takes them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raise ValueError if the schema has other columns or types than COLUMNS."""
        self._options = options
        self._schema = schema
        known = {field.name: field.dataType for field in COLUMNS}
        for field in schema:
            if known.get(field.name) != field.dataType:
                raise ValueError(f"there is no column {field.name} of type {field.dataType.simpleString()}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, or none."""
        part = partition.value
        if not isinstance(part, ScanPart):
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with self._options.source.opened() as stores:
            reading = PartReader(stores, fail_on_data_loss=self._options.fail_on_data_loss)
            for rows in reading.rows(part):
                yield select_columns(rows, part.partition.index, schema)


class _BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = _Rows(options, schema)
        self._bounds = FilterBounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds = filter_bounds(filters)
        # Spark evaluates them again on each row that it reads.
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self._bounds
        low, high = wanted.partition
        with options.source.opened() as stores:
            logs = snapshots(stores, stores.topic(options.topic))
            begin = options.starting or ReadEdge("earliest")
            starts = _edge_offsets(stores, options.topic, logs, begin)
            ends = _edge_offsets(stores, options.topic, logs, options.ending)
            found: list[ScanPart] = []
            for log in logs:
                index = log.partition.index
                if not low <= index <= high:
                    continue
                first = int(max(starts[index], wanted.offset[0]))
                end = int(min(ends[index], wanted.offset[1] + 1))
                if options.fail_on_data_loss and starts[index] < log.start:
                    raise data_loss_error(log.topic.name, index, log, starts[index])
                wanted_range = ScanRange(
                    first, end, TimestampRange(*wanted.timestamp), options.records_per_partition
                )
                found += scan_parts(stores, log, wanted_range)
            return _inputs(stores, found) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


def _inputs(stores: LakeStores, parts: Iterable[ScanPart]) -> list[InputPartition]:
    """Return Spark's tasks for parts in an order in which those that run at once read different nodes of Redis."""
    return [InputPartition(part) for part in alternating(stores.by_node(parts))]


def _edge_offsets(
    stores: LakeStores, topic: str, logs: Sequence[PartitionSnapshot], place: ReadEdge
) -> dict[int, int]:
    """Return where reading begins or ends in each partition.

    Raises ValueError if offsets of some are missing, or of some that do not exist are given.
    """
    indexes = {log.partition.index for log in logs}
    if place.offsets is not None and place.offsets.keys() != indexes:
        given = sorted(place.offsets)
        raise ValueError(f"{topic} has {len(logs)} partitions, but offsets are given for {given}")
    found = {}
    for log in logs:
        if place.timestamp is not None:
            offset = first_offset_from(stores, log, place.timestamp)
            found[log.partition.index] = log.end if offset is None else offset
            continue
        offset = EARLIEST if place.edge == "earliest" else LATEST
        if place.offsets is not None:
            offset = place.offsets[log.partition.index]
        found[log.partition.index] = {EARLIEST: log.start, LATEST: log.end}.get(offset, offset)
    return found


class _StreamPosition(NamedTuple):
    """How far a stream has read: the offset that follows, for each partition of one incarnation of a topic."""

    topic_id: str
    offsets: dict[int, int]

    @classmethod
    def of(cls, checkpoint: Mapping[str, object]) -> _StreamPosition:
        """Return the position in a checkpoint; raises ValueError if that is of another source."""
        match checkpoint:
            case {"topic_id": str() as topic_id, "offsets": dict() as offsets}:
                return cls(topic_id, {int(partition): offset for partition, offset in offsets.items()})
        raise ValueError(f"a checkpoint of another source: {checkpoint}")

    def checkpoint(self) -> dict[str, object]:
        """Return the position for a checkpoint: the same position is the same text."""
        return {
            "topic_id": self.topic_id,
            "offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())},
        }


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a topic. Commits do nothing: positions are in Spark's checkpoints only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = _Rows(options, schema)
        self._last: _StreamPosition | None = None
        self._held: Mapping[int, int] | None = None
        """The newest offsets of the checkpoint: replicas of Redis had what is below."""

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        with self._options.source.opened() as stores:
            logs = self._logs(stores)
            begin = self._options.starting or ReadEdge("latest")
            offsets = _edge_offsets(stores, self._options.topic, logs, begin)
            return _StreamPosition(logs[0].topic.id, offsets).checkpoint()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        count = self._options.records_per_trigger
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._last = self._end()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        began = _StreamPosition.of(start)
        self._held = began.offsets
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends: dict[int, int] = {}
        with self._options.source.opened() as stores:
            for attempts_left in reversed(range(_ATTEMPTS_MAX)):
                left, ends = self._left(self._logs(stores, began), began)
                firsts = dict(ends)
                # A stream that gets no further has read all there is, Spark concludes, and may end it.
                ends |= self._shares(stores, left, count if attempts_left else None)
                if ends != firsts or not left:
                    break
                # The records to count have moved to the lake meanwhile.
        return _StreamPosition(began.topic_id, ends).checkpoint()

    def _left(
        self, logs: Sequence[PartitionSnapshot], began: _StreamPosition
    ) -> tuple[dict[int, tuple[PartitionSnapshot, int, int]], dict[int, int]]:
        """Return the ranges that are left to read, and the position of each partition."""
        left: dict[int, tuple[PartitionSnapshot, int, int]] = {}
        ends: dict[int, int] = {}
        for log in logs:
            index = log.partition.index
            first = ends[index] = max(began.offsets.get(index, 0), log.start)
            end = log.end if self._last is None else min(self._last.offsets.get(index, 0), log.end)
            if first < end:
                left[index] = (log, first, end)
        return left, ends

    def _shares(
        self, stores: LakeStores, left: Mapping[int, tuple[PartitionSnapshot, int, int]], count: int | None
    ) -> dict[int, int]:
        """Return how far to read each range for `count` records together, None for all of them."""
        if count is None:
            return {index: end for index, (_, _, end) in left.items()}
        ends: dict[int, int] = {}
        ranges = sorted(left.items(), key=lambda each: each[1][2] - each[1][1])
        for place, (index, (log, first, end)) in enumerate(ranges):
            # Each gets its share, and what those before it did not need; none is ever left out.
            share = max(count // (len(left) - place), 1)
            ends[index] = min(offset_after(stores, log, first, share), end)
            count -= min(share, ends[index] - first)
        return ends

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        return self._end().checkpoint()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        began, ended = _StreamPosition.of(start), _StreamPosition.of(end)
        self._held = ended.offsets
        with self._options.source.opened() as stores:
            found: list[ScanPart] = []
            for log in self._logs(stores, began):
                index = log.partition.index
                first, stop = began.offsets.get(index, log.start), ended.offsets.get(index, 0)
                wanted_range = ScanRange(first, stop, records_max=self._options.records_per_partition)
                found += scan_parts(stores, log, wanted_range)
            return _inputs(stores, found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _end(self) -> _StreamPosition:
        with self._options.source.opened() as stores:
            logs = self._logs(stores)
            return _StreamPosition(logs[0].topic.id, {log.partition.index: log.end for log in logs})

    def _logs(self, stores: LakeStores, began: _StreamPosition | None = None) -> list[PartitionSnapshot]:
        """Return the logs of the topic; raises LakeError if it is not the one that a stream has begun with."""
        options = self._options
        topic = stores.topic(options.topic)
        if began is not None and began.topic_id != topic.id:
            message = f"{topic.name} was deleted and re-created (id {topic.id}, not {began.topic_id})"
            raise LakeError(f"{message}: begin with a new checkpoint")
        logs = snapshots(stores, topic, self._held)
        if began is not None and options.fail_on_data_loss:
            for log in logs:
                first = began.offsets.get(log.partition.index, log.start)
                if not log.start <= first <= log.end:
                    raise data_loss_error(log.topic.name, log.partition.index, log, first)
        return logs
