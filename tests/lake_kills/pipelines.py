"""A pipeline under kills: JSON is decoded, and appended to a table or merged into it by key, with dead letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow.fs import FileSelector

from korvet.lake.files import filesystem
from tests.lake_kills.killing import Found, Run, Target, kill_at_random
from tests.lake_kills.producing import Sending
from tests.lake_kills.readers import READERS, by_spark, spark_of
from tests.lake_kills.system import TOPICS, System
from tests.support.records import PARTITIONS, TIMESTAMP_FIRST_MS, Sample

_NAME = "kills"
_KEYS = 48
_TABLE, _DEAD = "tables/events", "tables/events_dead_letters"

Row: TypeAlias = tuple[Any, ...]

_SOURCE = """
[sources.events]
topics = {topics}
on_error = "dead_letters"
[sources.events.key]
format = "string"
[sources.events.value]
format = "json"
schema = "number BIGINT, amount DOUBLE"
"""

_APPEND = """
[transform]
sql = "SELECT topic, partition, offset, key, value.number, value.amount FROM events"
[target]
type = "delta"
path = "tables/events"
"""

_MERGE = """
[transform]
sql = "SELECT concat(topic, '/', key) id, offset, value.number, value.amount, value IS NULL gone FROM events"
[target]
type = "delta"
path = "tables/events"
mode = "merge"
key = ["id"]
order_by = ["offset"]
delete_when = "gone"
"""


def events(start: int, count: int) -> list[Sample]:
    """Return records numbered from `start`: JSON, some of it cut off, and tombstones; of a key all in one partition."""
    return [_event(number) for number in range(start, start + count)]


def _event(number: int) -> Sample:
    # A key has all kinds in turn, for both numbers have no factor in common.
    kind, key = number % 7, number % _KEYS
    value: bytes | None = json.dumps({"number": number, "amount": number / 4}).encode()
    if kind == 3:
        value = b'{"number": %d, "am' % number
    elif kind == 5:
        value = None
    return Sample(key % PARTITIONS, b"%d" % key, value, (), TIMESTAMP_FIRST_MS + number)


def append(system: System, run: Run) -> Found:
    """Kill the processes of a pipeline that appends."""
    return _pipeline(system, run, _APPEND, _appended)


def merge(system: System, run: Run) -> Found:
    """Kill the processes of a pipeline that merges."""
    return _pipeline(system, run, _MERGE, _merged)


def _pipeline(system: System, run: Run, does: str, wanted: Callable[[Sending], list[Row]]) -> Found:
    def file(trigger: str) -> str:
        text = f'name = "{_NAME}"\n{_SOURCE.format(topics=json.dumps(list(TOPICS)))}{does}'
        path = system.directory / "pipeline.toml"
        path.write_text(f"{text}[trigger]\n{trigger}\n[spark.conf]\n{_spark_configs(system)}")
        return str(path)

    words = ("pipeline", "run", file('interval = "200ms"'), "--master", system.master)
    with system.command(*words) as running:
        # What plans a batch is a process of Python too, and ends the query with it: systemd starts that again.
        target = Target(running, lambda: _version(system), (1,), lambda: _phase(system))
        with Sending(system.broker.bootstrap, list(TOPICS), run.rate, events) as sending:
            counts = kill_at_random(system, run, {"": target})
        code = running.end()
        violations = [f"it ended with {code}:\n{running.log()[-2000:]}"] if code else []
    file("available_now = true")
    done = system.run(*words)
    if done.returncode:
        violations.append(f"the rest ended with {done.returncode}: {done.stderr[-2000:]}")
    counts["records"] = sum(map(len, sending.acknowledged.values()))
    with spark_of(system) as spark:
        readers = READERS | {"Delta Lake on Spark": lambda uri, _: spark.run(by_spark, system.by_hadoop(uri))}
        for path, rows in ((_TABLE, wanted(sending)), (_DEAD, _dead(sending))):
            counts[f"rows of {path}"] = len(rows)
            for name, read in readers.items():
                table = read(_uri(system, path), system.lake.storage_options)
                violations += [f"{path} as {name} reads it: {each}" for each in differences(table, rows)]
    return Found(counts, violations + sending.errors)


def _appended(sending: Sending) -> list[Row]:
    """Return what the table has: no records that do not decode, and tombstones without a value."""
    return [
        (topic, sample.partition, offset, _text(sample.key), *_decoded(sample))
        for topic in sending.topics
        for offset, sample in sending.with_offsets(topic)
        if _is_good(sample)
    ]


def _merged(sending: Sending) -> list[Row]:
    """Return what the table has: the last value of each key that no tombstone has deleted."""
    found: dict[str, Row | None] = {}
    for topic in sending.topics:
        for offset, sample in sending.with_offsets(topic):
            if _is_good(sample):
                name = f"{topic}/{_text(sample.key)}"
                found[name] = None if sample.value is None else (name, offset, *_decoded(sample))
    return [row for row in found.values() if row is not None]


def _dead(sending: Sending) -> list[Row]:
    return [
        (topic, sample.partition, offset, sample.timestamp, sample.key, sample.value)
        for topic in sending.topics
        for offset, sample in sending.with_offsets(topic)
        if not _is_good(sample)
    ]


def _is_good(sample: Sample) -> bool:
    return sample.value is None or sample.value.endswith(b"}")


def _decoded(sample: Sample) -> tuple[int | None, float | None]:
    if sample.value is None:
        return None, None
    fields = json.loads(sample.value)
    return fields["number"], fields["amount"]


def _text(key: bytes | None) -> str:
    return (key or b"").decode()


def differences(table: pa.Table, wanted: list[Row]) -> list[str]:
    """Return how a table's rows, in any order, differ from those that are wanted; dead letters but for their error."""
    names = [name for name in table.column_names if name != "error"]
    if "timestamp" in names:
        at = table.column_names.index("timestamp")
        milliseconds = table.column(at).cast(pa.timestamp("us", tz="UTC")).cast(pa.timestamp("ms", tz="UTC"))
        table = table.set_column(at, "timestamp", milliseconds.cast(pa.int64()))
    found = Counter(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    doubled = [row for row, times in found.items() if times > 1]
    lost, foreign = Counter(wanted) - found, found - Counter(wanted)
    differences = {"doubled": doubled, "lost or changed": list(lost), "not as sent": list(foreign)}
    return [f"{len(rows)} {what}, as {rows[0]}" for what, rows in differences.items() if rows]


def _uri(system: System, path: str) -> str:
    return f"{system.lake.path}/{path}"


def _version(system: System) -> int:
    try:
        return DeltaTable(_uri(system, _TABLE), storage_options=system.lake.storage_options).version() + 1
    except TableNotFoundError:
        return 0


def _phase(system: System) -> str:
    """Return what the driver was in when it was killed, as the checkpoint of its query and the table say."""
    try:
        files = filesystem(_uri(system, f"_pipelines/{_NAME}/checkpoint/main"), system.lake.storage_options)
    except TableNotFoundError:
        # So deltalake says that a directory is not there.
        return "before the first batch"

    def last(log: str) -> int:
        found = files.get_file_info(FileSelector(log, allow_not_found=True))
        return max((int(each.base_name) for each in found if each.base_name.isdigit()), default=-1)

    number = last("offsets")
    if number == last("commits"):
        return ""
    with files.open_input_stream("metadata") as metadata:
        query = json.loads(metadata.read())["id"]
    table = DeltaTable(_uri(system, _TABLE), storage_options=system.lake.storage_options)
    done = table.transaction_version(f"korvet-{_NAME}-main-{query}")
    return "between the commit of a batch and Spark's knowing it" if done == number else "in a batch"


def _spark_configs(system: System) -> str:
    jars = ":".join(map(str, system.jars()))
    configs = {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.driver.memory": "1g",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    return "".join(f'"{name}" = "{value}"\n' for name, value in configs.items())
