"""Topics by their names in SQL: `korvet.orders` is a view over both tiers.

Spark takes no catalog written in Python, and gives a source in Python no options of a table. It has
a database of global temporary views, whose name is a setting: DATABASE in sessions of korvet.spark.session. Such names
may have any characters, as those of topics.

    register_topics(spark, **{"redis.url": URL, "lake": DIRECTORY})
    spark.sql("SELECT count(*) FROM korvet.orders JOIN korvet.`all-customers` ...")
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import SparkSession

from korvet.spark.options import read_options
from korvet.spark.session import PUSHDOWN
from korvet.spark.source import COLUMNS

DATABASE = "korvet"
DATABASE_SETTING = "spark.sql.globalTempDatabase"

_EVERY_ROW = "partition >= 0"
"""With a filter Spark plans the read of a view again for each query: without, all read what the first one planned."""


def register_topics(session: SparkSession, pattern: str = ".*", **options: str) -> list[str]:
    """Give each topic whose whole name matches a view; returns the names of the views, with their database.

    `options` are those of the data source, without a topic. Raises ValueError, KafkaError, StorageUnavailableError.
    """
    source = read_options({**options, "subscribePattern": pattern}).source
    with source.opened() as stores:
        topics = [topic.name for topic in stores.matching(pattern)]
    if alike := alike_names(session, topics):
        raise ValueError(f"{alike}; give a pattern that matches one of them")
    session.conf.set(PUSHDOWN, "true")
    for topic in topics:
        frame = session.read.format("korvet").options(**options, topic=topic).schema(COLUMNS).load()
        frame.where(_EVERY_ROW).createOrReplaceGlobalTempView(quoted(topic))
    return [f"{database(session)}.{quoted(topic)}" for topic in topics]


def alike_names(session: SparkSession, topics: Iterable[str]) -> str:
    """Return what is wrong if two of these topics would be one view, as the case of letters does not count."""
    if session.conf.get("spark.sql.caseSensitive") == "true":
        return ""
    seen: dict[str, str] = {}
    for topic in topics:
        other = seen.setdefault(topic.casefold(), topic)
        if other != topic:
            return f"the topics {' and '.join(sorted((other, topic)))} differ only in case, which Spark's names ignore"
    return ""


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text as SQL has any text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def database(session: SparkSession) -> str:
    """Return the database of global temporary views: a session that others have started may have another one."""
    name: str = session.conf.get(DATABASE_SETTING) or DATABASE
    return name


def names_in(sql: str, database_name: str) -> set[str]:
    """Return names that a query may have as `database.name`; some may be in texts or comments."""
    matches = re.finditer(rf"(?i:\b{re.escape(database_name)}`?)\s*\.\s*(?:`((?:[^`]|``)+)`|(\w+))", sql)
    return {match[2] or match[1].replace("``", "`") for match in matches}
