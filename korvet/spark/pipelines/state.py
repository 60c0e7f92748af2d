"""What a pipeline keeps beside its tables: checkpoints of its queries, and what a checkpoint was begun with.

Files are read and written by Hadoop, as Spark does its checkpoints, so they may be wherever these may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from korvet.spark.pipelines.spec import PipelineError

PIPELINES = "_pipelines"
_BEGUN = "pipeline.json"
_METADATA = "metadata"
"""Spark's file with the id of a query, which a checkpoint has from its first batch to its removal."""


def location(lake: str, path: str) -> str:
    """Return a path of a pipeline's file as Spark takes it: below the lake's unless absolute or a URI."""
    found = path if "://" in path or path.startswith("/") else f"{lake.rstrip('/')}/{path}"
    if "://" not in found:
        return str(Path(found).absolute())
    # Hadoop's client of S3 has a name of its own.
    return f"s3a{found.removeprefix('s3')}" if found.startswith("s3://") else found


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What checkpoints depend on.

    `sources` are the views in the order in which the query reads them, each with its topics or its pattern. `state` is
    the part of the plan that keeps state, as `spark` of that version has it: empty without.
    """

    sources: list[tuple[str, str]]
    state: str
    target: dict[str, Any]
    spark: str

    def problem(self, now: Begun) -> str | None:
        """Return what has changed that a checkpoint cannot carry, None if nothing has."""
        if [name for name, _ in self.sources] != [name for name, _ in now.sources]:
            before, after = (", ".join(name for name, _ in each.sources) for each in (self, now))
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


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


class StateDirectory:
    """The directory of one pipeline."""

    def __init__(self, session: SparkSession, lake: str, name: str) -> None:
        self.path = location(lake, f"{PIPELINES}/{name}")
        self._jvm: Any = session._jvm  # noqa: SLF001 - Hadoop has no interface in Python
        self._configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - the same
        self._files = self._path("").getFileSystem(self._configuration)

    def checkpoint(self, query: str) -> str:
        """Return where the checkpoint of a query is."""
        return f"{self.path}/checkpoint/{query}"

    def incarnation(self, query: str) -> str | None:
        """Return the id of a query, which is another one if its checkpoint was removed; None before its first batch."""
        data = self.read(f"checkpoint/{query}/{_METADATA}")
        return None if data is None else str(msgspec.json.decode(data)["id"])

    def check(self, now: Begun, queries: Sequence[str]) -> None:
        """Raise PipelineError if the checkpoints of `queries` were begun with something that has changed."""
        if any(self.incarnation(query) is not None for query in queries):
            data = self.read(_BEGUN)
            problem = None if data is None else msgspec.json.decode(data, type=Begun).problem(now)
            if problem is not None:
                raise PipelineError(
                    f"{problem}: undo that, or give the pipeline another name and target, or remove {self.path} to"
                    " begin with a new checkpoint (rows that the target has already are then written again)"
                )

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
        path, new = self._path(name), self._path(f"{name}.new")
        stream = self._files.create(new, True)  # noqa: FBT003 - Java has no names: overwrite
        try:
            stream.write(data)
        finally:
            stream.close()
        hadoop = self._jvm.org.apache.hadoop.fs
        options = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 1
        )
        options[0] = hadoop.Options.Rename.OVERWRITE
        hadoop.FileContext.getFileContext(path.toUri(), self._configuration).rename(new, path, options)

    def _path(self, name: str) -> Any:  # noqa: ANN401 - an object of Java's
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}".rstrip("/"))


class UnwrittenPins:
    """What a directory has, for one that only looks: what it would write is dropped."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it is not there."""
        return self._state.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Write nothing."""


def target_fields(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return what of a target a checkpoint depends on: another table would have only what is new."""
    kept = {name: values[name] for name in ("type", "mode", "key")}
    return {name: list(each) if isinstance(each, tuple) else each for name, each in kept.items()} | {
        "path": place
    }
