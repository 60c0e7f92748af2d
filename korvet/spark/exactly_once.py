"""Writing each row once: tasks stage batches in files, and the driver writes the files in one transaction.

A task that Spark runs again writes another file; only files reported to the driver count. With the records the
transaction commits the number of what was written, as an offset of a consumer group. A driver first takes over the
transactional id: that fences the driver before, and aborts what it has left open, so the group says then whether the
same number was committed. Spark repeats a batch of a stream until its checkpoint has it, and only the last one.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.offsets import CommittedOffset
from korvet.admin.producer import IdempotentProducer, TransactionalProducer
from korvet.admin.types import TopicPartition
from korvet.errors import KafkaError, LakeError
from korvet.lake.files import filesystem
from korvet.lake.replay_state import FENCED
from korvet.lake.table import Lake, lake_errors
from korvet.protocol.records.batch import check_batch
from korvet.spark.options import ExactlyOnce, SinkOptions

Queues: TypeAlias = Mapping[TopicPartition, Sequence[bytes]]
"""Batches of partitions, those of each in their order."""

_PREFIX = "korvet-sink."
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark's tasks know of the stream that they belong to. The id is kept in its checkpoint."""

_SENT_BYTES = 8 * 1024 * 1024
"""Read from files at once: batches of several partitions, which are sent side by side."""

_TIMEOUT = "transaction.timeout.ms"

_WRITTEN_BYTES = 256 * 1024


class StagedBatch(NamedTuple):
    """The next bytes of a file: a batch for a partition."""

    topic: str
    partition: int
    size_bytes: int


class StagedRows(WriterCommitMessage):
    """What a task has staged: the batches in the file at `path`, which is not there if there are none."""

    def __init__(self, path: str, application: str, batches: Sequence[StagedBatch]) -> None:
        self.path = path
        self.application = application
        self.batches = batches


class StagedTransaction(NamedTuple):
    """What is written at once: the rows of tasks in their order, as number `version` of an application."""

    application: str
    version: int
    staged: Sequence[StagedRows]

    @classmethod
    def of(cls, given: ExactlyOnce, staged: Sequence[StagedRows], version: int | None) -> StagedTransaction:
        """Return the transaction of a stream's batch `version`, None: of the options' version."""
        name = next((task.application for task in staged), given.application or "")
        return cls(name, given.version if version is None else version, staged)


def stage_directory(given: ExactlyOnce) -> str:
    """Return where this task stages its rows: `APPLICATION/VERSION`. Raises LakeError outside of a task of a stream."""
    if given.application is not None:
        return f"{given.application}/{given.version}"
    task = TaskContext.get()
    query, batch = (None if task is None else task.getLocalProperty(name) for name in (_QUERY, _BATCH))
    if query is None or batch is None:
        raise LakeError("this is no task of a stream: Spark gives no id of the query")
    return f"{query}/{batch}"


class StageFile:
    """The file of one task, a context manager: after a failure nothing of it is left."""

    def __init__(self, staging: Lake, directory: str) -> None:
        """Write a new file in `directory`, once there is a batch."""
        self._files = _files(staging)
        self._application = directory.partition("/")[0]
        self._path = f"{directory}/{uuid.uuid4()}"
        self._stream: pa.NativeFile | None = None
        self._batches: list[StagedBatch] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is None:
            return
        try:
            with lake_errors(self._path):
                self._stream.close()
        finally:
            if kind is not None:
                _delete(self._files, [self._path])

    def append(self, queues: Queues) -> None:
        """Write batches; raises LakeError."""
        with lake_errors(self._path):
            for (topic, partition), batches in queues.items():
                for batch in batches:
                    if self._stream is None:
                        # deltalake's own stream takes nothing else than what comes out of a buffer of Arrow's.
                        to = self._files.open_output_stream(self._path)
                        self._stream = pa.BufferedOutputStream(to, _WRITTEN_BYTES)
                    self._stream.write(batch)
                    self._batches.append(StagedBatch(topic, partition, len(batch)))

    def finished(self) -> StagedRows:
        """Return what the file has."""
        return StagedRows(self._path, self._application, self._batches)


def commit(options: SinkOptions, transaction: StagedTransaction) -> None:
    """Write a transaction unless it was written before, and delete its files.

    Raises LakeError if it cannot be written, or another one was written since; AdminError. Nothing of it, or all, is
    written then; the same call again finds out.
    """
    assert options.exactly_once is not None  # noqa: S101 - as the caller has checked
    if any(task.batches for task in transaction.staged):
        name = f"{_PREFIX}{transaction.application}"
        try:
            with sink_client(options) as client:
                producer = TransactionalProducer(client, name, options.exactly_once.timeout_ms)
                if not _is_written(client, name, transaction.version):
                    _write(producer, name, options.exactly_once.staging, transaction)
        except (BrokerError, LakeError) as error:
            cause = error if isinstance(error, BrokerError) else error.__cause__
            if isinstance(cause, BrokerError) and cause.code in FENCED:
                why = f"{name} was taken over by another driver, or its transaction took too long"
                raise LakeError(f"{why} ({_TIMEOUT}): {error}") from error
            raise
    _tidy(options.exactly_once.staging, transaction)


def _is_written(client: AdminClient, name: str, version: int) -> bool:
    """Return whether a version was committed. Raises LakeError if it was followed by another one; AdminError."""
    committed = client.offsets.committed(name, stable=True)
    following = max((item.offset for item in committed.values()), default=0)
    if following > version + 1:
        raise LakeError(
            f"{name} has written number {following - 1} already, and {version} is older: it was begun again from an"
            " older checkpoint, or runs elsewhere too; begin with a new checkpoint, or a larger version"
        )
    return following > version


def _write(producer: TransactionalProducer, name: str, staging: Lake, transaction: StagedTransaction) -> None:
    topics = {batch.topic for rows in transaction.staged for batch in rows.batches}
    try:
        for queues in _queues(_files(staging), transaction.staged):
            send(producer, queues)
        # In each of the topics: the progress is lost only with all of them.
        offset = CommittedOffset(transaction.version + 1)
        producer.commit(name, {TopicPartition(topic, 0): offset for topic in topics})
    except (AdminError, LakeError):
        # Consumers need not wait for the timeout of what is open. A driver that is fenced is refused.
        with contextlib.suppress(AdminError):
            producer.abort()
        raise


def _queues(files: FileSystem, staged: Sequence[StagedRows]) -> Iterator[Queues]:
    """Yield the batches of files, as many at once as are worth sending; raises LakeError for one that is damaged."""
    queues: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
    held_bytes = 0
    for rows in staged:
        if not rows.batches:
            continue
        with lake_errors(rows.path), files.open_input_stream(rows.path) as stream:
            for topic, partition, size_bytes in rows.batches:
                batch = stream.read(size_bytes)
                try:
                    # Its CRC is computed again for the producer, which would hide that it was damaged.
                    check_batch(batch, size_bytes)
                except KafkaError as error:
                    raise LakeError(f"{rows.path} was damaged: {error}") from error
                queues[TopicPartition(topic, partition)].append(batch)
                held_bytes += size_bytes
                if held_bytes >= _SENT_BYTES:
                    yield queues
                    queues, held_bytes = defaultdict(list), 0
    yield queues


def send(producer: IdempotentProducer, queues: Queues) -> None:
    """Append the batches of each partition in their order; raises LakeError for one that is refused."""
    for at in range(max(map(len, queues.values()), default=0)):
        batches = {place: queue[at] for place, queue in queues.items() if at < len(queue)}
        for place, outcome in producer.send(batches).items():
            if isinstance(outcome, AdminError):
                raise LakeError(f"{place} did not take records: {outcome}") from outcome


def sink_client(options: SinkOptions) -> AdminClient:
    """Return a client of the brokers that rows go to."""
    return AdminClient(options.bootstrap_servers, timeout=options.timeout, security=options.security)


def discard(staging: Lake, staged: Iterable[StagedRows]) -> None:
    """Delete the files of tasks, as far as that is possible; others of the same batch may be another driver's."""
    _delete(_files(staging), [task.path for task in staged if task.batches])


def _tidy(staging: Lake, transaction: StagedTransaction) -> None:
    """Delete all files of a written transaction and of earlier ones, files of killed tasks included."""
    if not transaction.application:
        return
    files = _files(staging)
    with contextlib.suppress(OSError):
        infos = files.get_file_info(
            FileSelector(transaction.application, recursive=True, allow_not_found=True)
        )
        of_version = {info.path: info.path.split("/")[1] for info in infos}
        done = [path for path, number in of_version.items() if int(number) <= transaction.version]
        _delete(files, [info.path for info in infos if info.type == FileType.File and info.path in done])
        if "://" not in staging.path:
            # deltalake knows files only; here they are in directories, and what was not finished is not listed.
            for number in {of_version[path] for path in done}:
                shutil.rmtree(Path(staging.path, transaction.application, number), ignore_errors=True)


def _delete(files: FileSystem, paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            files.delete_file(path)


def _files(staging: Lake) -> FileSystem:
    with lake_errors(staging.path):
        if "://" not in staging.path:
            Path(staging.path).mkdir(parents=True, exist_ok=True)
        return filesystem(staging.path, staging.storage_options)
