"""Avro to columns: by Spark's from_avro, once for each schema that records were written with.

Avro has no end: what follows a record is not noticed, and what is missing may be found in bytes of something else. So a
record is read as the first field of another one, whose second field is a mark that is put after the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from korvet.spark.pipelines.registry import Schema
from korvet.spark.pipelines.spec import PipelineError

_END = b"korvet\xf5\xff"
"""What is put after each record: no text ends so."""

VALUE, END = "value", "end"

LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 64 << 20,
    "org.apache.avro.limits.string.maxLength": 64 << 20,
    "org.apache.avro.limits.collectionItems.maxLength": 10_000_000,
}
"""Properties of Java: a length that a record only claims is memory that is taken, and all of Java ends without it."""


class Writer(NamedTuple):
    """A schema that records are written with, or why none can be read."""

    schema: str
    problem: str | None


def whole_schema(session: SparkSession, schema: Schema) -> str:
    """Return a schema with the types that it needs of others in it; raises PipelineError if it is none, or recursive.

    A recursive one would let a record be nested without end, which ends Java.
    """
    parser = _avro(session).Schema.Parser()
    try:
        texts = [*schema.references.values(), schema.text]
        for text in texts:
            msgspec.json.decode(text)
        # The parser knows the types of those before, and writes each where it is named first.
        whole = str([parser.parse(text) for text in texts][-1].toString())
        for _ in _records(msgspec.json.decode(whole)):
            pass
    except (msgspec.DecodeError, RecursionError) as error:
        raise PipelineError(f"it is no Avro schema: {error}") from error
    except Py4JError as error:
        cause = getattr(error, "java_exception", None)
        raise PipelineError(
            f"the schema cannot be used: {error if cause is None else cause.getMessage()}"
        ) from error
    return whole


def _avro(session: SparkSession) -> Any:  # noqa: ANN401 - a package of Java's
    return session._jvm.org.apache.avro  # type: ignore[union-attr]  # noqa: SLF001 - Avro has no interface in PySpark


def marked(schema: str) -> str:
    """Return the schema of a record that has one of `schema`, and the mark."""
    return (
        f'{{"type":"record","name":"_Korvet","fields":[{{"name":"{VALUE}","type":{schema}}},'
        f'{{"name":"{END}","type":{{"type":"fixed","name":"_KorvetEnd","size":{len(_END)}}}}}]}}'
    )


def _mismatch(session: SparkSession, reader: str, writer: str) -> str | None:
    """Return why Java cannot read what a schema wrote by another one, None if it can."""
    avro = _avro(session)
    schemas = [avro.Schema.Parser().parse(schema) for schema in (reader, writer)]
    pair = avro.SchemaCompatibility.checkReaderWriterCompatibility(*schemas)
    problems = pair.getResult().getIncompatibilities()
    if not problems:
        return None
    first = problems[0]
    return f"{first.getType().toString()} at {first.getLocation()}: {first.getMessage()}"


def writer(session: SparkSession, reader: str, of: Schema) -> Writer:
    """Return what records of a schema are read with, by the reader's."""
    if of.kind != "AVRO":
        return Writer("", f"it is {of.kind}, not Avro")
    try:
        schema = whole_schema(session, of)
    except PipelineError as error:
        return Writer("", str(error))
    return Writer(schema, _mismatch(session, reader, schema))


def unread(reader: str, writer: str) -> list[str]:
    """Return the fields that a record of the writer's schema has, and the reader's record of that name lacks."""
    known: dict[str, set[str]] = {}
    for full_name, record in _records(msgspec.json.decode(reader)):
        fields = {name for field in record["fields"] for name in (field["name"], *field.get("aliases", ()))}
        for name in (full_name, *record.get("aliases", ())):
            # Avro reads a record of another namespace too, by its simple name.
            for alias in (name, name.rpartition(".")[2]):
                known.setdefault(alias, set()).update(fields)
    missing = []
    for full_name, record in _records(msgspec.json.decode(writer)):
        simple = full_name.rpartition(".")[2]
        read = known.get(full_name, known.get(simple))
        # A record that the reader does not have is in a field that is missing itself.
        if read is not None:
            names = [field["name"] for field in record["fields"]]
            missing += [f"{simple}.{name}" for name in names if name not in read]
    return missing


def _records(
    of: Any,  # noqa: ANN401 - JSON
    namespace: str = "",
    within: tuple[str, ...] = (),
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records in a whole schema with their full names; raises PipelineError for one that contains itself."""
    if isinstance(of, str):
        name = of if "." in of or not namespace else f"{namespace}.{of}"
        if name in within:
            raise PipelineError(f"{name} contains itself: recursive schemas are not supported")
    elif isinstance(of, list):
        for part in of:
            yield from _records(part, namespace, within)
    elif "fields" in of:
        space = of.get("namespace", namespace)
        name = of["name"] if "." in of["name"] or not space else f"{space}.{of['name']}"
        yield name, of
        for field in of["fields"]:
            yield from _records(field["type"], name.rpartition(".")[0], (*within, name))
    else:
        # What an array or a map has, or a type with attributes.
        yield from _records(of.get("items", of.get("values", of["type"])), namespace, within)


def limit(session: SparkSession) -> None:
    """Limit what Avro takes memory for in this Java; executors get LIMITS when they start."""
    java = session._jvm  # noqa: SLF001 - the same
    assert java is not None  # noqa: S101 - a session has one
    for name, most in LIMITS.items():
        java.java.lang.System.setProperty(name, str(most))


def parse(data: Column, reader: str, writer: str, options: Mapping[str, str]) -> Column:
    """Return a struct of the value and the mark; of bytes that end early both are NULL."""
    whole = f.concat(data, f.lit(_END))
    return from_avro(whole, marked(writer), {**options, "mode": "PERMISSIVE", "avroSchema": marked(reader)})


def is_complete(parsed: Column) -> Column:
    """Return whether the mark is where it was put: the bytes were one record."""
    return f.coalesce(parsed[END] == f.lit(_END), f.lit(False))  # noqa: FBT003 - a value of Spark's
