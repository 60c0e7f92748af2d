"""What a pipeline keeps beside its tables: checkpoints of its queries, and what a checkpoint was begun with.

Files are read and written by Hadoop, as Spark does its checkpoints, so they may be wherever these may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import SparkSession

from korvet.cluster.pipelines import MAIN, QueryPosition
from korvet.spark.pipelines.spec import PipelineError

PIPELINES = "_pipelines"
_BEGUN = "pipeline.json"
_RESET = "reset.json"
_CHECKPOINTS = "checkpoint"
_METADATA = "metadata"
"""Spark's file with the id of a query, which a checkpoint has from its first batch to its removal."""
_OFFSETS_VERSION = "v1"
"""The format of Spark's files of offsets: a line with it, one of metadata, and one for each source of the query."""


def dead_letters_of(source: str) -> str:
    """Return the name of the query that brings records of a source, which do not decode, to their table."""
    return f"dead_letters_{source}"


def start_file(source: str) -> str:
    """Return the file that the first run notes the start of a source in."""
    return f"starting/{source}.json"


def location(lake: str, path: str) -> str:
    """Return a path of a pipeline's file as Spark takes it: below the lake's unless absolute or a URI."""
    absolute = path if "://" in path or path.startswith("/") else f"{lake.rstrip('/')}/{path}"
    if "://" not in absolute:
        return str(Path(absolute).absolute())
    # Hadoop's client of S3 has a name of its own.
    return f"s3a{absolute.removeprefix('s3')}" if absolute.startswith("s3://") else absolute


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What checkpoints depend on.

    `sources` are the views in the order in which the query reads them, each with its topics or its pattern. `state` is
    the part of the plan that keeps state, as `spark` of that version has it: empty without. `decoded` has a digest of
    how the records of each source with dead letters become columns.
    """

    sources: list[tuple[str, str]]
    state: str
    target: dict[str, Any]
    spark: str
    decoded: dict[str, str] = {}

    def problem(self, now: Begun) -> str | None:
        """Return what has changed that a checkpoint cannot carry, None if nothing has."""
        if [name for name, _ in self.sources] != [name for name, _ in now.sources]:
            before, after = (", ".join(name for name, _ in state.sources) for state in (self, now))
            return f"the query reads {after}, and did read {before}, in this order"
        for (name, before), (_, after) in zip(self.sources, now.sources, strict=True):
            if gone := sorted(set(before.split(",")) - set(after.split(","))):
                return f"sources.{name} does not read {', '.join(gone)} any more"
        for name, before in self.target.items():
            if before != now.target.get(name):
                return f"target.{name} is {_shown(now.target.get(name))}, and was {_shown(before)}"
        # Another version of Spark may write the same plan in other words; what it cannot go on with it says itself.
        if bool(self.state) != bool(now.state) or (self.spark == now.spark and self.state != now.state):
            return "the part of the transformation that keeps state (aggregates, joins, deduplication) has changed"
        return None

    def redecoded(self, now: Begun) -> list[str]:
        """Return the sources with dead letters that are decoded in another way now, or have none any more."""
        return [name for name, before in self.decoded.items() if before != now.decoded.get(name)]


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


class SourcePosition(msgspec.Struct, frozen=True):
    """How far a query has read a source, as a line of Spark's file of offsets has it."""

    topics: dict[str, QueryPosition]


def merged(
    choose: Callable[[int, int], int], first: SourcePosition, second: SourcePosition
) -> SourcePosition:
    """Return how far two queries have read, `choose` (max or min) of each partition that both have read."""
    topics = dict(first.topics)
    for topic, of in second.topics.items():
        offsets = dict(topics[topic].offsets) if topic in topics else {}
        for partition, offset in of.offsets.items():
            offsets[partition] = choose(offset, offsets.get(partition, offset))
        topics[topic] = QueryPosition(of.id, offsets)
    return SourcePosition(topics)


class Reset(msgspec.Struct, frozen=True):
    """The last reset of a pipeline: how many there were, and where each source begins since.

    Checkpoints of another number are of before. So one file resets all queries at once.
    """

    number: int = 0
    starts: dict[str, SourcePosition] = {}

    @property
    def directory(self) -> str:
        return f"{_CHECKPOINTS}-{self.number}" if self.number else _CHECKPOINTS


class QueryProgress(NamedTuple):
    """The end of the last batch that a query has begun, by sources: one that is joined with itself is there twice.

    There is none before the first batch. `committed`: Spark will not repeat the batch.
    """

    positions: list[tuple[str, SourcePosition]]
    committed: bool


class StateDirectory:
    """The directory of one pipeline."""

    def __init__(self, session: SparkSession, lake: str, name: str) -> None:
        self.path = location(lake, f"{PIPELINES}/{name}")
        self._name = name
        self._jvm: Any = session._jvm  # noqa: SLF001 - Hadoop has no interface in Python
        self._configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - the same
        self._files = self._path("").getFileSystem(self._configuration)
        data = self.read(_RESET)
        self.last_reset = Reset() if data is None else msgspec.json.decode(data, type=Reset)

    def checkpoint(self, query: str) -> str:
        return f"{self.path}/{self._directory(query)}"

    def reset(self, starts: dict[str, SourcePosition]) -> None:
        """Let all queries begin at these positions of their sources, with new checkpoints; remove those of before."""
        self.last_reset = Reset(self.last_reset.number + 1, starts)
        self.write(_RESET, msgspec.json.encode(self.last_reset))
        for file in self._files.listStatus(self._path("")):
            name = str(file.getPath().getName())
            if name.startswith(_CHECKPOINTS) and name != self.last_reset.directory:
                self._files.delete(file.getPath(), True)  # noqa: FBT003 - Java has no names: recursive

    def start(self, source: str) -> bytes | None:
        """Return where queries of a source begin, by the last reset, or as the first run has noted it."""
        position = self.last_reset.starts.get(source)
        return self.read(start_file(source)) if position is None else msgspec.json.encode(position)

    def incarnation(self, query: str) -> str | None:
        """Return the id of a query, which is another one if its checkpoint was removed; None before its first batch."""
        data = self.read(f"{self._directory(query)}/{_METADATA}")
        return None if data is None else str(msgspec.json.decode(data)["id"])

    def begun(self) -> Begun | None:
        """Return what checkpoints were begun with last, None before the first run."""
        data = self.read(_BEGUN)
        return None if data is None else msgspec.json.decode(data, type=Begun)

    def check(self, now: Begun, queries: Sequence[str], *, levels: bool = False) -> None:
        """Raise PipelineError if the checkpoints of `queries` were begun with something that has changed.

        `levels`: the run lets queries read the same before it decodes in another way, and checks again.
        """
        begun = self.begun()
        if begun is None or all(self.incarnation(query) is None for query in queries):
            return
        problem, remedy = begun.problem(now), "undo that"
        order = [name for name, _ in now.sources]
        redecoded = () if problem is not None or levels else begun.redecoded(now)
        if apart := [name for name in redecoded if not self._is_level(name, order)]:
            problem = (
                f"sources.{apart[0]} is decoded in another way, and the queries {MAIN} and"
                f" {dead_letters_of(apart[0])} have not read the same of it"
            )
            remedy = "undo that, and run the pipeline once more until it has read all or is stopped"
        if problem is not None:
            raise PipelineError(
                f"{problem}: {remedy}, or give the pipeline another name and target, or begin with new checkpoints"
                f" by `korvet lake pipeline reset {self._name}` (rows that are read again are then written again)"
            )

    def _is_level(self, source: str, order: Sequence[str]) -> bool:
        """Return whether both queries of a source with dead letters have surely read the same of it."""
        main, dead = self.progress(MAIN, order), self.progress(dead_letters_of(source), [source])
        if main is None or dead is None or not (main.committed and dead.committed):
            return False
        read = [position for name, position in main.positions if name == source]
        return [position for _, position in dead.positions] == read[:1] and all(
            position == read[0] for position in read
        )

    def progress(self, query: str, order: Sequence[str], *, committed: bool = False) -> QueryProgress | None:
        """Return how far a query has come, which reads these sources; None if its checkpoint is of another format.

        With `committed` a batch that Spark will repeat does not count.
        """
        directory = self._directory(query)
        begun, done = (self._last(f"{directory}/{kind}") for kind in ("offsets", "commits"))
        last = done if committed else begun
        data = None if last is None else self.read(f"{directory}/offsets/{last}")
        if data is None:
            return QueryProgress([], begun == done)
        lines = data.decode(errors="replace").splitlines()
        if lines[:1] != [_OFFSETS_VERSION] or len(lines) != 2 + len(order):
            return None
        try:
            positions = [msgspec.json.decode(line, type=SourcePosition) for line in lines[2:]]
        except msgspec.DecodeError:
            return None
        return QueryProgress(list(zip(order, positions, strict=True)), begun == done)

    def pending(self, query: str) -> int | None:
        """Return the number of the batch that a query has begun and not committed, None without one."""
        begun, committed = (self._last(f"{self._directory(query)}/{kind}") for kind in ("offsets", "commits"))
        return None if begun == committed else begun

    def withdraw(self, query: str, but: int | None) -> None:
        """Let a query begin another batch than its pending one, which has written nothing, `but` for one number."""
        number = self.pending(query)
        if number not in (None, but):
            file = self._path(f"{self._directory(query)}/offsets/{number}")
            self._files.delete(file, False)  # noqa: FBT003 - Java has no names: one file

    def _directory(self, query: str) -> str:
        return f"{self.last_reset.directory}/{query}"

    def _last(self, directory: str) -> int | None:
        """Return the number of the last batch that has a file in a directory, None without."""
        path = self._path(directory)
        files = self._files.listStatus(path) if self._files.exists(path) else ()
        names = [str(file.getPath().getName()) for file in files]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def begin(self, now: Begun, queries: Sequence[str]) -> None:
        """Check, and keep what new checkpoints are begun with."""
        self.check(now, queries)
        # Topics may have been added since.
        self.write(_BEGUN, msgspec.json.encode(now))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it is not there."""
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which has all of its content or that of before."""
        path = self._path(name)
        # In S3 a file is there when it is closed. A rename deletes what it replaces, and copies.
        closes = self.path.startswith("s3a://")
        new = path if closes else self._path(f"{name}.new")
        stream = self._files.create(new, True)  # noqa: FBT003 - Java has no names: overwrite
        stream.write(data)
        # Not after an error: then it is not whole.
        stream.close()
        if closes:
            return
        hadoop = self._jvm.org.apache.hadoop.fs
        options = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 1
        )
        options[0] = hadoop.Options.Rename.OVERWRITE
        hadoop.FileContext.getFileContext(path.toUri(), self._configuration).rename(new, path, options)

    def _path(self, name: str) -> Any:  # noqa: ANN401 - an object of Java's
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}".rstrip("/"))


class UnwrittenPins:
    """What a directory will have when the pipeline runs: one that is refused, or only looked at, changes nothing."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._unwritten: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it is not there."""
        return self._unwritten.get(name) or self._state.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Keep the content of a file until they are written."""
        self._unwritten[name] = data

    def write_all(self) -> None:
        """Write what was kept."""
        for name, data in self._unwritten.items():
            self._state.write(name, data)
        self._unwritten.clear()


def target_fields(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return what of a target a checkpoint depends on: another table would have only what is new."""
    kept = {name: values[name] for name in ("type", "mode", "key")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()} | {
        "path": place
    }
