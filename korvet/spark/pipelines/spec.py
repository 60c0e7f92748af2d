"""The file of a pipeline: where records come from, how they become columns and rows, and where rows go.

What is unknown, missing, of another type or contradicts itself is one error with its line and its place in the file.
Paths of files in it are relative to the file. Where Redis and the lake are is not in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from korvet.errors import LakeError
from korvet.spark.pipelines.file import PlaceError, convert, line_of, with_variables

UNREAD = "unread "
"""Begins the names of Spark's metrics of fields that are not read; a source and its part follow: `orders.value`."""


UNMET = "unmet "
"""The same of metrics of expectations that records do not meet; a source follows."""


class PipelineError(LakeError):
    """A pipeline cannot be, or go on, as it is declared; the message says why and what to do, in one line."""


class _Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table of the file; its field names are the file's."""


Unit: TypeAlias = Literal["seconds", "milliseconds", "microseconds"]


class Decoding(_Table, frozen=True, omit_defaults=True):
    """How bytes become a column.

    `schema` is Spark's DDL; `schema_file` an absolute path once loaded; `infer` takes the schema of the first records
    and pins it. With `registry` the bytes have Confluent's header, and the reader's schema is `schema_file`, or that of
    `subject` and `version`; that of JSON is given as without. `message` is that of Protobuf, by its full name.

    unit: what a number counts that is a TIMESTAMP; None = seconds in JSON, and in CSV no number is a time.
    unknown: what becomes of fields of JSON that the schema lacks: counted, an error, or kept in a column `_unknown`.
    """

    format: Literal["bytes", "string", "json", "avro", "protobuf", "csv"] = "bytes"
    schema: str | None = None
    schema_file: str | None = None
    infer: bool = False
    registry: bool = False
    subject: str | None = None
    version: str | int = "latest"
    message: str | None = None
    unit: Unit | None = None
    unknown: Literal["ignore", "dead_letters", "column"] = "ignore"
    options: dict[str, str] = {}


class SourceTable(_Table, frozen=True):
    """Topics that are one view.

    `starting` is earliest, latest, a time of ISO 8601, or offsets as the option startingOffsets has them. `expect` has
    conditions of SQL.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    tiers: Literal["both", "hot", "archived"] = "both"
    starting: str = "earliest"
    max_records_per_trigger: int | None = None
    watermark: tuple[str, str] | None = None
    on_error: Literal["fail", "dead_letters"] = "fail"
    on_data_loss: Literal["fail", "continue"] = "fail"
    expect: dict[str, Literal["dead_letters", "fail", "count"]] = {}
    key: Decoding = Decoding()
    value: Decoding = Decoding()
    headers: dict[str, Literal["string", "bytes"]] = {}


class SourceSpec(SourceTable, frozen=True):
    """A source with the `name` of its view; `ending` is as `starting`, of a run that reads a range."""

    name: str = ""
    ending: str | None = None

    @property
    def has_dead_letters(self) -> bool:
        """Whether records may go to the table of dead letters."""
        return self.on_error == "dead_letters" or "dead_letters" in self.expect.values()

    def start_options(self) -> dict[str, str]:
        """Return where reading starts as options of the format `korvet`; raises ValueError."""
        if self.starting in ("earliest", "latest"):
            return {"startingOffsets": self.starting}
        try:
            msgspec.json.decode(self.starting, type=dict[str, dict[str, int]])
        except msgspec.DecodeError:
            pass
        else:
            return {"startingOffsets": self.starting}
        try:
            time = datetime.fromisoformat(self.starting)
        except ValueError as error:
            offsets = 'offsets as {"orders": {"0": 23}}'
            raise ValueError(f"{self.starting!r} is not earliest, latest, a time, or {offsets}") from error
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return {
            "startingTimestamp": str(int(time.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }


class RegistrySpec(_Table, frozen=True):
    """A schema registry; the files are absolute paths once loaded."""

    url: str
    user: str | None = None
    password_file: str | None = None
    ca_file: str | None = None


class TransformSpec(_Table, frozen=True):
    """What makes rows of the views: one of them, or none. Once loaded, `sql` is the text of `sql_file` too."""

    sql: str | None = None
    sql_file: str | None = None
    python: str | None = None


class TargetSpec(_Table, frozen=True):
    """Where rows go. `options` are more of those of Spark's writer.

    `table` is the name in a catalog of the table at `path`. `replace`: each batch has the partitions that it has rows
    of as a whole, so they may be replaced. `upkeep`: small files are merged, and replaced ones deleted.
    """

    type: Literal["delta", "parquet", "topic"]
    path: str | None = None
    table: str | None = None
    topic: str | None = None
    mode: Literal["append", "merge", "overwrite"] = "append"
    replace: Literal["partitions"] | None = None
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    delete_when: str | None = None
    partition_by: tuple[str, ...] = ()
    schema_evolution: Literal["none", "add_columns", "widen"] = "none"
    upkeep: bool = True
    options: dict[str, str] = {}


class DeadLettersSpec(_Table, frozen=True):
    """The table of records that do not decode, by default beside the target."""

    path: str | None = None


_INTERVAL = "10s"


class TriggerSpec(_Table, frozen=True):
    """When a batch begins: each `interval`, of ten seconds by default, or at once for all there is, and no more."""

    interval: str | None = None
    available_now: bool = False

    @property
    def seconds(self) -> float:
        return _seconds(self.interval or _INTERVAL) or 0


class SparkSpec(_Table, frozen=True):
    """Spark as the pipeline needs it."""

    master: str | None = None
    packages: tuple[str, ...] = ()
    conf: dict[str, str] = {}


class PipelineSpec(_Table, frozen=True):
    """A pipeline, as its file declares it."""

    name: str
    sources: dict[str, SourceSpec]
    target: TargetSpec
    registry: RegistrySpec | None = None
    transform: TransformSpec = TransformSpec()
    dead_letters: DeadLettersSpec = DeadLettersSpec()
    trigger: TriggerSpec = TriggerSpec()
    spark: SparkSpec = SparkSpec()

    @property
    def dead_letters_path(self) -> str:
        """Where records go that do not decode; of a target that is a topic the file has to say it."""
        return self.dead_letters.path or f"{(self.target.path or '').rstrip('/')}_dead_letters"

    @property
    def table_paths(self) -> list[str]:
        """The paths that it writes to, as the file has them."""
        paths = [self.target.path, self.dead_letters_path if self.has_dead_letters else None]
        return [path for path in paths if path is not None]

    @property
    def has_dead_letters(self) -> bool:
        """Whether any source keeps what does not decode."""
        return any(source.has_dead_letters for source in self.sources.values())

    def of_range(self, first: str, last: str) -> PipelineSpec:
        """Return a pipeline of its own, with other checkpoints, that reads a range of the same sources and ends.

        Each is as `starting` of a source. The same range is the same pipeline. Raises PipelineError.
        """
        if self.target.type == "parquet":
            raise PipelineError(
                "target.type: parquet goes with one checkpoint, and a range has one of its own"
            )
        digest = hashlib.sha256(f"{first} {last}".encode()).hexdigest()[:8]
        sources = {
            name: msgspec.structs.replace(source, starting=first, ending=last)
            for name, source in self.sources.items()
        }
        for source in sources.values():
            for flag, text in (("--from", first), ("--to", last)):
                try:
                    msgspec.structs.replace(source, starting=text).start_options()
                except ValueError as error:
                    raise PipelineError(f"{flag}: {error}") from error
        return msgspec.structs.replace(
            self, name=f"{self.name}.range-{digest}", sources=sources, trigger=TriggerSpec(available_now=True)
        )


def text_of(file: Path, place: str) -> str:
    """Return a file's text; raises PipelineError, which begins with its place in the file of the pipeline."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PipelineError(f"{place}: cannot read {file}: {reason}") from error


def load(file: Path) -> PipelineSpec:
    """Return the pipeline that a file declares; raises PipelineError."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{file} is not TOML: {error}") from error
    try:
        return _checked(_converted(with_variables(given, os.environ)), file.absolute().parent)
    except (PipelineError, PlaceError) as error:
        line = line_of(text, str(error).partition(": ")[0])
        raise PipelineError(f"{file}{'' if line is None else f':{line}'}: {error}") from error


def _converted(given: dict[str, Any]) -> PipelineSpec:
    # msgspec does not say which key of a table has what is wrong, so each source is converted for itself.
    sources = given.get("sources")
    if not isinstance(sources, dict) or not sources:
        raise PipelineError("sources: there is none; [sources.NAME] has topics")
    parsed = {name: convert(table, SourceTable, f"sources.{name}") for name, table in sources.items()}
    spec = convert(given | {"sources": {}}, PipelineSpec, "")
    named = {name: SourceSpec(name=name, **msgspec.structs.asdict(table)) for name, table in parsed.items()}
    return msgspec.structs.replace(spec, sources=named)


_T = TypeVar("_T", bound=_Table)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")
_TABLE = re.compile(r"\w+(\.\w+){0,2}")
_VIEW = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _checked(spec: PipelineSpec, directory: Path) -> PipelineSpec:
    """Return a pipeline with its files found; raises PipelineError for what contradicts itself."""
    if not _NAME.fullmatch(spec.name):
        raise PipelineError(f"name: {spec.name!r} has other characters than letters, digits, dots, _ and -")
    registry = spec.registry
    if registry is not None:
        registry = _with_files(registry, "registry", directory, "password_file", "ca_file")
        if (registry.user is None) != (registry.password_file is None):
            raise PipelineError("registry: user and password_file need each other")
    sources = {name: _source(source, directory, registry) for name, source in spec.sources.items()}
    transform = _transform(spec, directory)
    _check_target(spec.target)
    _check_options(spec.target)
    for place, path in (("target", spec.target.path), ("dead_letters", spec.dead_letters.path)):
        if path is not None and not path.strip():
            raise PipelineError(f"{place}.path: it is empty, and the root of the lake is no table")
    _check_trigger(spec.trigger)
    if spec.has_dead_letters and spec.target.type == "topic" and spec.dead_letters.path is None:
        raise PipelineError("dead_letters.path: the target is a topic, so it has to be given")
    return msgspec.structs.replace(spec, registry=registry, sources=sources, transform=transform)


def _source(source: SourceSpec, directory: Path, registry: RegistrySpec | None) -> SourceSpec:
    place = f"sources.{source.name}"
    if not _VIEW.fullmatch(source.name):
        raise PipelineError(f"{place}: a view's name has letters, digits and _, and begins with no digit")
    if bool(source.topics) == (source.pattern is not None):
        raise PipelineError(f"{place}: one of topics and pattern is required, and no more")
    if source.pattern is not None:
        try:
            re.compile(source.pattern)
        except re.error as error:
            raise PipelineError(
                f"{place}.pattern: {source.pattern!r} is no regular expression: {error}"
            ) from error
    try:
        source.start_options()
    except ValueError as error:
        raise PipelineError(f"{place}.starting: {error}") from error
    if source.max_records_per_trigger is not None and source.max_records_per_trigger < 1:
        raise PipelineError(
            f"{place}.max_records_per_trigger: {source.max_records_per_trigger} is not positive"
        )
    key = _decoding(source.key, f"{place}.key", directory, registry)
    value = _decoding(source.value, f"{place}.value", directory, registry)
    return msgspec.structs.replace(source, key=key, value=value)


_SCHEMAS = {
    "json": "schema, schema_file or infer",
    "csv": "schema or schema_file",
    "avro": "schema_file or the subject of a registry",
    "protobuf": "schema_file or the subject of a registry",
}
"""Where the schema of a format may be from; the others have none."""


def _decoding(decoding: Decoding, place: str, directory: Path, registry: RegistrySpec | None) -> Decoding:
    given = [name for name in ("schema", "schema_file", "infer") if getattr(decoding, name)]
    if len(given) > 1:
        raise PipelineError(f"{place}: {' and '.join(given)} exclude each other")
    if decoding.format not in _SCHEMAS:
        if given or decoding.registry or decoding.options:
            raise PipelineError(f"{place}: the format {decoding.format} takes no schema, registry or options")
        return _for_texts(decoding, place)
    if decoding.infer and decoding.format != "json":
        raise PipelineError(f"{place}.infer: only the format json infers a schema")
    if decoding.schema is not None and decoding.format not in ("json", "csv"):
        raise PipelineError(f"{place}.schema: the format {decoding.format} has a schema_file, or a registry")
    if decoding.registry:
        _check_registry(decoding, place, registry)
    if not given and decoding.subject is None:
        raise PipelineError(
            f"{place}: {_SCHEMAS[decoding.format]} is required for the format {decoding.format}"
        )
    if decoding.subject is not None and not decoding.registry:
        raise PipelineError(f"{place}.subject: it needs registry = true")
    if decoding.message is not None and decoding.format != "protobuf":
        raise PipelineError(f"{place}.message: the format {decoding.format} has no messages")
    return _with_files(_for_texts(decoding, place), place, directory, "schema_file")


def _for_texts(decoding: Decoding, place: str) -> Decoding:
    """Return a decoding whose settings of JSON and CSV are of its format; raises PipelineError."""
    if decoding.unit is not None and decoding.format not in ("json", "csv"):
        raise PipelineError(f"{place}.unit: only the formats json and csv have it")
    if decoding.unknown != "ignore" and decoding.format != "json":
        raise PipelineError(f"{place}.unknown: only the format json has it")
    return decoding


def _check_registry(decoding: Decoding, place: str, registry: RegistrySpec | None) -> None:
    if decoding.format == "csv":
        raise PipelineError(f"{place}.registry: the format csv has none")
    if decoding.format == "json" and decoding.subject is not None:
        raise PipelineError(f"{place}.subject: the format json needs {_SCHEMAS[decoding.format]}")
    # Of JSON only the header is checked: Spark has other schemas than the registry.
    if decoding.format != "json" and registry is None:
        raise PipelineError(f"{place}.registry: there is no [registry] with its url")


def _transform(spec: PipelineSpec, directory: Path) -> TransformSpec:
    of = spec.transform
    given = [name for name in ("sql", "sql_file", "python") if getattr(of, name) is not None]
    if len(given) > 1:
        raise PipelineError(f"transform: {' and '.join(given)} exclude each other")
    if not given and len(spec.sources) > 1:
        raise PipelineError("transform: of several sources one row is made by sql, sql_file or python")
    transform = _with_files(of, "transform", directory, "sql_file", "python")
    if transform.sql_file is not None:
        return msgspec.structs.replace(transform, sql=text_of(Path(transform.sql_file), "transform.sql_file"))
    return transform


def _check_merge(target: TargetSpec) -> None:
    if (target.mode == "merge") != bool(target.key):
        raise PipelineError("target.key: the mode merge needs it, and no other mode has it")
    for name in ("order_by", "delete_when"):
        if getattr(target, name) and target.mode != "merge":
            raise PipelineError(f"target.{name}: only the mode merge has it")
    if target.delete_when and set(target.order_by) - {"offset"}:
        # A row that is deleted leaves nothing by which a late one would be found to be older.
        raise PipelineError(
            "target.delete_when: rows can be deleted in the order of offsets alone (order_by)"
        )


def _check_target(target: TargetSpec) -> None:
    where = "topic" if target.type == "topic" else "path"
    for name in ("topic", "path"):
        if (getattr(target, name) is not None) != (name == where):
            problem = "needs it" if name == where else "has none"
            raise PipelineError(f"target.{name}: the type {target.type} {problem}")
    if target.mode != "append" and target.type != "delta":
        raise PipelineError(f"target.mode: the type {target.type} is only appended to")
    _check_merge(target)
    if target.mode == "overwrite" and not target.partition_by:
        raise PipelineError("target.partition_by: the mode overwrite needs it")
    if target.replace is not None and target.mode != "overwrite":
        raise PipelineError("target.replace: only the mode overwrite has it")
    if target.table is not None and (target.type != "delta" or not _TABLE.fullmatch(target.table)):
        raise PipelineError(f"target.table: {target.table!r} is no name of a Delta table as sales.orders")
    if target.partition_by and target.type == "topic":
        raise PipelineError("target.partition_by: a topic has it not; give rows a column partition")
    if target.schema_evolution != "none" and target.type != "delta":
        raise PipelineError(f"target.schema_evolution: the type {target.type} has none")


_ONCE_OPTIONS = ("exactly.once", "staging.", "txnappid", "txnversion")
"""Options of a topic by which each batch is written once: the pipeline's own."""


def _check_options(target: TargetSpec) -> None:
    for name in target.options:
        # Properties that a table is created with count in any mode.
        if target.mode == "merge" and not name.startswith("delta."):
            raise PipelineError(
                f"target.options: {name}: the mode merge takes only those of the table, delta.*"
            )
        if target.type == "topic" and name.lower().startswith(_ONCE_OPTIONS):
            raise PipelineError(f"target.options: {name}: the pipeline sets it, to write each batch once")


_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def _seconds(text: str) -> float | None:
    # More digits are more than Python and Spark have.
    parsed = re.fullmatch(r"([0-9]{1,9}) *(ms|s|m|h)", text.strip())
    return None if parsed is None else timedelta(**{_UNITS[parsed[2]]: int(parsed[1])}).total_seconds()


def _check_trigger(trigger: TriggerSpec) -> None:
    if trigger.interval is None:
        return
    if trigger.available_now:
        raise PipelineError("trigger: interval and available_now exclude each other")
    if _seconds(trigger.interval) is None:
        raise PipelineError(
            f"trigger.interval: {trigger.interval!r} is no time as 10s; units are ms, s, m and h"
        )


def _with_files(table: _T, place: str, directory: Path, *names: str) -> _T:
    """Return a table with absolute paths of files; raises PipelineError for one that is not there."""
    texts: Mapping[str, str] = {
        name: str(directory / Path(given).expanduser())
        for name in names
        if (given := getattr(table, name)) is not None
    }
    for name, path in texts.items():
        if not Path(path).is_file():
            raise PipelineError(f"{place}.{name}: there is no file {path}")
    return msgspec.structs.replace(table, **texts)
