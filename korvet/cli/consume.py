"""`korvet consume`: writes records of topics to standard output, as text or JSON.

aiokafka reads them, from partitions of the caller's choice or those that a group assigns. Offsets may have gaps of any
size, as in compacted topics and with Korvet's offset.encoding=time, where they are made of the time: nothing here
counts records by offsets.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka
import click
import cramjam
import msgspec
from aiokafka.errors import CorruptRecordException, KafkaTimeoutError

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.types import LogSlice, TopicPartition, settled
from korvet.cli.options import (
    GROUP,
    TOPIC,
    ClusterCommand,
    ClusterTarget,
    connected,
    option,
    parse_time,
    partitions_option,
)
from korvet.cli.output import ProgressLine, json_flag, json_wanted, printable
from korvet.cli.records import (
    LONG,
    PLACEHOLDERS,
    VALUE,
    Formatter,
    ReadRecord,
    client_errors,
    client_options,
    format_json,
    formatter,
)
from korvet.errors import ErrorCode

_FORMS = "beginning, end, N, -N, a time as 2026-01-31T12:00:00Z, or @MS in ms since 1970"
_PLACEHOLDERS = ", ".join(f"%{letter} {meaning}" for letter, meaning in PLACEHOLDERS.items())
_OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"(?P<sign>[-@]?)(?P<digits>\d{1,19})", re.ASCII)
_WAIT_MS = 500
_RECORDS_AT_ONCE = 1000
_COMMIT_SECONDS = 1.0
_CLIENT_ID = "korvet-consume"
_UNREADABLE = (
    CorruptRecordException,
    UnicodeDecodeError,
    cramjam.DecompressionError,
    zlib.error,
    OSError,
    EOFError,
)
"""What aiokafka raises for a batch that does not decode, by kind of damage and codec."""

_Batches = Mapping[aiokafka.TopicPartition, Sequence[Any]]


class Start(NamedTuple):
    """Where to begin: at a time in ms since 1970, or EARLIEST or LATEST, unless at an offset or the `last` records."""

    timestamp: int = EARLIEST
    offset: int | None = None
    last: int | None = None


class Span(NamedTuple):
    """A part of a log: the offset of its first record, or of a later one if there is none, and its end (exclusive)."""

    begin: int
    end: int


_BEGINNING, _END = Start(EARLIEST), Start(LATEST)


@click.command(cls=ClusterCommand)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@partitions_option
@option("-o, --offset WHERE", f"Where to begin: {_FORMS}.", name="where")
@option("-g, --group NAME", "Read as a member of this group, and commit.", GROUP)
@option("-n, --max-records N", "End after N records.", click.IntRange(min=1))
@option(
    "--exit/--follow",
    "End at the current end of the log, or wait for more, which is the default.",
    name="exits",
)
@option("--format TEXT", f"How a record is written, with \\n and \\t: {_PLACEHOLDERS}.", name="template")
@option("-l, --long", "Write topic, partition, offset, time, key, value and headers of each.")
@json_flag("Write each as a line of JSON, which korvet produce --json reads.")
@option("--null TEXT", "Text for a key or value that is null.", default="", show_default=False)
def consume(
    cluster: ClusterTarget,
    topics: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of many kinds, by name
) -> None:
    """Write the records of topics to standard output, and wait for more until Ctrl-C.

    A number as WHERE is an offset, and -N the last N records of each partition. An offset outside the log becomes the
    nearest one inside. With --group reading continues at the committed offsets of the group, and WHERE (beginning or
    end) applies to partitions without one. A batch that does not decode is skipped, with a line on stderr. At a
    terminal, control characters in values are escaped.
    """
    form = _form(options)
    start = _parse_start(options["where"])
    group = options["group"]
    if group is not None and options["partitions"]:
        raise click.UsageError("--group and --partition exclude each other: a group assigns all partitions")
    if group is not None and start not in (_BEGINNING, _END):
        raise click.UsageError("--group continues at committed offsets: --offset is beginning or end")
    with connected(cluster) as admin:
        partitions = _partitions(admin, topics, options["partitions"])
        spans = {} if group is not None else _spans(admin, partitions, start, cluster.timeout)
    with ProgressLine(shown=not sys.stdout.isatty()) as progress, client_errors():
        output = _Output(form, progress, options["max_records"])
        if group is not None:
            reset = "earliest" if start is _BEGINNING else "latest"
            reading = _read_as_member(cluster, group, topics, output, reset=reset, exits=options["exits"])
        else:
            reading = _read_partitions(cluster, spans, output, exits=options["exits"])
        asyncio.run(reading)


def _form(options: Mapping[str, Any]) -> Formatter:
    """Return what writes a record as the flags say."""
    if (options["template"] is not None) + options["long"] + json_wanted() > 1:
        raise click.UsageError("--format, --long and --json exclude each other")
    if json_wanted():
        return lambda record: format_json(record).encode() + b"\n"
    template = options["template"]
    if template is None:
        template = LONG if options["long"] else VALUE
    try:
        return formatter(template, os.fsencode(options["null"]), terminal=sys.stdout.isatty())
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from error


def _parse_start(text: str | None) -> Start:
    if text is None or text == "beginning":
        return _BEGINNING
    if text == "end":
        return _END
    match = _NUMBER.fullmatch(text)
    number = int(match["digits"]) if match else 0
    if match and number <= _OFFSET_MAX:
        return {"": Start(offset=number), "-": Start(LATEST, last=number), "@": Start(number)}[match["sign"]]
    try:
        return Start(parse_time(text))
    except ValueError as error:
        raise click.UsageError(f"--offset takes {_FORMS}; not {text!r}") from error


def _partitions(
    admin: AdminClient, topics: tuple[str, ...], indexes: tuple[int, ...]
) -> list[TopicPartition]:
    """Return these partitions of the topics, by default all. Raises AdminError and ClickException."""
    topology = admin.topology(topics)
    for error in topology.failed.values():
        raise error
    partitions = [
        TopicPartition(topic, index)
        for topic in dict.fromkeys(topics)
        for index in dict.fromkeys(indexes or topology.partitions[topic])
    ]
    for topic, index in partitions:
        if index not in topology.partitions[topic]:
            subject = f"partition {TopicPartition(topic, index)}"
            raise click.ClickException(
                str(BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject=subject))
            )
    return partitions


def _spans(
    admin: AdminClient, partitions: Sequence[TopicPartition], start: Start, timeout: float
) -> dict[TopicPartition, Span]:
    """Return for each partition where to begin, and its current end. Raises AdminError."""
    first, end, timed = (
        settled(admin.offsets.at(dict.fromkeys(partitions, timestamp)))
        for timestamp in (EARLIEST, LATEST, start.timestamp)
    )
    spans = {}
    for key in partitions:
        low, high, begin = first[key].offset, end[key].offset, timed[key].offset
        if start.offset is not None:
            begin = start.offset
        elif start.last:
            wait_ms = int(timeout * 1000)
            begin = admin.records.offset_of_last(key, low, high, start.last, wait_ms=wait_ms)
        elif begin < 0:
            begin = high
        spans[key] = Span(min(max(begin, low), high), high)
    return spans


class _Output:
    """Standard output, for `records_max` records at most."""

    def __init__(self, form: Formatter, progress: ProgressLine, records_max: int | None) -> None:
        self._form = form
        self._progress = progress
        self._left = records_max

    @property
    def full(self) -> bool:
        return self._left == 0

    @property
    def records_max(self) -> int:
        """The most records to fetch at once."""
        return _RECORDS_AT_ONCE if self._left is None else min(self._left, _RECORDS_AT_ONCE)

    def add(self, records: Sequence[Any]) -> Sequence[Any]:
        """Write records up to the maximum and return those written. Raises BrokenPipeError."""
        records = records[: self._left]
        if records:
            sys.stdout.buffer.write(b"".join(self._form(_read(record)) for record in records))
            sys.stdout.buffer.flush()
            self._progress.add(len(records), sum(map(_size, records)))
        if self._left is not None:
            self._left -= len(records)
        return records


class _SkippingConsumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka carries no types
    """A consumer that commits nothing by itself, and skips batches that do not decode."""

    def __init__(self, cluster: ClusterTarget, **options: Any) -> None:  # noqa: ANN401 - of many kinds, by name
        options |= client_options(cluster)
        super().__init__(**options, client_id=_CLIENT_ID, enable_auto_commit=False)
        self._cluster = cluster

    async def records(self, records_max: int) -> _Batches:
        """Return the next records by partition; none after _WAIT_MS. Raises aiokafka's KafkaError, ClickException."""
        try:
            batches: _Batches = await self.getmany(timeout_ms=_WAIT_MS, max_records=records_max)
        except _UNREADABLE as error:
            # aiokafka says neither which batch that is nor where it ends: the admin client reads the next slices.
            partitions = self.assignment() - self.paused()
            positions = {TopicPartition(*key): await self.position(key) for key in partitions}
            with connected(self._cluster) as admin:
                slices = await asyncio.to_thread(admin.records.read, positions, records_max=records_max)
                batches = {aiokafka.TopicPartition(*key): self._skip(key, slices[key]) for key in slices}
            if all(slices[key].next_offset == offset for key, offset in positions.items()):
                raise click.ClickException(f"a batch does not decode: {error}") from error
        return batches

    def _skip(self, key: TopicPartition, slice_: LogSlice | AdminError) -> list[ReadRecord]:
        """Continue after a slice, or after a batch that does not decode; returns the records."""
        if slice_.next_offset is None:
            raise slice_
        self.seek(aiokafka.TopicPartition(*key), slice_.next_offset)
        if isinstance(slice_, AdminError):
            click.echo(printable(f"skipped: {slice_}"), err=True)
            return []
        return [ReadRecord(*key, *msgspec.structs.astuple(record)) for record in slice_.records]


async def _read_partitions(
    cluster: ClusterTarget, spans: Mapping[TopicPartition, Span], output: _Output, *, exits: bool
) -> None:
    """Write the records of partitions from the begin of each span on. Raises aiokafka's KafkaError.

    With `exits` it ends at the end of all spans, otherwise never.
    """
    if exits:
        spans = {key: span for key, span in spans.items() if span.begin < span.end}
        if not spans:
            return
    # Records that retention deletes while they are being read are skipped.
    consumer = _SkippingConsumer(cluster, auto_offset_reset="earliest")
    ends = {aiokafka.TopicPartition(*key): span.end if exits else _OFFSET_MAX for key, span in spans.items()}
    try:
        await consumer.start()
        consumer.assign(list(ends))
        for key, span in spans.items():
            consumer.seek(aiokafka.TopicPartition(*key), span.begin)
        left = dict(ends)
        while left and not output.full:
            batches = await consumer.records(output.records_max)
            for partition, records in batches.items():
                output.add([record for record in records if record.offset < ends[partition]])
            for partition in [key for key, end in left.items() if await consumer.position(key) >= end]:
                del left[partition]
                consumer.pause(partition)
    finally:
        await consumer.stop()


async def _read_as_member(
    cluster: ClusterTarget, group: str, topics: Sequence[str], output: _Output, *, reset: str, exits: bool
) -> None:
    """Write the records of the partitions that a group assigns, and commit. Raises aiokafka's KafkaError.

    With `exits` it ends when it has written all that its partitions held when they were assigned.
    """
    consumer = _SkippingConsumer(cluster, group_id=group, auto_offset_reset=reset)
    commits = _Commits(consumer)
    consumer.subscribe(list(topics), listener=commits)
    try:
        try:
            async with asyncio.timeout(cluster.timeout):
                await consumer.start()
        except TimeoutError as error:
            message = f"could not join group {group} within {cluster.timeout:g} s; --timeout waits longer"
            raise KafkaTimeoutError(message) from error
        while not output.full and not (exits and await commits.at_ends()):
            batches = await consumer.records(output.records_max)
            for partition, records in batches.items():
                # In another thread: a slow reader of the output must not stop the heartbeats.
                commits.add(partition, await asyncio.to_thread(output.add, records))
            if not output.full:
                await commits.pass_holes()
            await commits.commit_periodically()
    finally:
        try:
            await commits.commit()
        finally:
            await consumer.stop()


class _Commits(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka carries no types
    """Offsets that are written but not committed, and the ends of the partitions when they were assigned."""

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 - aiokafka carries no types
        self._consumer = consumer
        self._read: set[aiokafka.TopicPartition] = set()
        self._written: dict[aiokafka.TopicPartition, int] = {}
        self._committed: dict[aiokafka.TopicPartition, int] = {}
        self._ends: dict[aiokafka.TopicPartition, int] = {}
        self._last = time.monotonic()

    def add(self, partition: aiokafka.TopicPartition, records: Sequence[Any]) -> None:
        """Note records that are written, none of a batch that was skipped."""
        self._read.add(partition)
        if records:
            self._written[partition] = records[-1].offset + 1

    async def pass_holes(self) -> None:
        """Note that all that was read is written: after the last record markers and skipped batches may lie."""
        for partition in self._read & self._consumer.assignment():
            self._written[partition] = await self._consumer.position(partition)

    async def commit_periodically(self) -> None:
        if time.monotonic() - self._last >= _COMMIT_SECONDS:
            await self.commit()

    async def commit(self) -> None:
        self._last = time.monotonic()
        assigned = self._consumer.assignment()
        written = {key: offset for key, offset in self._written.items() if key in assigned}
        written = {key: offset for key, offset in written.items() if self._committed.get(key) != offset}
        self._written.clear()
        if written:
            await self._consumer.commit(written)
            self._committed |= written

    async def at_ends(self) -> bool:
        """Whether all has been read that the partitions held when they were assigned."""
        assigned = self._consumer.assignment()
        new = assigned - self._ends.keys()
        if new:
            self._ends |= await self._consumer.end_offsets(list(new))
        return all([await self._consumer.position(key) >= self._ends[key] for key in assigned])

    async def on_partitions_revoked(self, revoked: Sequence[aiokafka.TopicPartition]) -> None:
        """Commit before another member gets the partitions."""
        if revoked:
            await self.commit()
        for state in (self._read, self._committed, self._ends):
            state.clear()

    async def on_partitions_assigned(self, assigned: Sequence[aiokafka.TopicPartition]) -> None:
        """Do nothing: reading continues at the committed offsets."""


def _read(record: Any) -> ReadRecord:  # noqa: ANN401 - aiokafka carries no types
    timestamp = -1 if record.timestamp is None else record.timestamp
    return ReadRecord(
        record.topic, record.partition, record.offset, timestamp, record.key, record.value, record.headers
    )


def _size(record: Any) -> int:  # noqa: ANN401 - aiokafka carries no types
    return len(record.key or b"") + len(record.value or b"")
