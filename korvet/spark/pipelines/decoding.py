"""Records as columns: keys, values and headers, decoded by Spark's own expressions where it has them.

What does not decode has a reason in the column `_error`, and its bytes beside it.

Spark would move an expression into each filter and projection over it, and parse a record three times. It moves
nothing through a generator: all that is expensive is in one, which makes one row of each row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StringType, StructType

from korvet import logs
from korvet.spark.pipelines import avro
from korvet.spark.pipelines.checks import checked, is_invalid
from korvet.spark.pipelines.registry import RegistryError, Schema, SchemaRegistry
from korvet.spark.pipelines.schemas import (
    NO_HEADER,
    Lookup,
    NewSchemaError,
    PinnedSchemas,
    Pins,
    header,
    header_of,
    id_in,
    payload,
    reader_id,
)
from korvet.spark.pipelines.spec import UNREAD, Decoding, PipelineError, SourceSpec, text_of
from korvet.spark.pipelines.texts import INVALID_TEXT, Decoder, json_options, text, text_decoder
from korvet.spark.pipelines.times import converted, in_years, is_out_of_years
from korvet.spark.session import JOB_ERRORS, reason_of

ERROR, RAW_KEY, RAW_VALUE = "_error", "_raw_key", "_raw_value"
_PARSED = "_parsed"

_log = logs.Log(__name__)

_INFERRED_RECORDS = 1000
"""How many records an inferred schema is taken from."""

_NAMED_MAX = 20
"""How many fields that are not read a metric names of one schema."""

_OWN_OPTIONS = ("mode", "columnNameOfCorruptRecord")
"""Options of Spark's parsers that are not the user's: what becomes of errors says `on_error`."""


class DecoderState(NamedTuple):
    """What decoding needs besides records: `pins`, and the records of a source as a batch, to infer a schema from."""

    pins: Pins
    records: Callable[[SourceSpec], DataFrame]
    registry: SchemaRegistry | None = None

    def learn(self, new: NewSchemaError) -> None:
        """Pin the schema that has ended a query: frames that are decoded from now on know it."""
        registry = _required(self.registry, new.place)
        PinnedSchemas(Decoding(), new.place, self.pins, registry).learn(new.schema_id)

    def follow(self, sources: Iterable[SourceSpec]) -> list[str]:
        """Read sources by the newest versions of their subjects; return what has changed.

        Raises PipelineError if a schema cannot be had and none is pinned.
        """
        changes = []
        for source in sources:
            for part, of in (("key", source.key), ("value", source.value)):
                if of.subject is None or of.schema_file is not None:
                    continue
                place = f"{source.name}.{part}"
                pinned = PinnedSchemas(of, place, self.pins, _required(self.registry, place))
                try:
                    changes.append(pinned.follow())
                except RegistryError as error:
                    _log.warning("records are read by the schema that is pinned", source=place, reason=error)
        return list(filter(None, changes))


def _required(registry: SchemaRegistry | None, place: str) -> SchemaRegistry:
    if registry is None:
        raise PipelineError(f"sources.{place}.registry: there is no [registry] with its url")
    return registry


def decode(frame: DataFrame, source: SourceSpec, state: DecoderState) -> DataFrame:
    """Return records with key, value and headers decoded, and the columns `_error`, `_raw_key` and `_raw_value`.

    Of a record with an error the columns have anything. NULL is decoded as NULL: of a tombstone, or without a key.
    Raises PipelineError if a schema cannot be had or used.
    """
    parts = {
        name: decoder
        for name, of in (("key", source.key), ("value", source.value))
        if (decoder := _decoder(of, f"{source.name}.{name}", frame.sparkSession, source, state)) is not None
    }
    for name, decoder in parts.items():
        if counts := decoder.unread(f.col(name)):
            frame = frame.observe(f"{UNREAD}{source.name}.{name}", *counts)
    if parts:
        parses = [decoder.parse(f.col(name)).alias(name) for name, decoder in parts.items()]
        frame = frame.select("*", f.explode(f.array(f.struct(*parses))).alias(_PARSED))
    columns = {name: f.col(name) for name in ("key", "value", "headers")}
    problems = []
    for name, decoder in parts.items():
        data, parsed = f.col(name), f.col(_PARSED)[name]
        problem = f.when(data.isNotNull(), decoder.problem(parsed, data))
        columns[name] = decoder.value(parsed, data)
        problems.append(f.concat(f.lit(f"{name}: "), problem))
    if source.headers:
        columns["headers"], problem = _headers(source.headers)
        problems.append(problem)
    return frame.select(
        columns["key"].alias("key"),
        columns["value"].alias("value"),
        *("topic", "partition", "offset", "timestamp", "timestampType"),
        columns["headers"].alias("headers"),
        f.nullif(f.concat_ws("; ", *problems), f.lit("")).alias(ERROR)
        if problems
        else f.lit(None).cast("string").alias(ERROR),
        f.col("key").alias(RAW_KEY),
        f.col("value").alias(RAW_VALUE),
    )


def _unread_counts(data: Column, unread: Mapping[int, Sequence[str]]) -> list[Column]:
    """Count the records of each schema that has fields which are not read; the names say which fields."""
    counts = []
    for schema_id, fields in unread.items():
        if fields:
            named = ", ".join(fields[:_NAMED_MAX])
            more = f" and {len(fields) - _NAMED_MAX} more" if len(fields) > _NAMED_MAX else ""
            count = f.count_if(header(data) == header_of(schema_id))
            counts.append(count.alias(f"schema id {schema_id}: {named}{more}"))
    return counts


def digest(source: SourceSpec, decoded: DataFrame, pins: Pins) -> str:
    """Return a text that is another one if a source is decoded in another way."""
    found = hashlib.sha256(msgspec.json.encode(source.headers, order="sorted"))
    for part, of in (("key", source.key), ("value", source.value)):
        content = b"" if of.schema_file is None else Path(of.schema_file).read_bytes()
        # Not how a version was asked for, but which one it is.
        version = reader_id(f"{source.name}.{part}", pins) or of.version
        same = msgspec.structs.replace(of, schema_file=None, version=version)
        found.update(msgspec.json.encode(same, order="sorted"))
        found.update(hashlib.sha256(content).digest())
    # What files import has its part in it, too.
    found.update(decoded.schema.simpleString().encode())
    return found.hexdigest()


def _decoder(
    of: Decoding, place: str, session: SparkSession, source: SourceSpec, state: DecoderState
) -> Decoder | None:
    """Return what decodes, None for bytes as they are; `place` names it in errors and pins."""
    for name in of.options:
        if name.lower() in map(str.lower, _OWN_OPTIONS):
            raise PipelineError(f"sources.{place}.options: {name} is not for pipelines: on_error says it")
    match of.format:
        case "bytes":
            return None
        case "string":
            return text_decoder(of, StringType())
    registered = None
    schema = _schema(of, place, source, state) if of.format in ("json", "csv") else None
    if of.registry and schema is None:
        registry = _required(state.registry, place)
        registered = (PinnedSchemas(of, place, state.pins, registry), Lookup(place, registry))
    try:
        if schema is not None:
            decoder = text_decoder(of, schema)
            return _AfterHeader(decoder) if of.registry else decoder
        reader = _reader(of, None if registered is None else registered[0])
        if of.format == "avro":
            return _Avro(session, reader, of.options, registered)
        return _Protobuf(reader, of, registered)
    except PipelineError as error:
        raise PipelineError(f"sources.{place}: {error}") from error


def _reader(of: Decoding, pinned: PinnedSchemas | None) -> Schema:
    """Return the schema that records are read by."""
    if of.schema_file is not None:
        text = Path(of.schema_file).read_text(errors="replace")
        return Schema(id=0, kind=of.format.upper(), text=text)
    if pinned is None or pinned.reader is None:
        raise PipelineError("there is no schema to read by")
    if pinned.reader.kind.lower() != of.format:
        raise PipelineError(f"{of.subject} is {pinned.reader.kind}, not {of.format}")
    return pinned.reader


class _AfterHeader(Decoder):
    """What follows the header of a schema registry, which is not asked, as another decoder has it."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def unread(self, data: Column) -> list[Column]:
        return self._decoder.unread(payload(data))

    def parse(self, data: Column) -> Column:
        return self._decoder.parse(payload(data))

    def value(self, parsed: Column, data: Column) -> Column:
        return self._decoder.value(parsed, payload(data))

    def problem(self, parsed: Column, data: Column) -> Column:
        problem = self._decoder.problem(parsed, payload(data))
        return f.when(header(data).isNull(), NO_HEADER).otherwise(problem)


class _Avro(Decoder):
    """Records of Avro, with the header of a schema registry or without, read by one schema."""

    def __init__(
        self,
        session: SparkSession,
        reader: Schema,
        options: Mapping[str, str],
        registered: tuple[PinnedSchemas, Lookup] | None,
    ) -> None:
        avro.limit(session)
        self._reader = avro.whole_schema(reader)
        if problem := avro.check(session, self._reader, self._reader):
            raise PipelineError(f"the schema cannot be used: {problem}")
        self._options = options
        self._lookup = None if registered is None else registered[1]
        known = {} if registered is None else registered[0].known
        self._writers = {of: avro.writer(session, self._reader, schema) for of, schema in known.items()}
        self._unread = {
            of: avro.unread(self._reader, writer.schema)
            for of, writer in self._writers.items()
            if writer.problem is None
        }
        try:
            schema = session.range(0).select(self._record(f.lit(b""), self._reader)).schema
        except JOB_ERRORS as error:
            raise PipelineError(f"the schema cannot be used: {reason_of(error)}") from error
        self._kind = cast("StructType", schema.fields[0].dataType)[avro.VALUE].dataType

    def unread(self, data: Column) -> list[Column]:
        return _unread_counts(data, self._unread)

    def _record(self, data: Column, writer: str) -> Column:
        return avro.parse(data, self._reader, writer, self._options)

    def parse(self, data: Column) -> Column:
        if self._lookup is None:
            return f.struct(self._record(data, self._reader).alias("parsed"))
        head = header(data)
        by_id = f.when(head.isNull(), None)
        for of, writer in self._writers.items():
            if writer.problem is None:
                by_id = by_id.when(head == header_of(of), self._record(payload(data), writer.schema))
        known = head.isin([header_of(of) for of in self._writers])
        unknown = f.when(head.isNotNull() & ~known, id_in(head))
        return f.struct(by_id.alias("parsed"), self._lookup.problems(unknown).alias("unknown"))

    def value(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - as the others have it
        return converted(parsed["parsed"][avro.VALUE], self._kind, in_years)

    def problem(self, parsed: Column, data: Column) -> Column:
        value = parsed["parsed"][avro.VALUE]
        found = f.when(f.lit(False), "")  # noqa: FBT003 - a value of Spark's
        malformed: Column = f.lit("not one record of the schema")
        if self._lookup is not None:
            head = header(data)
            found = found.when(head.isNull(), NO_HEADER).when(
                parsed["unknown"].isNotNull(), parsed["unknown"]
            )
            for of, writer in self._writers.items():
                if writer.problem is not None:
                    found = found.when(head == header_of(of), f.lit(f"schema id {of}: {writer.problem}"))
            malformed = f.concat(f.lit("not one record of schema id "), id_in(head).cast("string"))
        return (
            found.when(~avro.is_complete(parsed["parsed"]), malformed)
            .when(value.isNull(), f.lit("null"))
            .otherwise(
                f.coalesce(
                    checked(value, self._kind, is_invalid, "is not valid UTF-8"),
                    checked(value, self._kind, is_out_of_years, "is not in the years 1 to 9999"),
                )
            )
        )


class _Protobuf(Decoder):
    """Messages of Protobuf, with the header of a schema registry or without."""

    def __init__(self, reader: Schema, of: Decoding, registered: tuple[PinnedSchemas, Lookup] | None) -> None:
        try:
            from korvet.spark.pipelines import protobuf  # noqa: PLC0415 - needs packages of its own
        except ImportError as error:
            raise PipelineError(f"Protobuf needs korvet[protobuf]: {error}") from error
        if of.options:
            raise PipelineError("Protobuf has no options")
        if of.schema_file is not None and of.schema_file.endswith(".desc"):
            files = protobuf.described(Path(of.schema_file).read_bytes())
        else:
            directory = None if of.schema_file is None else Path(of.schema_file).parent
            files = protobuf.compiled(reader, directory)
        known = {} if registered is None else registered[0].known
        lookup = None if registered is None else registered[1]
        name = protobuf.chosen(files, of.message)
        writers = {each: protobuf.writer(schema, files, name) for each, schema in known.items()}
        self._reader = protobuf.MessageReader(
            files, name, {each: writer.messages for each, writer in writers.items()}, lookup
        )
        self._unread = {each: writer.unread for each, writer in writers.items()}

    def unread(self, data: Column) -> list[Column]:
        return _unread_counts(data, self._unread)

    def parse(self, data: Column) -> Column:
        return self._reader.column(data)

    def value(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - as the others have it
        return parsed["value"]

    def problem(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - the same
        return parsed["problem"]


def _headers(declared: Mapping[str, str]) -> tuple[Column, Column]:
    """Return a struct of these headers, of each the last one, NULL without; and what is wrong with them."""
    values, problems = [], []
    for name, kind in declared.items():
        same = f.filter("headers", _named(name))
        data = f.try_element_at(same, f.lit(-1))["value"]
        if kind == "string":
            problem = f.when(~f.is_valid_utf8(text(data)), f.lit(f"header {name}: {INVALID_TEXT}"))
            problems.append(problem)
            data = f.when(problem.isNull(), text(data))
        values.append(data.alias(name))
    return f.struct(*values), f.concat_ws("; ", *problems)


def _named(name: str) -> Callable[[Column], Column]:
    return lambda header: header["key"] == name


def _schema(of: Decoding, place: str, source: SourceSpec, state: DecoderState) -> DataType:
    """Return the schema of JSON or CSV; raises PipelineError."""
    if of.infer:
        return _inferred(of, place, source, state)
    text = of.schema
    if of.schema_file is not None:
        text = text_of(Path(of.schema_file), f"sources.{place}.schema_file")
    if text is None:
        raise PipelineError(f"sources.{place}: there is no schema")
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(msgspec.json.decode(text))
        return DataType.fromDDL(text)
    except (*JOB_ERRORS, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise PipelineError(f"sources.{place}: the schema is not Spark's: {reason_of(error)}") from error


def _inferred(of: Decoding, place: str, source: SourceSpec, state: DecoderState) -> DataType:
    """Return the schema of the first records, which is pinned: later ones do not change it."""
    pin = f"schemas/{place}.json"
    pinned = state.pins.read(pin)
    if pinned is not None:
        return StructType.fromJson(msgspec.json.decode(pinned))
    column = f.col(place.rpartition(".")[2])
    records = state.records(source)
    if of.registry:
        column = f.when(header(column).isNotNull(), payload(column))
    texts = records.where(column.isNotNull()).select(text(column)).limit(_INFERRED_RECORDS).collect()
    session = records.sparkSession
    reader = session.read.options(**json_options(of), mode="DROPMALFORMED")
    schema = reader.json(session.sparkContext.parallelize([row[0] for row in texts], 1)).schema
    if not schema.fields:
        raise PipelineError(
            f"sources.{place}.infer: none of the first {len(texts)} records is a JSON object: give a schema"
        )
    state.pins.write(pin, schema.json().encode())
    return schema
