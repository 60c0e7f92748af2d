"""Topics by their names in SQL: `korvet.orders` is a view over both tiers.

Spark takes no catalog that is written in Python, and gives the options of a table to no source that is; a query may
give them. What it has is a database of global temporary views, whose name is a setting: DATABASE in sessions of
korvet.spark.session. Such names may have any characters, as those of topics. A view of a text is planned for each
query, so it reads a topic as it is then, also one that was re-created; that of a DataFrame is planned once.

    register_topics(spark, **{"redis.url": URL, "lake": DIRECTORY})
    spark.sql("SELECT count(*) FROM korvet.orders JOIN korvet.`all-customers` ...")
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from korvet.config.values import key_values, without_option_secrets, without_secrets
from korvet.spark.options import read_options
from korvet.spark.source import register

DATABASE = "korvet"
DATABASE_SETTING = "spark.sql.globalTempDatabase"

_SOURCE = "spark_catalog.default.korvet_source"
"""A table without options, which each view gives."""


def register_topics(session: SparkSession, pattern: str = ".*", **options: str) -> list[str]:
    """Give each topic whose whole name matches a view; returns the names of the views, with their database.

    `options` are those of the data source, without a topic and without secrets. Raises ValueError, KafkaError,
    StorageUnavailableError.
    """
    register(session)
    source = read_options({**options, "subscribePattern": pattern}).source
    _check_no_secrets(options)
    with source.opened() as stores:
        topics = [each.name for each in stores.matching(pattern)]
    if alike := alike_names(session, topics):
        raise ValueError(f"{alike}; give a pattern that matches one of them")
    # Of a table that has a place Spark neither creates nor deletes one.
    place = Path(tempfile.gettempdir()).as_uri()
    session.sql(f"CREATE OR REPLACE TABLE {_SOURCE} USING korvet LOCATION {literal(place)}")
    for topic in topics:
        given = ", ".join(
            f"{literal(name)} = {literal(value)}" for name, value in {**options, "topic": topic}.items()
        )
        view = f"SELECT * FROM {_SOURCE} WITH ({given})"  # noqa: S608 - its texts are quoted
        session.sql(f"CREATE OR REPLACE GLOBAL TEMPORARY VIEW {quoted(topic)} AS {view}")
    return [f"{database(session)}.{quoted(topic)}" for topic in topics]


def _check_no_secrets(options: Mapping[str, str]) -> None:
    """Raise ValueError if options of views have a secret: Spark writes the text of a view to its log of events."""
    for name, value in options.items():
        match name.lower():
            case "redis.url" if without_secrets(value) != value:
                raise ValueError("redis.url: views show it, so give its password by redis.password.file")
            case "lake.storage.options":
                shown = key_values(without_option_secrets(value))
                if secret := [each for each, plain in key_values(value).items() if shown[each] != plain]:
                    raise ValueError(
                        f"lake.storage.options: views show them, and {', '.join(secret)} may be secret; "
                        "give these to the format korvet instead"
                    )


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
    found = re.finditer(rf"(?i:\b{re.escape(database_name)}`?)\s*\.\s*(?:`((?:[^`]|``)+)`|(\w+))", sql)
    return {each[2] or each[1].replace("``", "`") for each in found}
