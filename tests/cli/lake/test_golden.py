"""What the commands of the lake print: a transcript of each in tests/cli/golden."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import msgspec
import pytest

from korvet.cluster.pipelines import QueryPosition, QueryStatus
from korvet.spark.pipelines.status import PipelineReporter
from tests.cli import commands
from tests.cli.transcripts import check_transcript, names, printed, transcript_of
from tests.lake.both import Both, both
from tests.support.archives import where
from tests.support.in_process import InProcessBroker, only_broker

NEW_YEAR_MS = 1_767_225_600_000
FILE = """
name = "sales"
[sources.orders]
topics = ["orders"]
[transform]
sql = "SELECT value FROM orders"
[target]
type = "delt"
path = "sales"
"""
SCENARIO = {
    "lake status": ("lake status",),
    "lake archive": ("lake archive --dry-run", "lake archive --dry-run --topic nowhere"),
    "lake compact": ("lake compact --dry-run", "lake compact"),
    "lake verify": ("lake verify",),
    "lake expire": ("lake expire --dry-run",),
    "lake rewind": ("lake rewind --dry-run",),
    "lake replay": ("lake replay orders --to again --dry-run", "lake replay orders --to nowhere --dry-run"),
    "lake pipeline list": ("lake pipeline list",),
    "lake pipeline status": ("lake pipeline status", "lake pipeline status bills"),
    "lake pipeline stop": ("lake pipeline stop sales", "lake pipeline stop bills"),
    "lake pipeline reset": ("lake pipeline reset bills --from earliest",),
    "lake pipeline run": ("lake pipeline run sales.toml",),
    "lake pipeline start": ("lake pipeline start nowhere.toml",),
    "lake pipeline validate": ("lake pipeline validate sales.toml",),
    "lake register": ("lake register --metastore thrift://127.0.0.1:1 --database lake",),
}
ON_SPARK = {
    "lake query": (
        "lake query 'SELECT offset, CAST(value AS STRING) AS value FROM orders ORDER BY offset'",
        "lake query 'SELECT * FROM nowhere'",
    ),
}


@pytest.fixture(scope="module")
def broker(redis_server: str) -> Iterator[InProcessBroker]:
    with only_broker(redis_server) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: InProcessBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Give a topic with two archived batches, one that is not, and a pipeline that has read a part and ended."""
    with both(broker.redis_url, tmp_path_factory.mktemp("lake") / "lake") as made:
        made.archive_batches((NEW_YEAR_MS, NEW_YEAR_MS + 1), (NEW_YEAR_MS + 2, NEW_YEAR_MS + 3))
        made.append(NEW_YEAR_MS + 4)
        with made.source.opened() as stores:
            store = stores.pipelines
            with PipelineReporter(made.source, "sales", file="sales.toml", stopped=Event()) as reporter:
                reporter.started([])
            [row] = store.read()
            status = QueryStatus(
                batch=3,
                ended_ms=NEW_YEAR_MS,
                polled_ms=NEW_YEAR_MS,
                records=2,
                duration_ms=2500,
                records_per_second=0.8,
                positions={"orders": QueryPosition(made.topic.id, {0: 2})},
            )
            known = {
                "state": "completed",
                "since_ms": NEW_YEAR_MS,
                "records": 2,
                "log": "",
                "holder": str(row.process._replace(host="here", id=4711)),
            }
            store.write(msgspec.structs.replace(row, queries={"main": status}, **known))
        yield made


@pytest.fixture(scope="module")
def transcripts(
    topic: Both, broker: InProcessBroker, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("pipelines")
    (directory / "sales.toml").write_text(FILE)
    made = {}
    commands.korvet("topics", "create", "again", "--partitions", "2", "-b", broker.bootstrap)
    for name, lines in SCENARIO.items():
        flags = [*where(topic), *(("-b", broker.bootstrap) if name == "lake replay" else ())]
        made[name] = transcript_of(name, lines, directory, *flags)
    return made


@pytest.mark.parametrize("name", SCENARIO)
def test_a_command_prints_its_transcript(transcripts: dict[str, str], name: str) -> None:
    check_transcript(name, transcripts[name])


@pytest.mark.spark
@pytest.mark.parametrize("name", ON_SPARK)
def test_a_command_on_spark_prints_its_transcript(topic: Both, tmp_path: Path, name: str) -> None:
    parts = []
    for line in ON_SPARK[name]:
        words = (*shlex.split(line), *where(topic), "--master", "local[2]")
        ended = commands.korvet_process(*words, cwd=tmp_path, seconds_max=commands.SPARK_SECONDS_MAX)
        parts.append(printed(line, ended.stdout, ended.stderr, ended.returncode))
    check_transcript(name, "".join(parts))


def test_each_command_of_the_lake_has_a_transcript() -> None:
    assert {name for name in names() if name.startswith("lake ")} == SCENARIO.keys() | ON_SPARK.keys()
