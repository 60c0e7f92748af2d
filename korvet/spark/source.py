"""The PySpark data source `korvet`: topics as DataFrames over both tiers, in batches and as streams.

Offsets and records go from Redis and the lake to Spark's Python workers as Arrow, whatever state brokers are in: none
is used. Reading changes nothing: positions are only in Spark's checkpoints, and nothing is trimmed. Writing is in
`sink`.

    spark.read.format("korvet").options(**{"redis.url": URL, "lake": DIRECTORY, "topic": NAME}).load()
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
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
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import ArrayType, StructType

from korvet.cluster.pipelines import QueryPosition
from korvet.errors import LakeError
from korvet.lake.scan import (
    LOSS_REMEDY,
    PartitionSnapshot,
    PartReader,
    ScanPart,
    ScanRange,
    TimestampRange,
    bare_rows,
    count_records,
    data_loss_error,
    first_offset_from,
    offset_after,
    scan_parts,
    snapshots,
    snapshots_as_of,
    split_parts,
)
from korvet.lake.schema import OFFSET, PARTITION, TIMESTAMP, TIMESTAMP_TYPE, ints, repeated
from korvet.lake.source import LakeStores, SourceTopic
from korvet.lake.tasks import alternating
from korvet.spark.options import (
    EARLIEST,
    LATEST,
    ReadEdge,
    ReadOptions,
    TopicChoice,
    read_options,
    sink_options,
)
from korvet.spark.position import (
    DataLoss,
    PartitionKey,
    StreamPosition,
    counts_losses,
    lost_before,
    lost_within,
)
from korvet.topics.types import Partition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


_ANY = (-math.inf, math.inf)


class FilterBounds(NamedTuple):
    """Values of each column from the smallest to the largest, both included; timestamps in microseconds."""

    partition: tuple[float, float] = _ANY
    offset: tuple[float, float] = _ANY
    timestamp: tuple[float, float] = _ANY
    topics: frozenset[str] | None = None
    """Names of topics, None for all."""


def filter_bounds(filters: Iterable[Filter]) -> FilterBounds:
    """Return bounds that contain all rows that pass the filters.

    They may be wider, never narrower: Spark evaluates each filter again on the rows that it gets.
    """
    bounds = dict.fromkeys((PARTITION, OFFSET, TIMESTAMP), _ANY)
    topics: frozenset[str] | None = None
    for condition in filters:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(attribute) == 1 and attribute[0] in bounds:
            low, high = _range(condition)
            first, last = bounds[attribute[0]]
            bounds[attribute[0]] = (max(first, low), min(last, high))
        elif attribute == (TOPIC,) and isinstance(condition, EqualTo | In):
            names = frozenset(map(str, condition.value if isinstance(condition, In) else [condition.value]))
            topics = names if topics is None else topics & names
    return FilterBounds(**bounds, topics=topics)


def _range(condition: Filter) -> tuple[float, float]:
    """Return the smallest and the largest value that passes a filter."""
    value: Any = getattr(condition, "value", None)
    # NULL, which equals nothing, is none of them.
    values = [one for one in value if one is not None] if isinstance(condition, In) else [value]
    numbers = [number for one in values if (number := _number(one)) is not None]
    if not numbers or len(numbers) < len(values):
        return _ANY
    if isinstance(condition, EqualTo | In):
        return min(numbers), max(numbers)
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        return numbers[0], math.inf
    if isinstance(condition, LessThan | LessThanOrEqual):
        return -math.inf, numbers[0]
    return _ANY


def _number(value: object) -> float | None:
    """Return a value as columns have it, None for one that is not of their types."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND if value.tzinfo else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


TOPIC, SPARKS_TIMESTAMP_TYPE = "topic", "timestampType"
"""Columns of Spark's Kafka source that tables have not, or by another name."""

_KNOWN = (TOPIC, PARTITION)
"""Columns that are the same in all rows of a part."""

_COLUMNS_OF_TABLES = {SPARKS_TIMESTAMP_TYPE: TIMESTAMP_TYPE}

_HEADER = StructType().add("key", "string").add("value", "binary")
COLUMNS = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add(TOPIC, "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add(SPARKS_TIMESTAMP_TYPE, "integer")
    .add("headers", ArrayType(_HEADER))
    .add("timestamp_ms", "long")
    .add("attributes", "short")
    .add("producer_id", "long")
    .add("producer_epoch", "short")
    # The name of timestampType until 0.1, for one release more.
    .add("timestamp_type", "integer")
)
"""First those of Spark's Kafka source, in its order; korvet.lake.schema says what they mean."""

_Range: TypeAlias = tuple[PartitionSnapshot, int, int]
"""What is left of a log: from an offset up to another one."""

_ATTEMPTS_MAX = 5
"""To count records of a log that moves to the lake meanwhile: then all of it is the next batch."""


class KorvetDataSource(DataSource):
    """Topics; korvet.spark.options has the options, and pyspark_korvet is how Spark finds it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "korvet"

    def schema(self) -> StructType:
        """Return all columns; a query may name some of them, with these types, by `.schema(...)`."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of topics; raises ValueError for wrong options."""
        options = read_options(self.options)
        return _FilteredReader(options, schema) if options.push_filters else _BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows topics; raises ValueError for wrong options."""
        options = read_options(self.options)
        if options.as_of is not None:
            raise ValueError(
                "a stream follows topics as they are: versionAsOf and timestampAsOf are for batches"
            )
        return _StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return a writer of rows; raises ValueError for wrong options or columns, AdminError."""
        if overwrite:
            raise ValueError("records can only be appended: use mode append")
        from korvet.spark.sink import BatchSink, checked_options  # noqa: PLC0415 - what reads needs no client of brokers

        return BatchSink(checked_options(sink_options(self.options), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return a writer of the rows of a stream; raises the same."""
        if overwrite:
            raise ValueError("records can only be appended: use output mode append")
        from korvet.spark.sink import StreamSink, checked_options  # noqa: PLC0415 - the same

        return StreamSink(checked_options(sink_options(self.options, streaming=True), schema))


class _Rows:
    """The rows of parts as Spark takes them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raise ValueError if the schema has other columns or types than COLUMNS."""
        self._options = options
        self._schema = schema
        known = {field.name: field.dataType for field in COLUMNS}
        self._columns = [_COLUMNS_OF_TABLES.get(name, name) for name in schema.names if name not in _KNOWN]
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
            reading = PartReader(
                stores, columns=self._columns, fail_on_data_loss=self._options.fail_on_data_loss
            )
            for rows in reading.rows(part):
                columns = [_column(rows, part.partition, field) for field in schema]
                if columns:
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
                else:
                    yield bare_rows(rows.num_rows)


def _column(rows: pa.RecordBatch, partition: Partition, field: pa.Field) -> pa.Array:
    match field.name:
        case "topic":
            return repeated(partition.topic, rows.num_rows)
        case "partition":
            return ints(np.full(rows.num_rows, partition.index, dtype=np.int32))
    return rows.column(_COLUMNS_OF_TABLES.get(field.name, field.name)).cast(field.type)


class _BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = _Rows(options, schema)
        self._bounds = FilterBounds()

    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self._bounds
        low, high = wanted.partition
        with options.source.opened() as stores:
            logs = [
                log
                for topic in _topics(stores, options.topics)
                for log in (
                    snapshots(stores, topic, tiers=options.tiers)
                    if options.as_of is None
                    else snapshots_as_of(stores, topic, options.as_of)
                )
            ]
            begin = options.starting or ReadEdge("earliest")
            starts = _edge_offsets(stores, logs, begin, after_end=options.after_end)
            ends = _edge_offsets(stores, logs, options.ending, after_end=True)
            parts: list[ScanPart] = []
            for log in logs:
                key = PartitionKey.of(log)
                if not low <= log.partition.index <= high or key.topic not in (wanted.topics or [key.topic]):
                    continue
                first = int(max(starts[key], wanted.offset[0]))
                end = int(min(ends[key], wanted.offset[1] + 1))
                if options.fail_on_data_loss and starts[key] < log.start:
                    raise data_loss_error(*key, log, starts[key])
                wanted_range = ScanRange(
                    first, end, TimestampRange(*wanted.timestamp), options.records_per_partition
                )
                parts += scan_parts(stores, log, wanted_range)
            return _inputs(stores, split_parts(parts, options.partitions_min)) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class _FilteredReader(_BatchReader):
    """Reads only what may pass the filters of a query on topic, partition, offset and timestamp.

    Spark 4.2 and 4.3 keep one result of `partitions` for each DataFrame, that of the filters which they pushed last,
    and read it for every use of the DataFrame. So this reader is right only for one that is used once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds = filter_bounds(filters)
        # Spark evaluates them again on each row that it reads.
        return filters


def _inputs(stores: LakeStores, parts: Iterable[ScanPart]) -> list[InputPartition]:
    """Return Spark's tasks for parts, ordered so that simultaneous tasks read different nodes of Redis."""
    return [InputPartition(part) for part in alternating(stores.by_node(parts))]


def _topics(stores: LakeStores, choice: TopicChoice, *, may_lack: bool = False) -> list[SourceTopic]:
    """Return the topics that are read, with those of their partitions.

    Raises ValueError for a partition that is not there, and unless some topics `may_lack` for a topic.
    """
    if choice.pattern is not None:
        return stores.matching(choice.pattern)
    topics = stores.matching(_any_of(choice.names)) if may_lack else stores.named(choice.names)
    if choice.partitions is None:
        return topics
    for topic in topics:
        unknown = [at for at in choice.partitions[topic.name] if not 0 <= at < len(topic.partitions)]
        if unknown:
            raise ValueError(f"{topic.name} has no partition {unknown[0]}")
    return [
        topic._replace(
            partitions=tuple(
                partition
                for partition in topic.partitions
                if partition.index in choice.partitions[topic.name]
            )
        )
        for topic in topics
    ]


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


def _edge_offsets(
    stores: LakeStores, logs: Sequence[PartitionSnapshot], edge: ReadEdge, *, after_end: bool
) -> dict[PartitionKey, int]:
    """Return where reading begins or ends in each partition.

    Raises ValueError if offsets or timestamps of some are missing, or of some that are not read are given; and without
    `after_end` if a partition has no record from its timestamp on.
    """
    given = edge.offsets or edge.timestamps
    if given is not None:
        keys = {PartitionKey(topic, index) for topic, of in given.items() for index in of}
        if other := sorted(keys ^ {PartitionKey.of(log) for log in logs}):
            problem = "is not read" if other[0] in keys else "is missing"
            raise ValueError(
                f"offsets and timestamps are given for all partitions: {'-'.join(map(str, other[0]))} {problem}"
            )
    offsets: dict[PartitionKey, int] = {}
    for log in logs:
        key = PartitionKey.of(log)
        timestamp = edge.timestamp if edge.timestamps is None else edge.timestamps[key.topic][key.number]
        if timestamp is not None:
            offset = first_offset_from(stores, log, timestamp)
            if offset is None and not after_end:
                raise ValueError(
                    f"{key.topic}-{key.number} has no record from timestamp {timestamp} on"
                    " (startingOffsetsByTimestampStrategy=latest begins at its end)"
                )
            offsets[key] = log.end if offset is None else offset
            continue
        offset = EARLIEST if edge.edge == "earliest" else LATEST
        if edge.offsets is not None:
            offset = edge.offsets[key.topic][key.number]
        offsets[key] = {EARLIEST: log.start, LATEST: log.end}.get(offset, offset)
    return offsets


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. Commits do nothing: positions are in Spark's checkpoints only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._rows = _Rows(options, schema)
        self._last: StreamPosition | None = None
        self._held: StreamPosition | None = None
        """The newest offsets of the checkpoint: replicas of Redis had what is below."""
        self._passed: Mapping[PartitionKey, DataLoss] = {}
        """What was lost of the last batch after it was planned: the next one counts it."""
        self._triggered_at = monotonic()

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        with self._options.source.opened() as stores:
            logs = self._snapshots(stores, _topics(stores, self._options.topics))
            if self._options.position is not None:
                return self._from(json.loads(self._options.position), logs).checkpoint()
            begin = self._options.starting or ReadEdge("latest")
            offsets = _edge_offsets(stores, logs, begin, after_end=self._options.after_end)
            return StreamPosition.at(logs, offsets).checkpoint()

    def _from(self, position: Mapping[str, object], logs: Sequence[PartitionSnapshot]) -> StreamPosition:
        """Return a position of before for a stream that begins now: what was deleted since is lost."""
        began = self._position(position)
        starts = {PartitionKey.of(log): began.offset(PartitionKey.of(log), log.start) for log in logs}
        # A topic that was re-created is found by its id.
        now = {
            name: QueryPosition(began.topics.get(name, topic).id, topic.offsets)
            for name, topic in StreamPosition.at(logs, starts).topics.items()
        }
        return StreamPosition(began.topics | now)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        trigger = self._options.trigger
        if trigger.records_max is not None:
            return ReadMaxRows(trigger.records_max)
        return ReadAllAvailable() if trigger.records_min is None else ReadMinRows(trigger.records_min)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        last = self._options.last_position
        self._last = self._end() if last is None else self._position(json.loads(last))

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        began = self._position(start)
        self._held = began
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends: dict[PartitionKey, int] = {}
        logs: list[PartitionSnapshot] = []
        losses: Mapping[PartitionKey, DataLoss] = {}
        with self._options.source.opened() as stores:
            for attempts_left in reversed(range(_ATTEMPTS_MAX)):
                logs = self._logs(stores, began)
                losses = self._allowed(lost_before(began, logs))
                left, ends = self._left(logs, began, losses)
                # Once a stream is to read all there is, Spark waits for no more.
                if not isinstance(limit, ReadAllAvailable) and self._waits(stores, left):
                    break
                firsts = dict(ends)
                # A stream that gets no further has read all there is, Spark concludes, and may end it.
                ends |= self._shares(stores, left, count if attempts_left else None)
                if ends != firsts or not left:
                    self._triggered_at = monotonic()
                    break
                # The records to count have moved to the lake meanwhile.
        lost = began.losses()
        for key, loss in (*self._passed.items(), *losses.items()):
            if loss.first != loss.end:
                lost[key] = loss.counted(lost.get(key))
        return StreamPosition.at(logs, ends, lost).checkpoint()

    def _allowed(self, losses: Mapping[PartitionKey, DataLoss]) -> Mapping[PartitionKey, DataLoss]:
        """Return losses that a stream goes on with; raises LakeError if it must not."""
        if losses and self._options.fail_on_data_loss:
            raise next(iter(losses.values())).error()
        return losses

    def _waits(self, stores: LakeStores, left: Mapping[PartitionKey, _Range]) -> bool:
        """Return whether too few records are left for a batch, and the last one was not long ago."""
        trigger = self._options.trigger
        if trigger.records_min is None or self._last is not None:
            return False
        if monotonic() - self._triggered_at >= trigger.delay_s:
            return False
        missing = trigger.records_min
        for log, first, _ in left.values():
            missing -= count_records(stores, log, first, missing)
            if missing <= 0:
                return False
        return True

    def _left(
        self,
        logs: Sequence[PartitionSnapshot],
        began: StreamPosition,
        losses: Mapping[PartitionKey, DataLoss],
    ) -> tuple[dict[PartitionKey, _Range], dict[PartitionKey, int]]:
        """Return the ranges that are left to read, and the position of each partition."""
        left: dict[PartitionKey, _Range] = {}
        ends: dict[PartitionKey, int] = {}
        for log in logs:
            key = PartitionKey.of(log)
            first = ends[key] = losses[key].end if key in losses else began.offset(key, log.start)
            end = log.end if self._last is None else min(self._last.offset(key, 0), log.end)
            # A batch that counts losses of a partition reads nothing of it.
            if first < end and key not in losses and key not in self._passed:
                left[key] = (log, first, end)
        return left, ends

    def _shares(
        self, stores: LakeStores, left: Mapping[PartitionKey, _Range], count: int | None
    ) -> dict[PartitionKey, int]:
        """Return how far to read each range for `count` records together, None for all of them."""
        if count is None:
            return {key: end for key, (_, _, end) in left.items()}
        ends: dict[PartitionKey, int] = {}
        ranges = sorted(left.items(), key=lambda item: item[1][2] - item[1][1])
        for place, (key, (log, first, end)) in enumerate(ranges):
            # Each gets its share, and what those before it did not need; none is ever left out.
            share = max(count // (len(left) - place), 1)
            ends[key] = min(offset_after(stores, log, first, share), end)
            count -= min(share, ends[key] - first)
        return ends

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        return self._end().checkpoint()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        began, ended = self._position(start), self._position(end)
        self._held = ended
        options = self._options
        with options.source.opened() as stores:
            parts: list[ScanPart] = []
            logs = self._logs(stores, began)
            self._passed = self._allowed(lost_within(began, ended, logs))
            for log in logs:
                key = PartitionKey.of(log)
                topic = ended.topics.get(key.topic)
                if topic is None or topic.id != log.topic.id or counts_losses(began, ended, key):
                    continue
                first, stop = began.offset(key, log.start), ended.offset(key, 0)
                wanted_range = ScanRange(first, stop, records_max=options.records_per_partition)
                parts += scan_parts(stores, log, wanted_range)
            return _inputs(stores, split_parts(parts, options.partitions_min))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _position(self, checkpoint: Mapping[str, object]) -> StreamPosition:
        return StreamPosition.of(checkpoint, self._options.topics.names)

    def _end(self) -> StreamPosition:
        with self._options.source.opened() as stores:
            logs = self._snapshots(stores, _topics(stores, self._options.topics, may_lack=True))
            return StreamPosition.at(logs, {PartitionKey.of(log): log.end for log in logs})

    def _logs(self, stores: LakeStores, began: StreamPosition) -> list[PartitionSnapshot]:
        """Return the logs of the topics that are there; raises LakeError if one is gone that has to be there.

        One of a pattern may be deleted; one that is named may not.
        """
        choice = self._options.topics
        topics = _topics(stores, choice, may_lack=True)
        gone = sorted({*began.topics, *choice.names} - {topic.name for topic in topics})
        if gone and self._options.fail_on_data_loss:
            if choice.pattern is not None:
                gone = [topic.name for topic in stores.matching(_any_of(gone))]
            if gone:
                raise LakeError(
                    f"{gone[0]} was deleted, or is not read any more: what was not read of it is lost {LOSS_REMEDY}"
                )
        return self._snapshots(stores, topics)

    def _snapshots(self, stores: LakeStores, topics: Iterable[SourceTopic]) -> list[PartitionSnapshot]:
        held = {} if self._held is None else self._held.topics
        return [
            log
            for topic in topics
            for log in snapshots(
                stores,
                topic,
                # Offsets of a topic that was deleted mean nothing in one of the same name.
                held[topic.name].offsets if topic.name in held and held[topic.name].id == topic.id else None,
                self._options.tiers,
            )
        ]
