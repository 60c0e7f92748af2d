"""Records of a source as columns: keys and values by korvet.spark.decoding, and headers.

What does not decode has a reason in the column `_error`, and its bytes beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from korvet import logs
from korvet.spark import decoding
from korvet.spark.decoding import ERROR, RAW, required
from korvet.spark.pipelines.registry import RegistryError, SchemaRegistry
from korvet.spark.pipelines.schemas import NewSchemaError, PinnedSchemas, Pins, header, payload, reader_id
from korvet.spark.pipelines.spec import UNREAD, Decoding, PipelineError, SourceSpec
from korvet.spark.pipelines.texts import INVALID_TEXT, json_options, text

RAW_KEY, RAW_VALUE = f"{RAW}key", f"{RAW}value"

_log = logs.Log(__name__)

_INFERRED_RECORDS = 1000
"""How many records an inferred schema is taken from."""


class DecoderState(NamedTuple):
    """What decoding needs besides records: `pins`, and the records of a source as a batch, to infer a schema from."""

    pins: Pins
    records: Callable[[SourceSpec], DataFrame]
    registry: SchemaRegistry | None = None

    def learn(self, new: NewSchemaError) -> None:
        """Pin the schema that has ended a query: frames that are decoded from now on know it."""
        registry = required(self.registry, new.place)
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
                place = f"sources.{source.name}.{part}"
                pinned = PinnedSchemas(of, place, self.pins, required(self.registry, place))
                try:
                    changes.append(pinned.follow())
                except RegistryError as error:
                    _log.warning("records are read by the schema that is pinned", source=place, reason=error)
        return list(filter(None, changes))


def decode(frame: DataFrame, source: SourceSpec, state: DecoderState) -> DataFrame:
    """Return records with key, value and headers decoded, and the columns `_error`, `_raw_key` and `_raw_value`.

    Of a record with an error the columns have anything. NULL is decoded as NULL: of a tombstone, or without a key.
    Raises PipelineError if a schema cannot be had or used.
    """
    parts = {"key": source.key, "value": source.value}
    decoded = decoding.decode(
        frame.select(*parts, "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
        {part: _with_schema(of, part, source, state) for part, of in parts.items()},
        registry=state.registry,
        pins=state.pins,
        place=f"sources.{source.name}",
        metrics=f"{UNREAD}{source.name}",
    )
    if not source.headers:
        return decoded
    headers, problem = _headers(source.headers)
    problems = f.nullif(f.concat_ws("; ", f.col(ERROR), problem), f.lit(""))
    return decoded.withColumns({"headers": headers, ERROR: problems})


def digest(source: SourceSpec, decoded: DataFrame, pins: Pins) -> str:
    """Return a text that is another one if a source is decoded in another way."""
    hashed = hashlib.sha256(msgspec.json.encode(source.headers, order="sorted"))
    for part, of in (("key", source.key), ("value", source.value)):
        content = b"" if of.schema_file is None else Path(of.schema_file).read_bytes()
        # Not how a version was asked for, but which one it is.
        version = reader_id(f"sources.{source.name}.{part}", pins) or of.version
        same = msgspec.structs.replace(of, schema_file=None, version=version)
        hashed.update(msgspec.json.encode(same, order="sorted"))
        hashed.update(hashlib.sha256(content).digest())
    # What files import has its part in it, too.
    hashed.update(decoded.schema.simpleString().encode())
    return hashed.hexdigest()


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


def _with_schema(of: Decoding, part: str, source: SourceSpec, state: DecoderState) -> Decoding:
    """Return a decoding with the schema of the first records if it infers one.

    The schema is pinned: later records do not change it.
    """
    if not of.infer:
        return of
    place = f"{source.name}.{part}"
    pin = f"schemas/{place}.json"
    pinned = state.pins.read(pin)
    if pinned is not None:
        return msgspec.structs.replace(of, schema=pinned.decode(), infer=False)
    column = f.col(part)
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
    return msgspec.structs.replace(of, schema=schema.json(), infer=False)
