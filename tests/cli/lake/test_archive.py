"""`korvet lake archive` and `status` as an operator runs them, on a real Redis and a real lake, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from korvet.lake.source import SourceTopic
from tests.cli.commands import TextResult, done, failed, korvet
from tests.support.archives import Topics, orders, where

ROOT = Path(__file__).parents[3]


@pytest.fixture
def topic(topics: Topics) -> SourceTopic:
    return orders(topics)


def lake(topics: Topics, command: str, *arguments: str) -> TextResult:
    return korvet("lake", command, *where(topics), *arguments)


def as_json(topics: Topics, command: str, *arguments: str) -> Any:
    return json.loads(done(lake(topics, command, "--json", *arguments)))


def row(result: TextResult) -> list[str]:
    return next(line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["orders"])


def test_a_dry_run_prints_what_would_be_archived(topics: Topics, topic: SourceTopic) -> None:
    ranges = [{"topic": "orders", "partition": 0, "archived": 0, "from": 0, "to": 3, "files": 1, "bytes": 0}]
    assert as_json(topics, "archive", "--dry-run") == {"ranges": ranges, "more": False}
    assert row(lake(topics, "archive", "--dry-run")) == ["orders", "0", "0", "0", "3", "1", "0"]
    assert not Path(topics.lake).exists()


def test_another_lake_is_reported_though_nothing_is_new(
    topics: Topics, topic: SourceTopic, tmp_path: Path
) -> None:
    topics.archiver().round(topics.run)
    other = ("--lake", str(tmp_path / "other"))
    no_java = {"JAVA_HOME": str(tmp_path)}
    for archive in (
        lake(topics, "archive", "--dry-run", *other),
        korvet("lake", "archive", *where(topics), *other, environ=no_java),
    ):
        assert "this lake holds nothing: is it another one?" in failed(archive)
    message = failed(lake(topics, "status", *other))
    assert "Error: orders-0: archived up to 3 as Redis knows, but this lake holds nothing" in message
    assert "orders-1" not in message
    assert as_json(topics, "archive", "--dry-run") == {"ranges": [], "more": False}


def test_status_shows_how_far_each_partition_is_archived(topics: Topics, topic: SourceTopic) -> None:
    before, empty = as_json(topics, "status")
    assert (before["archived"], before["mirrored"], before["lag_records"]) == (None, 0, 3)
    # Format `batch` keeps no time of an append, unless timestamps are that.
    assert before["lag_ms"] is None
    assert (empty["partition"], empty["end"], empty["lag_records"], empty["lag_ms"]) == (1, 0, 0, 0)
    topics.archiver().round(topics.run)
    topics.produce(topic.partitions[0], b"4")
    after, _ = as_json(topics, "status", "--topic", "orders")
    assert (after["archived"], after["mirrored"], after["end"], after["lag_records"]) == (3, 3, 4, 1)
    assert (after["files"], after["rows"], after["start"], after["local_start"]) == (1, 3, 0, 0)
    assert row(lake(topics, "status"))[:7] == ["orders", "0", "0", "0", "3", "4", "1"]


def test_what_cannot_be_done_is_one_line(topics: Topics, topic: SourceTopic, tmp_path: Path) -> None:
    assert "there is no topic other" in failed(lake(topics, "status", "--topic", "other"))
    assert "there is no topic other" in failed(lake(topics, "archive", "--dry-run", "--topic", "other"))
    dead = lake(topics, "status", "--redis-url", "redis://127.0.0.1:1")
    assert "127.0.0.1:1 cannot be reached" in failed(dead)
    nowhere = korvet("lake", "status", "--redis-url", topics.source.redis_url)
    assert "--lake, or the setting lake.path" in failed(nowhere, 2)
    no_log = korvet("lake", "status", "--lake", topics.lake, "--set", "data.dir=./data", cwd=tmp_path)
    assert f"no embedded server runs on {tmp_path}/data (data.dir)" in failed(no_log, 2)
    both = lake(topics, "archive", "--once", "--interval", "1")
    assert "--interval excludes" in failed(both, 2)
    no_java = korvet("lake", "archive", *where(topics), environ={"JAVA_HOME": str(tmp_path)})
    assert "Spark needs Java 17 or later" in failed(no_java)


def test_spark_is_not_started_if_nothing_is_to_be_archived(
    topics: Topics, topic: SourceTopic, tmp_path: Path
) -> None:
    topics.archiver().round(topics.run)
    no_java = {"JAVA_HOME": str(tmp_path)}
    result = korvet("lake", "archive", *where(topics), environ=no_java)
    assert done(result) == "archived 0 records, 0 B in 0 files\n"
    assert result.stderr == ""


def test_records_that_redis_lost_are_reported_without_spark(topics: Topics, tmp_path: Path) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, b"1", b"2")
    topics.archiver().round(topics.run)
    topics.produce(partition, b"3")
    topics.trim(partition, 3)
    result = korvet("lake", "archive", *where(topics), "--json", environ={"JAVA_HOME": str(tmp_path)})
    results = json.loads(result.stdout)
    assert (result.returncode, results["records"], results["partitions"]) == (1, 0, 1)
    assert results["lost"] == [{"topic": "orders", "partition": 0, "first": 2, "end": 3}]
    assert as_json(topics, "status")[0]["archived"] == 3


@pytest.mark.parametrize(("command", "package"), [("status", "deltalake"), ("archive", "pyspark")])
def test_without_the_extra_the_commands_say_what_to_install(
    topics: Topics, topic: SourceTopic, command: str, package: str
) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from korvet.cli.main import main; sys.exit(main())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "lake", command, *where(topics)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == f"Error: {package} is not installed: run `make lake`\n"


def test_a_lake_that_cannot_be_read_is_reported_for_its_topic_only(
    topics: Topics, topic: SourceTopic
) -> None:
    other = topics.make("others", "batch", number=1)
    topics.produce(other.partitions[0], b"1")
    topics.archiver().round(topics.run)
    log = Path(topics.lake) / topic.name / topic.id / "_delta_log"
    for file in log.glob("*.json"):
        file.write_text("{no log")
    result = lake(topics, "status", "--json")
    assert result.returncode == 1
    assert [(load["topic"], load["error"] is None) for load in json.loads(result.stdout)] == [
        ("orders", False),
        ("orders", False),
        ("others", True),
    ]
    assert topic.id in result.stderr
