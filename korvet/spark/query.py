"""SQL over topics: each is a view over both tiers, created when a query names it.

Spark gives a data source in Python neither the columns that a query needs, nor the filters of each of its reads. So a
query is planned twice: first over views of all columns, and then over views that read the columns which the first plan
needs, and have NULL in place of the others. A topic that the first plan reads once is read within the query's filters.
A command, such as INSERT, runs when it is planned: once, over all columns.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.types import DatetimeType, NumericType, StructType

from korvet.lake.source import LakeSource
from korvet.lake.table import AsOf
from korvet.spark.names import alike_names, database, names_in, quoted
from korvet.spark.options import options_of
from korvet.spark.session import PUSHDOWN, SparkError, reason_of
from korvet.spark.source import COLUMNS

_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_RUN_WHEN_PLANNED = ("CompoundBody", "UnresolvedExecuteImmediate", "Call")
"""What Spark runs, or parts of it, each time it is planned: views that are missing cannot be created meanwhile."""


class Result(NamedTuple):
    """The result of a query: `titles` of its columns, those with `numbers`, and rows, which are read lazily.

    Values are None, numbers, booleans, bytes, texts, and lists and dicts of these; times are texts in UTC.
    """

    titles: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def frame_of(
    session: SparkSession,
    source: LakeSource,
    sql: str,
    names: Collection[str] = (),
    as_of: AsOf | None = None,
) -> DataFrame:
    """Return the DataFrame of a query over all topics or those of `names`, `as_of` in the tables as they were.

    Raises SparkError if it is wrong, or names a topic that does not exist; KafkaError, StorageUnavailableError.
    """
    # Errors are raised; Spark would log them too, also for a view that is only not created yet.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    with source.opened() as stores:
        live = {row.name for row in stores.topics.load().rows.values() if row.state == "live"}
    topics = live.intersection(names) if names else live
    # Spark would take a view for another one. Those in texts or comments are found too, and one error is no harm.
    if alike := alike_names(session, _named(topics, sql)):
        raise SparkError(f"{alike}; query one of them at a time")
    options = options_of(source)
    if as_of is not None:
        options["versionAsOf" if isinstance(as_of, int) else "timestampAsOf"] = str(as_of)
    views = _Views(session, options)
    try:
        for name in topics & names_in(sql, database(session)):
            views.create(name, in_database=True)
        return _planned(session, views, sql, topics)
    except (PySparkException, Py4JError) as error:
        raise SparkError(reason_of(error)) from error
    finally:
        # The plan has what they are.
        views.drop()


def _named(topics: Collection[str], sql: str) -> list[str]:
    """Return the topics whose names are in a query, also in its texts."""
    return [topic for topic in topics if re.search(rf"(?<!\w){re.escape(topic)}(?!\w)", sql)]


def _planned(session: SparkSession, views: _Views, sql: str, topics: Collection[str]) -> DataFrame:
    """Return the DataFrame of a query, whose views are there then; each reads only the columns that it needs."""
    parsed = session._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001 - PySpark has no way
    if parsed.getClass().getSimpleName() in _RUN_WHEN_PLANNED:
        raise SparkError(
            "neither scripts nor EXECUTE IMMEDIATE nor CALL can be run: give one query or command"
        )
    tried: set[str] = set()
    while True:
        try:
            frame = session.sql(sql)
            # A command has run by now, over all columns.
            if frame._jdf.queryExecution().commandExecuted().getClass().getSimpleName() == "CommandResult":  # noqa: SLF001 - the same
                return frame
            views.narrow(_columns_of_reads(session, frame))
            return session.sql(sql)
        except AnalysisException as error:
            missing = _missing(error)
            if missing is None or missing in tried or missing not in topics:
                raise
            tried.add(missing)
            views.create(missing, in_database=False)


class _Views:
    """The views of topics that a query has, by their names alone, and in the database."""

    def __init__(self, session: SparkSession, options: dict[str, str]) -> None:
        self._session = session
        self._options = options
        self._created: set[tuple[str, bool]] = set()

    def create(self, topic: str, *, in_database: bool) -> None:
        """Create a view of a topic with all of its columns."""
        self._create(topic, COLUMNS.names, in_database=in_database)
        self._created.add((topic, in_database))

    def narrow(self, reads: Mapping[str, Sequence[set[str]]]) -> None:
        """Let the views read only the columns of these reads of their topics; the others are NULL."""
        for topic, in_database in self._created:
            if topic in reads:
                columns = set[str]().union(*reads[topic])
                self._create(topic, columns, in_database=in_database, push_filters=len(reads[topic]) == 1)

    def drop(self) -> None:
        for topic, in_database in self._created:
            if in_database:
                # By its plain name, unlike the one that creates it.
                self._session.catalog.dropGlobalTempView(topic)
            else:
                self._session.catalog.dropTempView(topic)

    def _create(
        self, topic: str, columns: Collection[str], *, in_database: bool, push_filters: bool = False
    ) -> None:
        read = StructType([field for field in COLUMNS if field.name in columns])
        every = [
            col(field.name) if field.name in columns else lit(None).cast(field.dataType).alias(field.name)
            for field in COLUMNS
        ]
        given = {"topic": topic, "pushFilters": str(push_filters)}
        reader = self._session.read.format("korvet").options(**self._options, **given)
        frame = reader.schema(read).load().select(*every)
        if in_database:
            frame.createOrReplaceGlobalTempView(quoted(topic))
        else:
            frame.createOrReplaceTempView(quoted(topic))


def result(frame: DataFrame) -> Result:
    """Return the rows of a query; reading them raises SparkError if it fails."""
    titles = tuple(frame.columns)
    numbers = tuple(field.name for field in frame.schema if isinstance(field.dataType, NumericType))
    # Columns may have the same name, and Python would convert times to its own zone.
    places = [f"c{at}" for at in range(len(titles))]
    shown = [
        col(place).cast("string") if isinstance(field.dataType, DatetimeType) else col(place)
        for place, field in zip(places, frame.schema, strict=True)
    ]
    return Result(titles, numbers, _rows(frame.toDF(*places).select(*shown)))


def write_parquet(frame: DataFrame, directory: str) -> None:
    """Write the rows of a query to files of a new directory; raises SparkError."""
    with _spark_errors():
        frame.write.parquet(directory)


def _rows(frame: DataFrame) -> Iterator[tuple[Any, ...]]:
    with _spark_errors():
        for row in frame.toLocalIterator():
            yield tuple(map(_plain, row))


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever SQL has
    if isinstance(value, Row):
        return {name: _plain(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return str(value)


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkError(f"the query failed: {reason_of(error)}") from error


def _missing(error: AnalysisException) -> str | None:
    """Return the one name in a query that Spark does not know, None if something else is wrong."""
    condition = error.getCondition() or ""
    name = (error.getMessageParameters() or {}).get("relationName", "")
    if not condition.startswith(_NOT_FOUND) or not (name.startswith("`") and name.endswith("`")):
        return None
    return name[1:-1].replace("``", "`")


_RELATIONS = ("DataSourceV2Relation", "DataSourceV2ScanRelation")


def _columns_of_reads(session: SparkSession, frame: DataFrame) -> Mapping[str, Sequence[set[str]]]:
    """Return the columns that a query needs of each topic, for each place of its plan that reads the topic."""
    columns: defaultdict[str, list[set[str]]] = defaultdict(list)
    # The plan alone is wanted, and no look into Redis. The frame keeps this plan.
    session.conf.set(PUSHDOWN, "false")
    try:
        _collect_columns(frame._jdf.queryExecution().optimizedPlan(), None, columns)  # noqa: SLF001 - PySpark has no way
    finally:
        session.conf.set(PUSHDOWN, "true")
    return columns


def _collect_columns(plan: Any, passed: set[int] | None, by_relation: Mapping[str, list[set[str]]]) -> None:  # noqa: ANN401 - of Java
    """Collect the columns that a node of an optimized plan needs, by topic.

    As Spark does it for other sources: what a projection and the filters below it name is needed of the relation below
    these, and all columns if there is no projection. `passed` are the ids of what is named above, None: all.
    """
    kind = plan.getClass().getSimpleName()
    if kind in _RELATIONS:
        relation = plan if kind == _RELATIONS[0] else plan.relation()
        columns = {
            attribute.name()
            for attribute in _each(plan.output())
            if passed is None or attribute.exprId().id() in passed
        }
        by_relation[relation.options().get("topic")].append(columns)
        return
    named = {attribute.exprId().id() for attribute in _each(plan.references())}
    match kind:
        case "Project":
            passed = named
        case "Filter":
            passed = None if passed is None else passed | named
        case _:
            passed = None
    for child in _each(plan.children()):
        _collect_columns(child, passed, by_relation)
    for subquery in _each(plan.subqueries()):
        _collect_columns(subquery, None, by_relation)


def _each(of: Any) -> Iterator[Any]:  # noqa: ANN401 - of Java
    """Yield what a collection of Scala's has."""
    iterator = of.iterator()
    while iterator.hasNext():
        yield iterator.next()
