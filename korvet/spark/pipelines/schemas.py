"""Schemas by the ids in records: the ones a plan knows, the pinned ones, and the rule for new ids.

A plan has one expression for each schema that records were written with. An id that it does not know is asked for
where the record is found: if the registry does not know it, that is an error of the record; if it does, the query ends
with NewSchemaError, `learn` pins that schema, and the next plan knows it.

The reader's schema is pinned too, so a batch that Spark repeats is decoded as it was the first time. `follow` replaces
it by the subject's newest version. Pins that are not written yet have the new one, those in the directory the old one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Protocol, Self

import msgspec
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from korvet.spark.pipelines.registry import RegistryError, Schema, SchemaRegistry
from korvet.spark.pipelines.spec import Decoding, PipelineError

HEADER_BYTES = 5
"""A zero, and the id in four bytes, the most significant first."""

NO_HEADER = "no header of a schema registry"

_ID_MAX = (1 << 31) - 1
_UNKNOWN_S = 60.0
"""How long a task takes an id for unknown without asking again."""
_UNKNOWN_MAX = 10_000
_VERSIONS_MAX = 100
"""How many versions of a subject are fetched at once, the newest; records with others name them."""


class Pins(Protocol):
    """Small files that stay with a pipeline."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole."""


class NewSchemaError(PipelineError):
    """A record has a schema that the registry knows, and the plan does not: `learn` it, and make the plan again."""

    def __init__(self, place: str, schema_id: int) -> None:
        super().__init__(f"new schema: {place}: id {schema_id}")
        self.place = place
        self.schema_id = schema_id

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        """Pickle by what it is made of: it leaves Python's workers."""
        return type(self), (self.place, self.schema_id)

    @classmethod
    def of(cls, error: BaseException) -> NewSchemaError | None:
        """Return the one that ended a query, None if something else did."""
        match = re.search(r"new schema: ([\w.]+): id (\d+)", str(error))
        return None if match is None else cls(match[1], int(match[2]))


def met_unknown_schema(error: PipelineError) -> bool:
    """Return whether a query ended at a record of a schema that its plan does not know: it has written nothing."""
    return re.search(r"(new|unknown) schema: [\w.]+: id ", str(error)) is not None


class _Pinned(msgspec.Struct, kw_only=True):
    """The file of one place: `asked` is what the reader's schema was asked by."""

    asked: tuple[str, str] | None = None
    reader: Schema | None = None
    known: dict[int, Schema] = {}


def _file(place: str) -> str:
    return f"schemas/{place.removeprefix('sources.')}.registry.json"


def _pinned(place: str, pins: Pins) -> _Pinned:
    content = pins.read(_file(place))
    return _Pinned() if content is None else msgspec.json.decode(content, type=_Pinned)


class PinnedSchemas:
    """The schemas of one place, a key or a value; raises PipelineError if the registry cannot be asked."""

    def __init__(self, decoding: Decoding, place: str, pins: Pins, registry: SchemaRegistry) -> None:
        self._place = place
        self._pins = pins
        self._registry = registry
        self._pinned = _pinned(place, pins)
        if decoding.subject is not None and self._pinned.asked != (
            asked := (decoding.subject, str(decoding.version))
        ):
            self._read_by(registry.version(*asked), asked)

    @property
    def reader(self) -> Schema | None:
        """The version of the subject that records are read by."""
        return self._pinned.reader

    @property
    def known(self) -> Mapping[int, Schema]:
        """The schemas that records are known to have been written with, by id."""
        return self._pinned.known

    def follow(self) -> str | None:
        """Pin the newest version of the subject if `latest` was asked for; return what has changed, None if nothing."""
        asked, before = self._pinned.asked, self._pinned.reader
        if asked is None or before is None or asked[1] != "latest":
            return None
        newest = self._registry.version(*asked)
        if newest.id == before.id:
            return None
        self._read_by(newest, asked, before.version)
        return (
            f"{self._place}: {asked[0]} has version {newest.version} now;"
            f" version = {before.version} keeps the one before"
        )

    def learn(self, number: int) -> None:
        """Pin a schema that a record has named."""
        schema = self._registry.schema(number)
        if schema is not None:
            self._know(schema)

    def _read_by(self, reader: Schema, asked: tuple[str, str], known: int = 0) -> None:
        """Read by another schema; `known`: the newest version of the subject that is pinned already."""
        subject = asked[0]
        newer = [version for version in self._registry.versions(subject) if version > known][-_VERSIONS_MAX:]
        self._pinned.asked, self._pinned.reader = asked, reader
        self._know(reader, *(self._registry.version(subject, item) for item in newer))

    def _know(self, *schemas: Schema) -> None:
        self._pinned.known |= {schema.id: schema for schema in schemas}
        self._pins.write(_file(self._place), msgspec.json.encode(self._pinned))


def reader_id(place: str, pins: Pins) -> int | None:
    """Return the id of the pinned schema that the records of a place are read by, None without one."""
    reader = _pinned(place, pins).reader
    return None if reader is None else reader.id


class Lookup:
    """The rule for ids unknown to the plan; pickled for the tasks."""

    def __init__(self, place: str, registry: SchemaRegistry) -> None:
        self._place = place
        self._registry = registry
        self._unknown: dict[int, float] = {}

    def problem(self, schema_id: int) -> str:
        """Return what is wrong with an id; raises NewSchemaError if nothing is."""
        now = time.monotonic()
        if now >= self._unknown.get(schema_id, 0):
            if schema_id <= _ID_MAX and self._exists(schema_id):
                raise NewSchemaError(self._place, schema_id)
            if len(self._unknown) >= _UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[schema_id] = now + _UNKNOWN_S
        return f"schema id {schema_id} is not in the registry"

    def _exists(self, schema_id: int) -> bool:
        try:
            return self._registry.schema(schema_id) is not None
        except RegistryError as error:
            raise RegistryError(f"unknown schema: {self._place}: id {schema_id}: {error}") from error

    def problems(self, schema_ids: Column) -> Column:
        def of(ids: pa.Array) -> pa.Array:
            if ids.null_count == len(ids):
                return pa.nulls(len(ids), pa.string())
            return pa.array(
                [None if schema_id is None else self.problem(schema_id) for schema_id in ids.to_pylist()],
                pa.string(),
            )

        result: Column = arrow_udf(of, "string").asNondeterministic()(schema_ids)  # type: ignore[call-overload]  # by hints
        return result


def header(data: Column) -> Column:
    """Return the header of a record's bytes, NULL if it has none."""
    head = f.substring(data, 1, HEADER_BYTES)
    return f.when((f.length(head) == HEADER_BYTES) & (f.substring(head, 1, 1) == f.lit(b"\0")), head)


def header_of(schema_id: int) -> Column:
    return f.lit(schema_id.to_bytes(HEADER_BYTES, "big"))


def id_in(head: Column) -> Column:
    """Return the id that a header has."""
    return f.conv(f.hex(head), 16, 10).cast("bigint")


def payload(data: Column) -> Column:
    """Return what follows the header."""
    return f.substring(data, HEADER_BYTES + 1, _ID_MAX)
