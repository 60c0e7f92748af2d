"""TIMESTAMP columns: which times are decoded, and numbers as times.

Times are of the years 1 to 9999, which TIMESTAMP of SQL, Timestamp of Protobuf and datetime of Python have in common.
A number beyond them counts another unit: milliseconds that are taken for seconds give the year 58692, and such a time
as a watermark would drop all records after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType

from korvet.spark.pipelines.checks import once
from korvet.spark.pipelines.spec import Unit

_MICROSECONDS: Mapping[Unit, int] = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


def in_years(time: Column) -> Column:
    """Return a TIMESTAMP, NULL if it is not of the years 1 to 9999."""
    return f.when(
        time.between(f.timestamp_micros(f.lit(_FIRST_US)), f.timestamp_micros(f.lit(_LAST_US))), time
    )


def from_number(number: Column, unit: Unit) -> Column:
    """Return the time that a DECIMAL counts from 1970 on, NULL if it is not of the years 1 to 9999."""

    def time(us: Column) -> Column:
        return f.when(us.between(_FIRST_US, _LAST_US), f.timestamp_micros(us.cast("bigint")))

    return once(f.try_multiply(number, f.lit(_MICROSECONDS[unit])), time)


def types_in(kind: DataType) -> Iterator[DataType]:
    yield kind
    match kind:
        case StructType():
            for field in kind:
                yield from types_in(field.dataType)
        case ArrayType():
            yield from types_in(kind.elementType)
        case MapType():
            yield from types_in(kind.valueType)


def has_times(kind: DataType) -> bool:
    return any(isinstance(part, TimestampType) for part in types_in(kind))


def replaced(kind: DataType, other: DataType) -> DataType:
    """Return a type with another one in the place of TIMESTAMP."""
    match kind:
        case StructType():
            return StructType(
                [StructField(field.name, replaced(field.dataType, other), field.nullable) for field in kind]
            )
        case ArrayType():
            return ArrayType(replaced(kind.elementType, other), kind.containsNull)
        case MapType():
            return MapType(kind.keyType, replaced(kind.valueType, other), kind.valueContainsNull)
    return other if isinstance(kind, TimestampType) else kind


def converted(value: Column, kind: DataType, to_time: Callable[[Column], Column]) -> Column:
    """Return a value as one of `kind`, of which it has another type in the place of TIMESTAMP."""
    if not has_times(kind):
        return value
    match kind:
        case StructType():
            fields = (
                converted(value[field.name], field.dataType, to_time).alias(field.name) for field in kind
            )
            return f.when(value.isNotNull(), f.struct(*fields))
        case ArrayType():
            return f.transform(value, lambda element: converted(element, kind.elementType, to_time))
        case MapType():
            return f.transform_values(value, lambda _, element: converted(element, kind.valueType, to_time))
    return to_time(value)


def is_null_time(column: Column, kind: DataType, nullable: bool) -> Column | None:  # noqa: ARG001, FBT001 - a check
    return column.isNull() if isinstance(kind, TimestampType) else None


def is_out_of_years(column: Column, kind: DataType, nullable: bool) -> Column | None:  # noqa: ARG001, FBT001 - a check
    """Return whether a TIMESTAMP is not of the years 1 to 9999."""
    return column.isNotNull() & in_years(column).isNull() if isinstance(kind, TimestampType) else None
