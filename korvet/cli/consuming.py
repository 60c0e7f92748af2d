"""Reads records with aiokafka: partitions of one's own choice, or those that a group gives.

Knows the client, ends and commits; not how records are written down. Offsets may have gaps of any size, as those of
compacted topics have and those of Korvet's storage format `record`, which are made of the time: nothing here counts
records by offsets. Imports aiokafka: import it late.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaTimeoutError

from korvet.admin.types import TopicPartition as Place
from korvet.cli.consume import Log, Span, Start, last_records
from korvet.cli.kafka_client import Progress, addresses
from korvet.cli.records import Read

_WAIT_MS = 500
_RECORDS_AT_ONCE = 1000
_COMMIT_SECONDS = 1.0
_CLIENT_ID = "korvet-consume"

Batches = Mapping[TopicPartition, Sequence[Any]]


class Output:
    """Standard output, for so many records at most."""

    def __init__(self, form: Callable[[Read], bytes], progress: Progress, records_max: int | None) -> None:
        self._form = form
        self._progress = progress
        self._left = records_max

    @property
    def full(self) -> bool:
        """Whether no more records are wanted."""
        return self._left == 0

    @property
    def records_max(self) -> int:
        """How many may be read at once."""
        return _RECORDS_AT_ONCE if self._left is None else min(self._left, _RECORDS_AT_ONCE)

    def add(self, records: Sequence[Any]) -> Sequence[Any]:
        """Write records, all or as many as are wanted, and return those written; raises BrokenPipeError."""
        some = records if self._left is None else records[: self._left]
        if some:
            written = b"".join(self._form(_read(each)) for each in some)
            sys.stdout.buffer.write(written)
            sys.stdout.buffer.flush()
            self._progress.add(len(some), sum(map(_size, some)))
        if self._left is not None:
            self._left -= len(some)
        return some


class Member(NamedTuple):
    """Who reads as a member: `timeout` is how many seconds joining may take."""

    bootstrap_server: str
    timeout: float
    group: str
    from_beginning: bool


async def read_all(
    bootstrap_server: str,
    spans: Mapping[Place, Span],
    begins: Start,
    output: Output,
    *,
    exits: bool,
) -> None:
    """Write the records of partitions from where each span begins on; raises aiokafka's KafkaError.

    Ends where all spans end, or never unless `exits`. With `begins.last` it begins so many records before the end.
    """
    if exits:
        spans = {place: span for place, span in spans.items() if span.begin < span.end}
        if not spans:
            return
    consumer = AIOKafkaConsumer(
        bootstrap_servers=addresses(bootstrap_server),
        client_id=_CLIENT_ID,
        enable_auto_commit=False,
        # What retention takes away while it is being read is passed over.
        auto_offset_reset="earliest",
    )
    ends = {TopicPartition(*place): span.end for place, span in spans.items()}
    begin = {TopicPartition(*place): span.begin for place, span in spans.items()}
    try:
        await consumer.start()
        if begins.last:
            for place, span in spans.items():
                log = _AssignedLog(consumer, TopicPartition(*place), span.end)
                begin[log.place] = await last_records(log, span, begins.last)
        consumer.assign(list(begin))
        for place, offset in begin.items():
            consumer.seek(place, offset)
        await (_read_to(consumer, ends, output) if exits else _follow(consumer, output))
    finally:
        await consumer.stop()


async def _follow(consumer: Any, output: Output) -> None:  # noqa: ANN401 - aiokafka carries no types
    while not output.full:
        batches: Batches = await consumer.getmany(timeout_ms=_WAIT_MS, max_records=output.records_max)
        for records in batches.values():
            output.add(records)


async def _read_to(consumer: Any, ends: dict[TopicPartition, int], output: Output) -> None:  # noqa: ANN401 - the same
    """Write what lies before `ends`."""
    left = dict(ends)
    while not output.full:
        for place in [place for place, end in left.items() if await consumer.position(place) >= end]:
            del left[place]
            consumer.pause(place)
        if not left:
            return
        batches: Batches = await consumer.getmany(timeout_ms=_WAIT_MS, max_records=output.records_max)
        for place, records in batches.items():
            output.add([each for each in records if each.offset < ends[place]])


async def read_as_member(member: Member, topics: Sequence[str], output: Output, *, exits: bool) -> None:
    """Write what a group gives this member, and commit what is written; raises aiokafka's KafkaError.

    With `exits` it ends once it has written all that the partitions it has held when they were given to it.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=addresses(member.bootstrap_server),
        client_id=_CLIENT_ID,
        group_id=member.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest" if member.from_beginning else "latest",
    )
    commits = _Commits(consumer)
    consumer.subscribe(list(topics), listener=commits)
    try:
        await _joined(consumer, member)
        while not output.full and not (exits and await commits.at_ends()):
            batches: Batches = await consumer.getmany(timeout_ms=_WAIT_MS, max_records=output.records_max)
            for place, records in batches.items():
                # Not in this thread: who reads slowly must not stop the heartbeats.
                commits.note(place, await asyncio.to_thread(output.add, records))
            await commits.commit_now_and_then()
    finally:
        try:
            await commits.commit()
        finally:
            await consumer.stop()


async def _joined(consumer: Any, member: Member) -> None:  # noqa: ANN401 - aiokafka carries no types
    try:
        async with asyncio.timeout(member.timeout):
            await consumer.start()
    except TimeoutError as error:
        message = (
            f"group {member.group} has not taken this member in {member.timeout:g} s; --timeout waits longer"
        )
        raise KafkaTimeoutError(message) from error


class _Commits(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka carries no types
    """What is written and not committed yet, and where the partitions that are had ended."""

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 - aiokafka carries no types
        self._consumer = consumer
        self._written: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._last = time.monotonic()

    def note(self, place: TopicPartition, records: Sequence[Any]) -> None:
        """Take account of records that are written."""
        if records:
            self._written[place] = records[-1].offset + 1

    async def commit_now_and_then(self) -> None:
        """Commit what is written, unless that was done a moment ago."""
        if time.monotonic() - self._last >= _COMMIT_SECONDS:
            await self.commit()

    async def commit(self) -> None:
        """Commit what is written."""
        self._last = time.monotonic()
        had = self._consumer.assignment()
        written = {place: offset for place, offset in self._written.items() if place in had}
        self._written.clear()
        if written:
            await self._consumer.commit(written)

    async def at_ends(self) -> bool:
        """Whether all has been read that was there when the partitions were given."""
        places = self._consumer.assignment()
        new = places - self._ends.keys()
        if new:
            self._ends |= await self._consumer.end_offsets(list(new))
        return all([await self._consumer.position(place) >= self._ends[place] for place in places])

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Commit before others get the partitions."""
        if revoked:
            await self.commit()
        self._ends.clear()

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Nothing is to be done: positions are the group's."""


class _AssignedLog(Log):
    """One partition, as `tail` reads it."""

    def __init__(self, consumer: Any, place: TopicPartition, end: int) -> None:  # noqa: ANN401 - aiokafka carries no types
        self.place = place
        self._consumer = consumer
        self._end = end
        consumer.assign([place])

    async def offsets(self, begin: int, end: int, count_max: int) -> list[int] | None:
        """Return the offsets of the records between, or None where they are more than `count_max`."""
        self._consumer.seek(self.place, begin)
        found: list[int] = []
        while await self._consumer.position(self.place) < end:
            batches: Batches = await self._consumer.getmany(
                self.place, timeout_ms=_WAIT_MS, max_records=_RECORDS_AT_ONCE
            )
            offsets = [each.offset for each in batches.get(self.place, ())]
            found += [offset for offset in offsets if offset < end]
            if len(found) > count_max:
                return None
        return found


def _read(record: Any) -> Read:  # noqa: ANN401 - aiokafka carries no types
    timestamp = -1 if record.timestamp is None else record.timestamp
    return Read(
        record.topic, record.partition, record.offset, timestamp, record.key, record.value, record.headers
    )


def _size(record: Any) -> int:  # noqa: ANN401 - aiokafka carries no types
    return len(record.key or b"") + len(record.value or b"")
