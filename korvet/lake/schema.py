"""The columns of an archived topic, the same in Arrow, Parquet and Delta.

A row is a record; (partition, offset) is unique, and files are in that order. Names and types are those of Spark's
Kafka source if it has the column, but for TIMESTAMP_TYPE, which is timestampType there; its topic is the table's. The
data source `korvet` has both as Spark has them (korvet.spark.source).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
TIMESTAMP_MS: Final = "timestamp_ms"
TIMESTAMP_TYPE: Final = "timestamp_type"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
ATTRIBUTES: Final = "attributes"
PRODUCER_ID: Final = "producer_id"
PRODUCER_EPOCH: Final = "producer_epoch"
DATE: Final = "date"

HEADER_TYPE = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])

SCHEMA = pa.schema(
    [
        pa.field(PARTITION, pa.int32(), nullable=False),
        pa.field(OFFSET, pa.int64(), nullable=False),
        # Null: the record has none (-1), or one that no calendar has; see TIMESTAMP_MS.
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
        # 0: its producer's time (CreateTime); 1: that of its append (LogAppendTime).
        pa.field(TIMESTAMP_TYPE, pa.int32(), nullable=False),
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        # Null: the record has none.
        pa.field(HEADERS, pa.list_(HEADER_TYPE)),
        # Milliseconds since the epoch, if TIMESTAMP cannot hold them.
        pa.field(TIMESTAMP_MS, pa.int64()),
        # Bits of the record's batch, and its producer, if that was transactional or a control batch.
        pa.field(ATTRIBUTES, pa.int16()),
        pa.field(PRODUCER_ID, pa.int64()),
        pa.field(PRODUCER_EPOCH, pa.int16()),
    ]
)

DATED_SCHEMA = SCHEMA.append(pa.field(DATE, pa.date32()))
"""That of a table which is partitioned by date too: of TIMESTAMP, in UTC; null: the record has no timestamp."""

NO_TIMESTAMP = -1
OFFSET_END = 2**63 - 1
"""After any offset that a record has."""

_CALENDAR_FIRST_MS = -62_135_596_800_000  # 0001-01-01, where the calendars of Python and Spark begin
_CALENDAR_LAST_MS = 253_402_300_799_999  # 9999-12-31

Ints = npt.NDArray[np.int64]


def timestamp_columns(milliseconds: Ints) -> tuple[pa.Array, pa.Array]:
    """Return the columns TIMESTAMP and TIMESTAMP_MS for timestamps of the log, -1 if a record has none."""
    fits = (milliseconds >= _CALENDAR_FIRST_MS) & (milliseconds <= _CALENDAR_LAST_MS)
    fits &= milliseconds != NO_TIMESTAMP
    if fits.all():
        micros = ints(milliseconds * 1000)
        rest = pa.nulls(len(milliseconds), pa.int64())
    else:
        micros = ints(np.where(fits, milliseconds, 0) * 1000, fits)
        rest = ints(milliseconds, ~fits & (milliseconds != NO_TIMESTAMP))
    return micros.view(SCHEMA.field(TIMESTAMP).type), rest


def ints(values: npt.NDArray[np.signedinteger], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of the values that are `valid`. `pa.array` would import pandas, which takes 0.4 s of CPU."""
    validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    type_ = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(values)])


def repeated(text: str, count: int) -> pa.Array:
    """Return a column that has the same text in all rows; as `ints` without pandas."""
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def milliseconds_of(rows: pa.RecordBatch) -> Ints:
    """Return the log's timestamps, from the columns TIMESTAMP and TIMESTAMP_MS."""
    micros, rest = rows.column(TIMESTAMP).view(pa.int64()), rows.column(TIMESTAMP_MS)
    values: Ints = np.where(
        np.asarray(micros.is_valid()), _filled(micros, 0) // 1000, _filled(rest, NO_TIMESTAMP)
    )
    return values


def between(rows: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """Return the rows with offsets from `first` to just before `end`; the rows are in the order of their offsets."""
    # As `to_numpy` without its import of pandas.
    start, stop = np.searchsorted(np.from_dlpack(rows.column(OFFSET)), (first, end))
    return rows.slice(int(start), int(stop - start))


def _filled(column: pa.Array, filling: int) -> Ints:
    if column.null_count == len(column):
        return np.full(len(column), filling, dtype=np.int64)
    filled: Ints = column.fill_null(filling).to_numpy(zero_copy_only=False)
    return filled


NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""As a path has it: rows without a timestamp."""


def by_date_of(
    rows: pa.Table, current: Collection[str], room: int
) -> tuple[dict[str, pa.Table], pa.Table | None]:
    """Return the rows of each date, and those of dates for which there is no `room` beside the `current` ones."""
    dates = rows.column(TIMESTAMP).cast(pa.date32())
    unique = pc.unique(dates)
    names = [date_name(item.as_py()) for item in unique]
    if len(names) == 1 and (names[0] in current or room > 0):
        return {names[0]: rows}, None
    new = [item for item in names if item not in current]
    late = set(new[max(room, 0) :])

    def of(values: pa.Array) -> pa.Table:
        return rows.filter(pc.is_in(dates, value_set=values))

    parts = {name: of(unique.slice(at, 1)) for at, name in enumerate(names) if name not in late}
    return parts, of(unique.filter(pa.array([item in late for item in names]))) if late else None


def date_name(value: date | None) -> str:
    """Return a date as paths have it."""
    return NO_DATE if value is None else value.isoformat()
