"""The plan of a pipeline: frames of its sources, their rows decoded, the transformation, and which part keeps state."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from korvet.errors import KafkaError, LakeError
from korvet.lake.source import LakeSource
from korvet.spark.decoding import ERROR
from korvet.spark.options import options_of
from korvet.spark.pipelines.decoding import RAW_KEY, RAW_VALUE
from korvet.spark.pipelines.expectations import counted, dead_reason, fatal_reason
from korvet.spark.pipelines.spec import PipelineError, PipelineSpec, SourceSpec, TransformSpec
from korvet.spark.session import JOB_ERRORS, reason_of
from korvet.spark.source import COLUMNS, KorvetDataSource

READ = StructType(COLUMNS.fields[:8])
"""The columns of Spark's Kafka source: what a source has before it is decoded."""

_ALIAS = "_source_"
Frames = Mapping[str, DataFrame]
Transform = Callable[[SparkSession, Frames], DataFrame]


class Plan(NamedTuple):
    """`rows` are the result of the sources, which are `decoded`.

    `order` has the views as the query reads them. `state` is the part that keeps state, as text, empty if none does;
    `aggregates` if that is an aggregate.
    """

    decoded: Frames
    rows: DataFrame
    order: tuple[str, ...]
    state: str
    aggregates: bool


def plan(session: SparkSession, spec: PipelineSpec, decoded: Frames) -> Plan:
    """Return the plan over decoded sources; raises PipelineError if the transformation is wrong."""
    transform = _transform(spec.transform)
    rows = transform(session, {name: good(frame, spec.sources[name]) for name, frame in decoded.items()})
    analyzed = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - Python has no interface to plans
    if not rows.isStreaming:
        raise PipelineError("transform: its result has none of the sources in it")
    order = tuple(_sources(analyzed))
    unused = [name for name in spec.sources if name not in order]
    if unused:
        raise PipelineError(f"transform: the source {unused[0]} is not used")
    # Below a reference to a common table there would be nothing, and its number is another one in each plan.
    stateful = list(_stateful(_inlined(session, analyzed)))
    watermarks = "".join(
        f" {source.name}:{source.watermark[0]}" for source in spec.sources.values() if source.watermark
    )
    state = "\n".join(filter(None, map(_text, stateful))) + (watermarks if stateful else "")
    aggregates = any(node.nodeName() == "Aggregate" for operator in stateful for node in _nodes(operator))
    if spec.target.mode == "overwrite" and spec.target.replace is None and not aggregates:
        raise PipelineError(
            "target.mode: overwrite would leave of a partition only the rows of the last batch that has some, such as"
            ' one late row: the rows are no aggregate. Use append or merge, or say replace = "partitions" if each batch'
            " has all rows of its partitions"
        )
    return Plan(decoded, rows, order, state, aggregates)


def source_frame(
    session: SparkSession,
    source: LakeSource,
    spec: SourceSpec,
    start: str | None = None,
    end: str | None = None,
) -> DataFrame:
    """Return the records of a source as they come, from `start` on and up to `end` if these are known already."""
    options = _options(source, spec)
    if end is not None:
        options["endingPosition"] = end
    options |= spec.start_options() if start is None else {"startingPosition": start}
    if spec.max_records_per_trigger is not None:
        options["maxRecordsPerTrigger"] = str(spec.max_records_per_trigger)
    return session.readStream.format("korvet").schema(READ).options(**options).load()


def start_of(source: LakeSource, spec: SourceSpec) -> str:
    """Return where a source begins if it begins now; raises PipelineError."""
    try:
        reader = KorvetDataSource(_options(source, spec) | spec.start_options()).streamReader(READ)
        return json.dumps(reader.initialOffset())
    except (KafkaError, LakeError, ValueError) as error:
        raise PipelineError(f"sources.{spec.name}: {error}") from error


def batch_frame(session: SparkSession, source: LakeSource, spec: SourceSpec) -> DataFrame:
    """Return the records of a source that are there now."""
    return session.read.format("korvet").schema(READ).options(**_options(source, spec)).load()


def _options(source: LakeSource, spec: SourceSpec) -> dict[str, str]:
    options = options_of(source) | {
        "min.insync.replicas": str(source.min_insync_replicas),
        "tiers": spec.tiers,
        "failOnDataLoss": str(spec.on_data_loss == "fail"),
    }
    if source.replicas:
        options["replicas"] = str(source.replicas)
    if spec.pattern is None:
        return options | {"subscribe": ",".join(spec.topics)}
    return options | {"subscribePattern": spec.pattern}


def good(decoded: DataFrame, spec: SourceSpec) -> DataFrame:
    """Return the rows that are as declared, as the transformation sees them; others end the query, or are left out."""
    fatal = fatal_reason(spec)
    frame = counted(decoded, spec).where(f.when(fatal.isNull(), True).otherwise(f.raise_error(fatal)))  # noqa: FBT003 - a value
    if spec.has_dead_letters:
        frame = frame.where(dead_reason(spec).isNull())
    frame = frame.drop(ERROR, RAW_KEY, RAW_VALUE)
    if spec.watermark is not None:
        name, delay = spec.watermark
        if name not in frame.columns:
            # A field of the value becomes a column: only these have watermarks.
            path, name = name, name.rpartition(".")[2]
            if name in frame.columns:
                raise PipelineError(
                    f"sources.{spec.name}.watermark: {path} would become the column {name}, and {name} is a column of"
                    " the record already: let the field have another name, or name that column"
                )
            frame = frame.withColumn(name, f.col(path))
        frame = frame.withWatermark(name, delay)
    return frame.alias(_ALIAS + spec.name)


def bad(decoded: DataFrame, spec: SourceSpec) -> DataFrame:
    """Return the rows that are dead letters, as they are kept."""
    reason = dead_reason(spec)
    return decoded.where(reason.isNotNull()).select(
        *("topic", "partition", "offset", "timestamp"),
        *(reason.alias("error"), f.col(RAW_KEY).alias("key"), f.col(RAW_VALUE).alias("value")),
    )


def _transform(spec: TransformSpec) -> Transform:
    if spec.python is not None:
        return _python(Path(spec.python))
    sql = spec.sql

    def transform(session: SparkSession, frames: Frames) -> DataFrame:
        if sql is None:
            [frame] = frames.values()
            return frame
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        try:
            return session.sql(sql)
        except JOB_ERRORS as error:
            raise PipelineError(f"transform: {reason_of(error)}") from error

    return transform


def _python(file: Path) -> Transform:
    function = getattr(_module(file), "transform", None)
    if not callable(function):
        raise PipelineError(f"transform.python: {file} has no function transform")

    def transform(_: SparkSession, frames: Frames) -> DataFrame:
        try:
            result = function(*frames.values()) if len(frames) == 1 else function(**frames)
        except Exception as error:
            raise PipelineError(f"transform.python: {_place(error, file)}: {_said(error)}") from error
        if not isinstance(result, DataFrame):
            raise PipelineError(
                f"transform.python: transform returns {type(result).__name__}, not a DataFrame"
            )
        return result

    return transform


def _module(file: Path) -> ModuleType:
    loading = importlib.util.spec_from_file_location(f"korvet_pipeline_{file.stem}", file)
    if loading is None or loading.loader is None:
        raise PipelineError(f"transform.python: {file} is not a file of Python")
    module = sys.modules[loading.name] = importlib.util.module_from_spec(loading)
    try:
        loading.loader.exec_module(module)
    except Exception as error:
        raise PipelineError(f"transform.python: {_place(error, file)}: {_said(error)}") from error
    # Spark's workers do not have the file: its functions go to them as they are.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # untyped there
    return module


def _place(error: Exception, file: Path) -> str:
    """Return the last line of a file that an error came through."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return f"{file.name}:{lines[-1]}" if lines else file.name


def _said(error: Exception) -> str:
    if isinstance(error, JOB_ERRORS):
        return reason_of(error)
    return f"{type(error).__name__}: {error}"


_STATEFUL = ("Aggregate", "Distinct", "Deduplicate", "Join", "GlobalLimit", "LocalLimit", "Offset", "Tail")
_STATEFUL_PREFIXES = (
    "Deduplicate",
    "FlatMapGroups",
    "MapGroups",
    "TransformWithState",
    "UpdateEventTimeWatermark",
)
_IDS = re.compile(
    r"\b(lambda \w+|_gen_alias)_\d+#\d+L?|#\d+L?(-T\d+ms)?|plan_id=\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
"""What may be another one in the same plan: ids of columns and watermarks, and in names of Spark's own, and delays of
watermarks, which are after their columns."""


def _children(node: Any) -> list[Any]:  # noqa: ANN401 - an object of Java's
    children = node.children()
    return [children.apply(at) for at in range(children.size())]


def _source_of(node: Any) -> str | None:  # noqa: ANN401 - an object of Java's
    """Return the view if a node is where one begins."""
    if node.nodeName() != "SubqueryAlias":
        return None
    name = str(node.alias())
    return name.removeprefix(_ALIAS) if name.startswith(_ALIAS) else None


def _nodes(node: Any) -> Iterator[Any]:  # noqa: ANN401 - an object of Java's
    """Yield the nodes of a plan down to where the sources begin, and to tables that do not change."""
    yield node
    if _source_of(node) is None and node.isStreaming():
        for child in _children(node):
            yield from _nodes(child)


def _sources(node: Any) -> Iterator[str]:  # noqa: ANN401 - an object of Java's
    for child in _nodes(node):
        if (name := _source_of(child)) is not None:
            yield name


def _inlined(session: SparkSession, plan: Any) -> Any:  # noqa: ANN401 - objects of Java's
    """Return a plan with each common table in the place of each reference to it."""
    jvm: Any = session._jvm  # noqa: SLF001 - Python has no interface to plans
    inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
    # `alwaysInline`, and defaults for the others: Spark 4.2 has one, 4.3 two.
    [constructor] = inline._java_lang_class.getConstructors()  # noqa: SLF001 - py4j has no other name for it
    defaults = [
        getattr(inline, f"apply$default${place}")() for place in range(2, constructor.getParameterCount() + 1)
    ]
    return inline(True, *defaults).apply(plan)  # noqa: FBT003 - Java has no names


def _stateful(node: Any) -> Iterator[Any]:  # noqa: ANN401 - an object of Java's
    """Yield the topmost nodes that keep state: all that is below them has made it."""
    name = node.nodeName()
    keeps = node.isStreaming() and (name in _STATEFUL or name.startswith(_STATEFUL_PREFIXES))
    if keeps and name == "Join":
        # A join with a table that does not change keeps nothing.
        keeps = all(child.isStreaming() for child in _children(node))
    if keeps:
        yield node
    elif _source_of(node) is None:
        for child in _children(node):
            yield from _stateful(child)


def _text(node: Any) -> str:  # noqa: ANN401 - an object of Java's
    """Return a part of a plan as text that is the same for the same part: without what is below sources."""
    lines = []
    for child in _nodes(node):
        name = _source_of(child)
        if name is not None:
            lines.append(f"source {name}")
        elif not child.isStreaming():
            lines.append("table")
        elif child.nodeName() not in ("View", "SubqueryAlias"):
            lines.append(_IDS.sub(r"\1", child.simpleString(10_000)))
    return "\n".join([node.schema().catalogString(), *lines])
