"""Bytes as columns, in any job of Spark: `decode` takes a frame with bytes, and says what does not decode.

    from korvet.spark.decoding import Decoding, RegistrySpec, decode

    orders = decode(records, {"value": Decoding(format="json", schema="id BIGINT NOT NULL, amount DOUBLE")})
    good = orders.where("_error IS NULL").select("value.*", "offset")
    bad = orders.where("_error IS NOT NULL").select("offset", "_raw_value", "_error")

Spark would move an expression into each filter and projection over it, and parse a record three times. It moves
nothing through a generator: all that is expensive is in one, which makes one row of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from korvet.spark.pipelines import avro
from korvet.spark.pipelines.checks import checked, is_invalid
from korvet.spark.pipelines.registry import Schema, SchemaRegistry
from korvet.spark.pipelines.schemas import (
    NO_HEADER,
    Lookup,
    PinnedSchemas,
    Pins,
    header,
    header_of,
    id_in,
    payload,
)
from korvet.spark.pipelines.spec import Decoding, PipelineError, RegistrySpec, text_of
from korvet.spark.pipelines.texts import Decoder, text_decoder
from korvet.spark.pipelines.times import converted, in_years, is_out_of_years
from korvet.spark.session import JOB_ERRORS, reason_of

__all__ = ["ERROR", "RAW", "Decoding", "PipelineError", "RegistrySpec", "decode"]

ERROR, RAW = "_error", "_raw_"
"""The column with the reason, and what the names of columns with bytes begin with."""
_PARSED = "_parsed"

_NAMED_MAX = 20
"""How many fields that are not read a metric names of one schema."""

_OWN_OPTIONS = ("mode", "columnNameOfCorruptRecord")
"""Options of Spark's parsers that are not the user's: errors are in a column."""


class _NoPins(Pins):
    """Keeps nothing: the registry is asked by each plan."""

    def read(self, name: str) -> bytes | None:  # noqa: ARG002 - as the others have it
        return None

    def write(self, name: str, data: bytes) -> None:
        pass


class _Registered(NamedTuple):
    """The schemas of a column by a registry: the reader's, those of writers by id, and what a task does with others."""

    reader: Schema | None = None
    known: Mapping[int, Schema] = {}
    lookup: Lookup | None = None


class _Schemas(NamedTuple):
    """Where schemas of records are from."""

    registry: SchemaRegistry | None
    ids: tuple[int, ...]
    pins: Pins

    def of(self, decoding: Decoding, where: str) -> _Registered:
        """Return the schemas of a column; raises PipelineError."""
        registry = required(self.registry, where)
        pinned = PinnedSchemas(decoding, where, self.pins, registry)
        for schema_id in self.ids:
            pinned.learn(schema_id)
        return _Registered(pinned.reader, pinned.known, Lookup(where, registry))


def decode(
    frame: DataFrame,
    columns: Mapping[str, Decoding],
    *,
    registry: RegistrySpec | SchemaRegistry | None = None,
    schema_ids: Iterable[int] = (),
    pins: Pins | None = None,
    place: str = "",
    metrics: str | None = None,
) -> DataFrame:
    """Return a frame, of a batch or a stream, with columns of bytes decoded and the others as they are.

    frame: `columns` names columns of it that are BINARY or STRING.
    columns: how each is decoded; the fields of a Decoding are the keys of a decoding in the file of a pipeline
        (docs/lake/pipelines.md), but for `infer`, which takes a pipeline.
    registry: the schema registry of formats with `registry=True`. The driver asks it for the versions of the subject
        when this is called, and a task for an id that is none of them. If the registry has that id, the query ends
        with "new schema: ... id N": a plan knows schemas when it is made. Call this again: a new version of the
        subject is known then.
    schema_ids: more schemas that records name, as of other subjects, or of `schema_file` without a subject.
    pins: keeps the schemas that the registry has given; without it each call asks again.
    place: what errors name the columns by, before their names.
    metrics: observes under `METRICS.COLUMN` how many records have fields that the schema lacks.

    Columns of the result, after those of the frame: `_error` STRING, which is NULL if all columns of the row decode,
    and for each column its bytes as `_raw_COLUMN`. NULL decodes as NULL. In a row with an error the decoded columns
    have anything.

    Raises PipelineError, before anything is read, if a column, a schema, an option or the registry cannot be used.
    """
    asked = SchemaRegistry(registry) if isinstance(registry, RegistrySpec) else registry
    schemas = _Schemas(asked, tuple(schema_ids), pins or _NoPins())
    decoders: dict[str, Decoder] = {}
    for name, of in columns.items():
        where = f"{place}.{name}" if place else name
        _check_column(frame, name, where)
        decoder = _decoder(of, where, frame.sparkSession, schemas)
        if decoder is not None:
            decoders[name] = decoder
    names = frame.columns
    # By other names: within a lambda of a select Spark takes a name for the column that the select makes.
    data = {name: f.col(f"{RAW}{name}") for name in columns}
    frame = frame.select("*", *(f.col(name).cast("binary").alias(f"{RAW}{name}") for name in columns))
    for name, decoder in decoders.items():
        if metrics is not None and (counts := decoder.unread(data[name])):
            frame = frame.observe(f"{metrics}.{name}", *counts)
    if decoders:
        parses = [decoder.parse(data[name]).alias(name) for name, decoder in decoders.items()]
        frame = frame.select("*", f.explode(f.array(f.struct(*parses))).alias(_PARSED))
    values, problems = {}, [f.lit(None).cast("string")]
    for name, decoder in decoders.items():
        parsed = f.col(_PARSED)[name]
        values[name] = decoder.value(parsed, data[name])
        problem = f.when(data[name].isNotNull(), decoder.problem(parsed, data[name]))
        problems.append(f.concat(f.lit(f"{name}: "), problem))
    return frame.select(
        *(values[name].alias(name) if name in values else f.col(name) for name in names),
        f.nullif(f.concat_ws("; ", *problems), f.lit("")).alias(ERROR),
        *data.values(),
    )


def _check_column(frame: DataFrame, name: str, where: str) -> None:
    kinds = [field.dataType for field in frame.schema if field.name == name]
    if len(kinds) != 1 or not isinstance(kinds[0], BinaryType | StringType):
        is_type = ", ".join(kind.simpleString() for kind in kinds) or "missing"
        raise PipelineError(
            f"{where}: the frame needs one column {name} of BINARY or STRING: it is {is_type}"
        )
    if taken := {ERROR, f"{RAW}{name}", _PARSED} & set(frame.columns):
        raise PipelineError(f"{where}: the frame has a column {min(taken)} already")


def _decoder(decoding: Decoding, where: str, session: SparkSession, schemas: _Schemas) -> Decoder | None:
    """Return what decodes, None for bytes as they are; `where` names it in errors and pins."""
    for name in decoding.options:
        if name.lower() in map(str.lower, _OWN_OPTIONS):
            raise PipelineError(
                f"{where}.options: {name} cannot be given: what does not decode is an error, by on_error or in {ERROR}"
            )
    match decoding.format:
        case "bytes":
            return None
        case "string":
            return text_decoder(decoding, StringType())
    schema = _schema(decoding, where) if decoding.format in ("json", "csv") else None
    registered = schemas.of(decoding, where) if decoding.registry and schema is None else _Registered()
    try:
        if schema is not None:
            decoder = text_decoder(decoding, schema)
            return _AfterHeader(decoder) if decoding.registry else decoder
        reader = _reader(decoding, registered.reader)
        if decoding.format == "avro":
            return _Avro(session, reader, decoding.options, registered)
        return _Protobuf(reader, decoding, registered)
    except PipelineError as error:
        raise PipelineError(f"{where}: {error}") from error


def required(registry: SchemaRegistry | None, where: str) -> SchemaRegistry:
    """Return a registry that has to be there; raises PipelineError."""
    if registry is None:
        raise PipelineError(f"{where}.registry: there is no [registry] with its url")
    return registry


def _schema(decoding: Decoding, where: str) -> DataType:
    """Return the schema of JSON or CSV; raises PipelineError."""
    text = decoding.schema
    if decoding.schema_file is not None:
        text = text_of(Path(decoding.schema_file), f"{where}.schema_file")
    if text is None:
        raise PipelineError(f"{where}: there is no schema")
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(msgspec.json.decode(text))
        return DataType.fromDDL(text)
    except (*JOB_ERRORS, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise PipelineError(f"{where}: the schema is not Spark's: {reason_of(error)}") from error


def _reader(decoding: Decoding, pinned: Schema | None) -> Schema:
    """Return the schema that records are read by."""
    if decoding.schema_file is not None:
        text = Path(decoding.schema_file).read_text(errors="replace")
        return Schema(id=0, kind=decoding.format.upper(), text=text)
    if pinned is None:
        raise PipelineError("there is no schema to read by")
    if pinned.kind.lower() != decoding.format:
        raise PipelineError(f"{decoding.subject} is {pinned.kind}, not {decoding.format}")
    return pinned


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
        self, session: SparkSession, reader: Schema, options: Mapping[str, str], registered: _Registered
    ) -> None:
        avro.limit(session)
        self._reader = avro.whole_schema(session, reader)
        self._options = options
        self._lookup = registered.lookup
        self._writers = {
            of: avro.writer(session, self._reader, schema) for of, schema in registered.known.items()
        }
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
        problems = f.when(f.lit(False), "")  # noqa: FBT003 - a value of Spark's
        malformed: Column = f.lit("not one record of the schema")
        if self._lookup is not None:
            head = header(data)
            problems = problems.when(head.isNull(), NO_HEADER).when(
                parsed["unknown"].isNotNull(), parsed["unknown"]
            )
            for of, writer in self._writers.items():
                if writer.problem is not None:
                    problems = problems.when(
                        head == header_of(of), f.lit(f"schema id {of}: {writer.problem}")
                    )
            malformed = f.concat(f.lit("not one record of schema id "), id_in(head).cast("string"))
        return (
            problems.when(~avro.is_complete(parsed["parsed"]), malformed)
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

    def __init__(self, reader: Schema, decoding: Decoding, registered: _Registered) -> None:
        try:
            from korvet.spark.pipelines import protobuf  # noqa: PLC0415 - needs packages of its own
        except ImportError as error:
            raise PipelineError(f"Protobuf needs korvet[protobuf]: {error}") from error
        if decoding.options:
            raise PipelineError("Protobuf has no options")
        if decoding.schema_file is not None and decoding.schema_file.endswith(".desc"):
            files = protobuf.described(Path(decoding.schema_file).read_bytes())
        else:
            directory = None if decoding.schema_file is None else Path(decoding.schema_file).parent
            files = protobuf.compiled(reader, directory)
        name = protobuf.chosen(files, decoding.message)
        writers = {id_: protobuf.writer(schema, files, name) for id_, schema in registered.known.items()}
        messages = {id_: writer.messages for id_, writer in writers.items()}
        self._reader = protobuf.MessageReader(files, name, messages, registered.lookup)
        self._unread = {id_: writer.unread for id_, writer in writers.items()}

    def unread(self, data: Column) -> list[Column]:
        return _unread_counts(data, self._unread)

    def parse(self, data: Column) -> Column:
        return self._reader.column(data)

    def value(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - as the others have it
        return parsed["value"]

    def problem(self, parsed: Column, data: Column) -> Column:  # noqa: ARG002 - the same
        return parsed["problem"]


def _unread_counts(data: Column, unread: Mapping[int, Sequence[str]]) -> list[Column]:
    """Count the records of each schema with unread fields, by the names of the fields."""
    counts = []
    for schema_id, fields in unread.items():
        if fields:
            named = ", ".join(fields[:_NAMED_MAX])
            more = f" and {len(fields) - _NAMED_MAX} more" if len(fields) > _NAMED_MAX else ""
            count = f.count_if(header(data) == header_of(schema_id))
            counts.append(count.alias(f"schema id {schema_id}: {named}{more}"))
    return counts
