"""What the log is filled with, and the filling: records whose timestamps tell where they lie.

Record number i has the timestamp `first_ms + i * step_ms`. So the log spans two weeks and ends now, for any
length, and the broker's default retention of one week is due for half of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.protocol.records.batch import HEADER_BYTES, BatchHeader, sealed
from loadtest.log.wire import Connection

VALUE_BYTES = 100
BATCH_RECORDS = 1000
WEEK_MS = 7 * 86_400_000
_IN_FLIGHT = 5


class Span(NamedTuple):
    """Which timestamps the records have (ms)."""

    first_ms: int
    step_ms: int
    records: int

    @classmethod
    def ending_now(cls, records: int) -> Span:
        """Return two weeks of `records` records."""
        step_ms = max(1, 2 * WEEK_MS // records)
        return cls(int(time.time() * 1000) - step_ms * records, step_ms, records)

    def at_or_after(self, timestamp: int) -> int:
        """Return the timestamp of the first record that is not older than `timestamp`, which must be of the span."""
        return self.first_ms + -((self.first_ms - timestamp) // self.step_ms) * self.step_ms


class Batches:
    """Batches of the same values with any timestamps: one is built, the others differ from it in their headers."""

    def __init__(self, records: int, step_ms: int) -> None:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        for n in range(records):
            builder.append(n, timestamp=n * step_ms, key=None, value=_value(n), headers=[])
        whole = bytes(builder.build())
        self._header = BatchHeader.read(whole)
        self._payload = whole[HEADER_BYTES:]

    def starting(self, timestamp: int) -> bytes:
        """Return the batch whose first record has this timestamp (ms)."""
        span_ms = self._header.max_timestamp - self._header.base_timestamp
        moved = self._header._replace(base_timestamp=timestamp, max_timestamp=timestamp + span_ms)
        return sealed(moved, self._payload)


def fill(connection: Connection, span: Span) -> float:
    """Write the log with a few requests under way; returns how many records a second it took."""
    began = time.monotonic()
    for batch in _all(span):
        connection.begin_produce(batch)
        if connection.in_flight == _IN_FLIGHT:
            connection.finish_produce()
    while connection.in_flight:
        connection.finish_produce()
    return span.records / (time.monotonic() - began)


def _all(span: Span) -> Iterator[bytes]:
    whole = Batches(BATCH_RECORDS, span.step_ms)
    for first in range(0, span.records - BATCH_RECORDS + 1, BATCH_RECORDS):
        yield whole.starting(span.first_ms + first * span.step_ms)
    if rest := span.records % BATCH_RECORDS:
        last_ms = span.first_ms + (span.records - rest) * span.step_ms
        yield Batches(rest, span.step_ms).starting(last_ms)


def _value(n: int) -> bytes:
    """Return a value of the kind that services send: JSON of an event."""
    text = (
        f'{{"id":"{n * 2_654_435_761 % 2**32:08x}","user":{n * 104_729 % 99_991},"event":"page_view","path":"'
    )
    return (text.ljust(VALUE_BYTES - 2, "x") + '"}').encode()
