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


def whole_schema(of: Schema) -> str:
    """Return a schema with the types that it needs of others in it; raises PipelineError if it is none, or recursive.

    A recursive one would let a record be nested without end, which ends Java.
    """
    try:
        others: dict[str, Any] = {}
        for text in of.references.values():
            parsed = msgspec.json.decode(text)
            for schema in parsed if isinstance(parsed, list) else [parsed]:
                if isinstance(schema, dict) and "name" in schema:
                    others[_full_name(schema, "")] = schema
        return msgspec.json.encode(_Inliner(others).inlined(msgspec.json.decode(of.text), "", ())).decode()
    except (msgspec.DecodeError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise PipelineError(f"it is no Avro schema: {error}") from error


_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _full_name(named: Mapping[str, Any], namespace: str) -> str:
    name = named["name"]
    if "." in name:
        return str(name)
    space = named.get("namespace", namespace)
    return f"{space}.{name}" if space else str(name)


class _Inliner:
    """Puts types of other schemas where they are named first, each with its namespace."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others
        self._seen: set[str] = set()

    def inlined(self, of: Any, namespace: str, within: tuple[str, ...]) -> Any:  # noqa: ANN401 - JSON
        if isinstance(of, str):
            return self._named(of, namespace, within)
        if isinstance(of, list):
            return [self.inlined(part, namespace, within) for part in of]
        kind = of["type"]
        if kind not in _NAMED:
            inner = {
                name: self.inlined(of[name], namespace, within) for name in ("items", "values") if name in of
            }
            return (
                of
                | inner
                | ({} if inner or kind in _PRIMITIVE else {"type": self.inlined(kind, namespace, within)})
            )
        name = _full_name(of, namespace)
        space, _, simple = name.rpartition(".")
        self._seen.add(name)
        named = of | {"name": simple, "namespace": space}
        if "fields" in of:
            named["fields"] = [
                field | {"type": self.inlined(field["type"], space, (*within, name))}
                for field in of["fields"]
            ]
        return named

    def _named(self, name: str, namespace: str, within: tuple[str, ...]) -> Any:  # noqa: ANN401 - JSON
        if name in _PRIMITIVE:
            return name
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        # As Java's parser: a name without a namespace may be one of none.
        known = next(
            (candidate for candidate in (full, name) if candidate in self._seen or candidate in self._others),
            full,
        )
        if known in within:
            raise PipelineError(f"{known} contains itself: recursive schemas are not supported")
        if known in self._seen or known not in self._others:
            return known
        return self.inlined(self._others[known], "", within)


def marked(schema: str) -> str:
    """Return the schema of a record that has one of `schema`, and the mark."""
    return (
        f'{{"type":"record","name":"_Korvet","fields":[{{"name":"{VALUE}","type":{schema}}},'
        f'{{"name":"{END}","type":{{"type":"fixed","name":"_KorvetEnd","size":{len(_END)}}}}}]}}'
    )


def check(session: SparkSession, reader: str, writer: str) -> str | None:
    """Return why Java cannot read what a schema wrote by another one, None if it can."""
    avro = session._jvm.org.apache.avro  # type: ignore[union-attr]  # noqa: SLF001 - Avro has no interface in PySpark
    try:
        schemas = [avro.Schema.Parser().parse(schema) for schema in (reader, writer)]
        pair = avro.SchemaCompatibility.checkReaderWriterCompatibility(*schemas)
        problems = pair.getResult().getIncompatibilities()
    except Py4JError as error:
        cause = getattr(error, "java_exception", None)
        return str(error if cause is None else cause.getMessage())
    if not problems:
        return None
    first = problems[0]
    return f"{first.getType().toString()} at {first.getLocation()}: {first.getMessage()}"


def writer(session: SparkSession, reader: str, of: Schema) -> Writer:
    """Return what records of a schema are read with, by the reader's."""
    if of.kind != "AVRO":
        return Writer("", f"it is {of.kind}, not Avro")
    try:
        schema = whole_schema(of)
    except PipelineError as error:
        return Writer("", str(error))
    return Writer(schema, check(session, reader, schema))


def unread(reader: str, writer: str) -> list[str]:
    """Return the fields that a record of the writer's schema has, and the reader's record of that name lacks."""
    known: dict[str, set[str]] = {}
    for record in _records(msgspec.json.decode(reader)):
        fields = {name for field in record["fields"] for name in (field["name"], *field.get("aliases", ()))}
        for name in (_full_name(record, ""), *record.get("aliases", ())):
            # Avro reads a record of another namespace too, by its simple name.
            for alias in (name, name.rpartition(".")[2]):
                known.setdefault(alias, set()).update(fields)
    missing = []
    for record in _records(msgspec.json.decode(writer)):
        read = known.get(_full_name(record, ""), known.get(record["name"]))
        # A record that the reader does not have is in a field that is missing itself.
        if read is not None:
            names = [field["name"] for field in record["fields"]]
            missing += [f"{record['name']}.{name}" for name in names if name not in read]
    return missing


def _records(of: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    """Yield the records in a schema, each where it is declared."""
    if isinstance(of, list):
        for part in of:
            yield from _records(part)
    elif isinstance(of, dict):
        if "fields" in of:
            yield of
        yield from _records([*of.get("fields", ()), *(of.get(name) for name in ("type", "items", "values"))])


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
