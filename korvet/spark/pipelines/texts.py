"""Texts, JSON and CSV as columns, decoded by Spark's own parsers.

These alone would lose what does not decode: `from_json` ignores what follows the first JSON text, and makes NULL of a
field of another type. So a parser gets the bytes with a mark after them, and must find the mark too; NULL from bytes
that are there is an error.

Numbers in columns of TIMESTAMP are converted here: Spark takes seconds alone, and wraps around beyond its own range.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Protocol, cast

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from korvet.spark.pipelines.checks import checked, is_missing, listed, once
from korvet.spark.pipelines.spec import Decoding, PipelineError, Unit
from korvet.spark.pipelines.times import (
    converted,
    from_number,
    has_times,
    in_years,
    is_null_time,
    replaced,
    types_in,
)


class Decoder(Protocol):
    """Bytes to a column. `parse` is evaluated once for each record; the others are cheap, and read its result."""

    def unread(self, data: Column) -> list[Column]:  # noqa: ARG002 - as formats with fields have it
        """Return aggregates for metrics of records with fields that are not read.

        The name of a count says which fields; of JSON one struct has `records`, and `fields` with items and counts.
        """
        return []

    def parse(self, data: Column) -> Column:
        """Return the expensive part."""

    def value(self, parsed: Column, data: Column) -> Column:
        """Return the decoded value: NULL of NULL, anything if there is a problem."""

    def problem(self, parsed: Column, data: Column) -> Column:
        """Return as text why bytes, which are not NULL, cannot be decoded; NULL if they can."""


INVALID_TEXT = "not valid UTF-8"


def text(data: Column) -> Column:
    """Return bytes as text."""
    return data.cast("string")


class _Text(Decoder):
    """UTF-8."""

    def parse(self, data: Column) -> Column:
        return f.is_valid_utf8(text(data))

    def value(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - as the others have it
        return text(data)

    def problem(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - the same
        return f.when(~parsed, f.lit(INVALID_TEXT))


_VALUE, _END, _CORRUPT = "value", "end", "corrupt"
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
"""Spark says of each record whether it fits."""
_NOT_JSON = "not one JSON text"
_NAMED_MAX = 20
"""How many fields that the schema lacks are named, of a record and in a metric."""
UNKNOWN = "_unknown"
"""The column of such fields, as JSON."""
_MISSING = "is missing"


def with_defaults(options: Mapping[str, str], **defaults: str) -> dict[str, str]:
    """Return options of Spark with defaults for those that are not given; Spark ignores the case of names."""
    given = {name.lower() for name in options}
    return {name: value for name, value in defaults.items() if name.lower() not in given} | dict(options)


def json_options(decoding: Decoding) -> dict[str, str]:
    """Return the options of Spark's parser of JSON: apostrophes are no quotes."""
    return with_defaults(decoding.options, allowSingleQuotes="false")


class _Json(Decoder):
    """JSON texts of a schema, parsed as the first of the two fields of an object, in an object with two fields.

    Text that ends early or goes on is an error there, or leaves the inner object with other fields: it cannot close and
    open objects unseen, for nobody knows their names. A field that is missing or NULL in spite of the schema's NOT NULL
    is a problem, in arrays, maps and structs too; Spark ignores that. A TIMESTAMP is parsed as VARIANT, which says
    whether it was a number or a text.
    """

    def __init__(self, schema: DataType, decoding: Decoding) -> None:
        if any(isinstance(kind, ByteType) for kind in types_in(schema)):
            # Spark would take 200 for -56.
            raise PipelineError("JSON has no TINYINT: use SMALLINT")
        _check_unit(schema, decoding)
        names = schema.names if isinstance(schema, StructType) else None
        if decoding.unknown != "ignore" and names is None:
            raise PipelineError(f'unknown = "{decoding.unknown}": only objects have fields')
        if decoding.unknown == "column" and UNKNOWN in (names or ()):
            raise PipelineError(f'unknown = "column": the schema has a field {UNKNOWN} of its own')
        self._names = names
        self._unknown = decoding.unknown
        self._schema = schema
        self._raw_schema = replaced(schema, VariantType())
        self._unit = decoding.unit or "seconds"
        self._inner, self._end = uuid.uuid4().hex, uuid.uuid4().hex
        self._has_options = bool(decoding.options)
        self._options = json_options(decoding)

    def unread(self, data: Column) -> list[Column]:
        if self._unknown != "ignore" or self._names is None:
            return []
        # One item is NULL: records without such fields.
        fields = f.call_function("approx_top_k", self._unknown_names(data), f.lit(_NAMED_MAX + 1))
        return [f.struct(f.count(f.lit(1)).alias("records"), fields.alias("fields")).alias("unknown")]

    def parse(self, data: Column) -> Column:
        parts = [f.is_valid_utf8(text(data)).alias("valid")]
        if self._unknown != "ignore":
            parts.append(self._unknown_names(data).alias("names"))
        if self._unknown == "column":
            parts.append(self._unknown_fields(data).alias(UNKNOWN))
        parsed = self._within(data, self._raw_schema)
        if not has_times(self._schema):
            return f.struct(*parts, parsed.alias("parsed"))

        def with_times(parsed: Column) -> Column:
            value = converted(self._raw(parsed), self._schema, self._time)
            return f.struct(*parts, parsed.alias("parsed"), value.alias("value"))

        return once(parsed, with_times)

    def _unknown_names(self, data: Column) -> Column:
        """Return the fields of an object that the schema lacks as one text, NULL without any."""
        names = f.json_object_keys(text(data))
        if self._has_options:
            names = f.map_keys(f.from_json(text(data), "MAP<STRING, STRING>", self._options))

        def of(unknown: Column) -> Column:
            named = f.array_join(f.slice(unknown, 1, _NAMED_MAX), ", ")
            more = f.concat(named, f.lit(" and "), f.size(unknown) - _NAMED_MAX, f.lit(" more"))
            return f.when(f.size(unknown) > _NAMED_MAX, more).when(f.size(unknown) > 0, named)

        return once(f.sort_array(f.array_except(names, self._known)), of)

    def _unknown_fields(self, data: Column) -> Column:
        """Return an object with the fields that the schema lacks as JSON, NULL without any."""
        fields = f.from_json(text(data), "MAP<STRING, VARIANT>", self._options)
        unknown = f.map_filter(fields, lambda name, _: ~f.array_contains(self._known, name))
        return f.when(f.size(unknown) > 0, f.to_json(unknown))

    @property
    def _known(self) -> Column:
        return f.array(*map(f.lit, self._names or ())).cast("array<string>")

    def _within(self, data: Column, kind: DataType) -> Column:
        # A map has all fields of the inner object, also those that are there twice.
        fields = [StructField(self._inner, MapType(StringType(), kind)), StructField(self._end, StringType())]
        schema = StructType([*fields, StructField(_CORRUPT, StringType())])
        start, end = f'{{"{self._inner}":{{"{_VALUE}":', f',"{self._end}":null}},"{self._end}":""}}'
        return f.from_json(
            f.concat(f.lit(start), text(data), f.lit(end)), schema, self._options | _PERMISSIVE
        )

    def _raw(self, parsed: Column) -> Column:
        return parsed[self._inner][_VALUE]

    def _time(self, value: Column) -> Column:
        """Return a VARIANT as time, NULL if it is none."""
        time = f.try_variant_get(value, "$", "timestamp")
        if self._has_options:
            # They say how times are written.
            whole = f.concat(f.lit('{"v":'), f.to_json(value), f.lit("}"))
            time = f.from_json(whole, "v TIMESTAMP", self._options)["v"]
        number = f.try_variant_get(value, "$", "decimal(38, 6)")

        def of(kind: Column) -> Column:
            # Spark takes true for 1.
            is_number = kind != "BOOLEAN"
            return f.when(kind == "STRING", once(time, in_years)).when(
                is_number, from_number(number, self._unit)
            )

        return once(f.schema_of_variant(value), of)

    def value(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - as the others have it
        value = self._decoded(parsed)
        return value.withField(UNKNOWN, parsed[UNKNOWN]) if self._unknown == "column" else value

    def _decoded(self, parsed: Column) -> Column:
        return parsed["value"] if has_times(self._schema) else self._raw(parsed["parsed"])

    def problem(self, parsed: Column, data: Column) -> Column:
        whole, value = parsed["parsed"], self._decoded(parsed)
        inner = whole[self._inner]
        # Spark has none for a value of another type.
        is_whole = inner.isNull() | ((f.size(inner) == 2) & f.map_contains_key(inner, self._end))  # noqa: PLR2004 - value and end
        is_one = whole[self._end].isNotNull() & is_whole
        return f.coalesce(
            f.when(~parsed["valid"], f.lit(INVALID_TEXT)),
            f.when(~is_one, f.lit(_NOT_JSON)),
            f.when(whole[_CORRUPT].isNotNull(), self._misfit(value, data)),
            *self._bad_times(value, self._raw(whole)),
            f.when(value.isNull(), f.lit("null")),
            checked(value, self._schema, is_missing, _MISSING),
            *self._refused(parsed),
        )

    def _refused(self, parsed: Column) -> Iterator[Column]:
        """Yield what is wrong with fields that the schema lacks."""
        if self._unknown == "dead_letters":
            yield f.concat(f.lit("the schema lacks "), parsed["names"])
        if self._unknown == "column":
            # As if a field of an object is there twice.
            lost = f.concat(f.lit("the schema lacks fields that are no JSON to keep: "), parsed["names"])
            yield f.when(parsed[UNKNOWN].isNull(), lost)

    def _bad_times(self, value: Column, raw: Column) -> Iterator[Column]:
        """Yield which fields have something else than a time; what was parsed is converted again if any is NULL."""

        def is_bad(raw: Column, kind: DataType, nullable: bool) -> Column | None:  # noqa: ARG001, FBT001 - a check
            if not isinstance(kind, TimestampType):
                return None
            return raw.isNotNull() & ~f.is_variant_null(raw) & self._time(raw).isNull()

        if has_times(self._schema):
            has_null = checked(value, self._schema, is_null_time, "is NULL").isNotNull()
            problem = f"is {_not(TimestampType(), self._unit)}"
            yield f.when(has_null, checked(raw, self._schema, is_bad, problem))

    def _misfit(self, value: Column, data: Column) -> Column:
        schema = self._schema
        texts = _as_texts(schema) if isinstance(schema, StructType) else StringType()

        def of(whole: Column) -> Column:
            problem = f.lit(_not(schema, self._unit))
            if isinstance(schema, StructType):
                other = f.lit("it does not fit the schema")
                problem = _misfits(value, self._raw(whole), schema, self._unit, other)
            return f.when(whole[self._end].isNull(), f.lit(_NOT_JSON)).otherwise(problem)

        return once(self._within(data, texts), of)


def _check_unit(schema: DataType, decoding: Decoding) -> None:
    if decoding.unit is not None and not has_times(schema):
        raise PipelineError(f'unit = "{decoding.unit}": the schema has no TIMESTAMP')


class _Csv(Decoder):
    """Lines of CSV, parsed with a column after them that has to be there, with a text that nobody knows.

    What has fewer or more columns, several lines, or a quote that is never closed leaves the line without it. CSV has
    no types: with a unit all columns of TIMESTAMP are numbers.
    """

    def __init__(self, schema: DataType, decoding: Decoding) -> None:
        if not isinstance(schema, StructType) or any(
            isinstance(field.dataType, ArrayType | MapType | StructType) for field in schema
        ):
            raise PipelineError("a line of CSV has columns of numbers, texts, times and the like")
        _check_unit(schema, decoding)
        given = {name.lower(): value for name, value in decoding.options.items()}
        self._schema = schema
        self._unit = decoding.unit
        # RFC 4180 doubles a quote within quotes; Spark by default takes a backslash before it.
        self._options = with_defaults(decoding.options, escape=given.get("quote", '"'))
        self._end = uuid.uuid4().hex
        self._separator = given.get("sep", given.get("delimiter", ","))

    def parse(self, data: Column) -> Column:
        raw = self._schema if self._unit is None else replaced(self._schema, StringType())
        valid = f.is_valid_utf8(text(data)).alias("valid")
        return f.struct(valid, self._line(data, cast("StructType", raw)).alias("parsed"))

    def _line(self, data: Column, schema: StructType) -> Column:
        # Columns may have any names, so they get others here.
        columns = [f"c{number} {field.dataType.simpleString()}" for number, field in enumerate(schema)]
        ddl = ", ".join([*columns, f"{_END} STRING", f"{_CORRUPT} STRING"])
        line = f.regexp_replace(text(data), "\r?\n$", "")
        whole = f.concat(line, f.lit(f"{self._separator}{self._end}"))
        return f.from_csv(whole, ddl, self._options | _PERMISSIVE)

    def value(self, parsed: Column, data: Column) -> Column:
        return f.when(data.isNotNull(), converted(self._row(parsed["parsed"]), self._schema, self._time))

    def _row(self, line: Column) -> Column:
        return f.struct(*(line[f"c{number}"].alias(name) for number, name in enumerate(self._schema.names)))

    def _time(self, value: Column) -> Column:
        return (
            in_years(value)
            if self._unit is None
            else from_number(value.try_cast("decimal(38, 6)"), self._unit)
        )

    def problem(self, parsed: Column, data: Column) -> Column:
        line = parsed["parsed"]
        columns = f.lit(f"not one line of {len(self._schema)} columns")
        row, texts = self.value(parsed, data), self._line(data, _as_texts(self._schema))
        is_misfit = line[_CORRUPT].isNotNull()
        for number, field in enumerate(self._schema):
            if has_times(field.dataType):
                is_misfit |= line[f"c{number}"].isNotNull() & row[field.name].isNull()

        def misfits(line: Column) -> Column:
            return _misfits(row, self._row(line), self._schema, self._unit, columns)

        return f.coalesce(
            f.when(~parsed["valid"], f.lit(INVALID_TEXT)),
            f.when(f.coalesce(line[_END], f.lit("")) != self._end, columns),
            f.when(is_misfit, once(texts, misfits)),
            checked(row, self._schema, is_missing, _MISSING),
        )


def _as_texts(schema: StructType) -> StructType:
    return StructType([StructField(name, StringType()) for name in schema.names])


def _misfits(row: Column, texts: Column, schema: StructType, unit: Unit | None, other: Column) -> Column:
    """Return which fields of a row are NULL though their text is not, `other` if none is."""
    named = [
        f.when(
            row[field.name].isNull() & texts[field.name].isNotNull(),
            f.lit(f"{field.name} is {_not(field.dataType, unit)}"),
        )
        for field in schema
    ]
    return f.coalesce(listed(named), other)


def _not(kind: DataType, unit: Unit | None) -> str:
    numbers = "" if unit is None else f", numbers in {unit}"
    times = f" (years 1 to 9999{numbers})" if isinstance(kind, TimestampType) else ""
    return f"not {kind.simpleString().upper()}{times}"


def text_decoder(decoding: Decoding, schema: DataType) -> Decoder:
    """Return what decodes texts, JSON or CSV; raises PipelineError if the schema cannot be used."""
    match decoding.format:
        case "json":
            return _Json(schema, decoding)
        case "csv":
            return _Csv(schema, decoding)
    return _Text()
