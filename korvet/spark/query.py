"""SQL over topics: each is a view over both tiers, created when a query names it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import DatetimeType, NumericType

from korvet.lake.source import LakeSource
from korvet.lake.table import AsOf
from korvet.spark.session import SparkError, reason_of
from korvet.spark.source import register

_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"


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
    register(session)
    # Errors are raised; Spark would log them too, also for a view that is only not created yet.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    with source.opened() as stores:
        live = {row.name for row in stores.topics.load().rows.values() if row.state == "live"}
    topics = live.intersection(names) if names else live
    created: set[str] = set()
    while True:
        try:
            return session.sql(sql)
        except AnalysisException as error:
            missing = _missing(error)
            if missing is None or missing in created or missing not in topics:
                raise SparkError(reason_of(error)) from error
            created.add(missing)
            _view(session, source, missing, as_of)
        except (PySparkException, Py4JError) as error:
            raise SparkError(reason_of(error)) from error


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
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
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


def _view(session: SparkSession, source: LakeSource, topic: str, as_of: AsOf | None) -> None:
    options = {
        "redis.url": source.redis_url,
        "namespace": source.namespace,
        "lake": source.lake.path,
        "lake.storage.options": ",".join(map("=".join, (source.lake.storage_options or {}).items())),
        "topic": topic,
    }
    if as_of is not None:
        options["versionAsOf" if isinstance(as_of, int) else "timestampAsOf"] = str(as_of)
    try:
        session.read.format("korvet").options(**options).load().createOrReplaceTempView(f"`{topic}`")
    except (PySparkException, Py4JError) as error:
        raise SparkError(reason_of(error)) from error
