"""Writing with the data source `korvet`: rows of DataFrames as records, through a broker.

Each task is an idempotent producer of its own: what it sends twice is appended once. A task that Spark runs again
starts over, and what the former one had sent stays: at least once, as with Spark's Kafka sink. With `exactly.once` a
task sends nothing itself (see `exactly_once`).

    frame.write.format("korvet").option("bootstrap.servers", ADDRESS).option("topic", NAME).mode("append").save()
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, StringType, StructType

from korvet.admin.client import AdminClient
from korvet.admin.producer import IdempotentProducer, batch_bytes_max, new_identity
from korvet.admin.types import TopicPartition
from korvet.errors import LakeError
from korvet.lake.encoding import (
    BATCH_BYTES,
    NO_KEY,
    PRODUCED,
    Partitions,
    batch_ends,
    by_partition,
    concat_rows,
    encode_batch,
    partitions_of,
)
from korvet.lake.schema import HEADERS, KEY, PARTITION, TIMESTAMP, VALUE
from korvet.spark.exactly_once import (
    Queues,
    StagedRows,
    StagedTransaction,
    StageFile,
    commit,
    discard,
    send,
    sink_client,
    stage_directory,
)
from korvet.spark.options import SinkOptions

TOPIC = "topic"
_HELD_BYTES = 4 * 1024 * 1024
"""Of rows, as Arrow, that a task collects before it sends: enough for large batches of several partitions."""

_TEXT_OR_BYTES = ("string", "binary")
_COLUMNS = {
    KEY: _TEXT_OR_BYTES,
    VALUE: _TEXT_OR_BYTES,
    HEADERS: ("array<struct<key:string,value:binary>>",),
    TOPIC: ("string",),
    PARTITION: ("int",),
    TIMESTAMP: ("timestamp",),
}
"""The columns that a record is made of, each with the types that it may have, as SQL calls them."""


def checked_options(options: SinkOptions, schema: StructType) -> SinkOptions:
    """Return the options; raises ValueError if the columns do not make a record, or there is no such topic.

    Raises AdminError if no broker answers.
    """
    for field in schema:
        types = _COLUMNS.get(field.name)
        if types is None:
            raise ValueError(f"unknown column {field.name}; a record has {', '.join(_COLUMNS)}")
        if _type_name(field.dataType) not in types:
            is_type = field.dataType.simpleString()
            raise ValueError(f"column {field.name} is {is_type}: it has to be {' or '.join(types)}")
    if VALUE not in schema.names:
        raise ValueError(f"there is no column {VALUE}")
    if options.topic is None and TOPIC not in schema.names:
        raise ValueError(f"the option {TOPIC} is required, or a column of that name")
    if options.topic is not None:
        with sink_client(options) as client:
            _partition_count(client, options.topic)
    return options


def _type_name(kind: DataType) -> str:
    """Return a type's name: a string of any collation is a string."""
    if isinstance(kind, StringType):
        return "string"
    return kind.simpleString()


class _Sent(WriterCommitMessage):
    """A task has sent all of its rows."""


class _Sink:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task, or stage them; returns when all are appended, or in a file."""
        options = self._options
        with contextlib.ExitStack() as closing:
            # Batches are sent while rows become the next ones; each client is used by one thread.
            metadata_client = closing.enter_context(sink_client(options))
            output: StageFile | _TaskProducer
            if options.exactly_once is None:
                output = _TaskProducer(closing.enter_context(sink_client(options)))
            else:
                file = StageFile(options.exactly_once.staging, stage_directory(options.exactly_once))
                output = closing.enter_context(file)
            # After a failure the sender ends first: a file that it opened later would be left.
            sender = closing.enter_context(ThreadPoolExecutor(1))
            sending: Future[None] | None = None
            for queues in _WriteTask(options, metadata_client).queues(iterator):
                if sending is not None:
                    sending.result()
                sending = sender.submit(output.append, queues)
            if sending is not None:
                sending.result()
        return output.finished()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        """Write what tasks have staged, if they did: a batch of a stream once, however often Spark repeats it."""
        once = self._options.exactly_once
        if once is not None:
            commit(self._options, StagedTransaction.of(once, _staged(messages), batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: ARG002, N803 - Spark's
        """Delete what tasks have staged, if they did."""
        if self._options.exactly_once is not None:
            discard(self._options.exactly_once.staging, _staged(messages))


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame."""


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return what tasks have staged; a task that failed has no message."""
    return [message for message in messages if isinstance(message, StagedRows)]


class _TaskProducer:
    """Sends what one task writes, as a producer of its own."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._producer: IdempotentProducer | None = None

    def append(self, queues: Queues) -> None:
        if self._producer is None:
            self._producer = IdempotentProducer(self._client, new_identity(self._client))
        send(self._producer, queues)

    def finished(self) -> WriterCommitMessage:
        return _Sent()


class _TargetTopic(NamedTuple):
    """A topic that rows go to: how many partitions it has, and how large a batch it takes."""

    partitions: int
    bytes_max: int


class _WriteTask:
    """Rows of one task, collected until they are worth sending."""

    def __init__(self, options: SinkOptions, metadata_client: AdminClient) -> None:
        self._options = options
        self._metadata_client = metadata_client
        self._topics: dict[str, _TargetTopic] = {}
        self._held: dict[str, list[tuple[pa.RecordBatch, Partitions]]] = {}
        self._held_bytes = 0
        # Rows without a key go to one partition after the other, batch by batch; tasks start at different ones.
        self._turns = itertools.count(time.monotonic_ns())

    def queues(self, rows_of: Iterator[pa.RecordBatch]) -> Iterator[Queues]:
        """Yield all rows as batches, as many at once as are worth sending."""
        for rows in rows_of:
            for topic, chunk in _by_topic(rows, self._options.topic):
                records = _records(chunk)
                partitions = self._partitions(topic, chunk, records)
                self._held.setdefault(topic, []).append((records, partitions))
                self._held_bytes += records.nbytes
            if self._held_bytes >= _HELD_BYTES:
                yield self._held_batches()
        yield self._held_batches()

    def _held_batches(self) -> Queues:
        """Return the rows that are held as batches, and hold none."""
        queues: dict[TopicPartition, list[bytes]] = {}
        for topic, held in self._held.items():
            rows = concat_rows([held_rows for held_rows, _ in held])
            partitions = np.concatenate([held_rows for _, held_rows in held])
            for partition, chunk in by_partition(rows, partitions).items():
                ends = batch_ends(chunk, bytes_max=self._topics[topic].bytes_max)
                queues[TopicPartition(topic, partition)] = [
                    encode_batch(chunk.slice(start, stop - start), self._options.codec)
                    for start, stop in itertools.pairwise([0, *ends])
                ]
        self._held, self._held_bytes = {}, 0
        return queues

    def _partitions(self, topic: str, rows: pa.RecordBatch, records: pa.RecordBatch) -> Partitions:
        """Return the partition of each row: the one it names, else that of its key, else any."""
        known = self._topics.get(topic)
        if known is None:
            count = _partition_count(self._metadata_client, topic)
            limit = batch_bytes_max(self._metadata_client, topic) or BATCH_BYTES
            known = self._topics[topic] = _TargetTopic(count, min(BATCH_BYTES, limit))
        indexes = partitions_of(records.column(KEY), known.partitions)
        indexes[indexes == NO_KEY] = next(self._turns) % known.partitions
        if PARTITION in rows.schema.names:
            named = rows.column(PARTITION)
            given = named.fill_null(NO_KEY).to_numpy(zero_copy_only=False)
            wrong = (~np.asarray(named.is_null())) & ((given < 0) | (given >= known.partitions))
            if wrong.any():
                raise LakeError(f"there is no partition {topic}:{given[wrong][0]}")
            indexes = np.where(given == NO_KEY, indexes, given)
        return indexes


def _partition_count(client: AdminClient, topic: str) -> int:
    """Return how many partitions a topic has; raises ValueError for one that does not exist, AdminError."""
    topology = client.topology([topic])
    if topic in topology.failed:
        raise ValueError(str(topology.failed[topic]))
    return len(topology.partitions[topic])


def _by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield rows by the topics that they go to; raises LakeError for rows that name none."""
    if topic is not None:
        yield topic, rows
        return
    names = rows.column(TOPIC)
    if names.null_count:
        raise LakeError(f"column {TOPIC} is null in some rows: set the option {TOPIC}")
    encoded_names = names.dictionary_encode()
    indexes = encoded_names.indices.to_numpy()
    for place, name in enumerate(encoded_names.dictionary.to_pylist()):
        yield name, rows.filter(pa.array(indexes == place))


def _records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in the columns of PRODUCED; those without a timestamp get the current time. Raises LakeError."""
    count = rows.num_rows
    columns = []
    for field in PRODUCED:
        if field.name in rows.schema.names and field.name in _COLUMNS:
            column = rows.column(field.name)
            if field.name == HEADERS and column.flatten().field(0).null_count:
                raise LakeError(f"column {HEADERS} has a header without a key")
            column = column.cast(field.type)
        elif field.nullable:
            column = pa.nulls(count, field.type)
        else:
            column = pa.array(np.zeros(count, dtype=np.int64))
        if field.name == TIMESTAMP:
            column = column.fill_null(pa.scalar(time.time_ns() // 1_000_000 * 1000, field.type))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=PRODUCED)
