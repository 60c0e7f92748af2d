"""`korvet lake compact`, `expire` and `verify` as an operator runs them, on a real Redis and a real lake."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from korvet.lake.table import LakeTopic
from korvet.spark.pipelines.status import PipelineReporter
from korvet.topics.registry import TopicSpec, id_text
from tests.cli.commands import TextResult, done, failed, korvet
from tests.lake.both import TOPIC, Both, both
from tests.support.archives import where
from tests.support.batches import MALFORMED
from tests.support.iceberg import check, names, properties

DAY_MS = 86_400_000
WAIT_S = 60


@pytest.fixture
def topic(redis_url: str, tmp_path: Path) -> Iterator[Both]:
    """Give a topic with four archived batches: two are of now, and two older than the week that logs keep."""
    with both(redis_url, tmp_path / "lake") as made:
        now = time.time_ns() // 1_000_000
        old = now - 10 * DAY_MS
        made.archive_batches((old, old), (old, old), (now, now), (now, now))
        yield made


def lake(topic: Both, command: str, *arguments: str) -> TextResult:
    return korvet("lake", command, *where(topic), *arguments)


def printed(topic: Both, command: str, *arguments: str) -> str:
    return str(done(lake(topic, command, *arguments)))


def as_json(topic: Both, command: str, *arguments: str) -> Any:
    return json.loads(printed(topic, command, "--json", *arguments))


def row(output: str) -> list[str]:
    [line] = [line for line in output.splitlines() if line.split()[:1] == [TOPIC]]
    return line.split()


def test_compact_prints_its_plan_and_then_works(topic: Both) -> None:
    before = sum(file.size_bytes for file in topic.files())
    plan = {"topic": TOPIC, "partition": 0, "files": 4, "bytes": before, "records": 8, "into": 1}
    assert as_json(topic, "compact", "--dry-run") == [plan]
    assert row(printed(topic, "compact", "--dry-run")) == [TOPIC, "0", "4", str(before), "8", "1"]
    assert len(topic.files()) == 4
    assert printed(topic, "compact", "--topic", TOPIC).startswith("4 files became 1, with 8 records in ")
    assert len(topic.files()) == 1
    assert printed(topic, "compact") == "no files to merge\n"
    assert as_json(topic, "compact") == []


def test_compact_names_files_that_it_cannot_read(topic: Both) -> None:
    file = topic.files()[1]
    topic.path_of(file.path).unlink()
    message = failed(lake(topic, "compact"))
    assert f"Error: {TOPIC}-0: " in message
    assert file.path in message
    assert len(topic.files()) == 4


def test_compact_goes_on_until_it_is_stopped(topic: Both) -> None:
    line = [sys.executable, "-m", "korvet", "lake", "compact", *where(topic), "--interval", "0.05", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert [load["done"] for load in json.loads(process.stdout.readline())] == [True]
            now = time.time_ns() // 1_000_000
            topic.archive_batches((now,), (now,), (now,))
            # A round that has nothing to do prints nothing.
            assert [load["done"] for load in json.loads(process.stdout.readline())] == [True]
            assert len(topic.files()) < 4
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_expire_prints_its_plan_and_then_works(topic: Both) -> None:
    old = sum(file.size_bytes for file in topic.files()[:2])
    expired = {"topic": TOPIC, "partition": 0, "start": 4, "files": 2, "rows": 4, "bytes": old, "error": None}
    nothing = {"topic": TOPIC, "files": 0, "error": None}
    expected = {"expired": [expired], "vacuumed": [nothing], "gone": []}
    assert as_json(topic, "expire", "--dry-run") == expected
    assert len(topic.files()) == 4
    assert as_json(topic, "expire", "--topic", TOPIC) == expected
    assert [file.first_offset for file in topic.files()] == [4, 6]
    again = printed(topic, "expire")
    assert "Expired files" in again
    assert row(again) == [TOPIC, "0", "4", "0", "0", "0", "B"]


def test_expire_leaves_tables_without_a_topic_until_it_is_confirmed(topic: Both) -> None:
    old = topic.topic.id
    topic.worker.topics.delete([topic.worker.topics.get(TOPIC)])
    topic.worker.topics.create(TopicSpec(name="other", partitions=1))
    assert f"table {TOPIC}/{old}: its topic is deleted" in printed(topic, "expire")
    refused = lake(topic, "expire", "--remove-gone")
    assert "no table is deleted" in failed(refused)
    assert "its topic is deleted" in refused.stdout
    dry = as_json(topic, "expire", "--remove-gone", "--dry-run")
    assert dry["gone"] == [{"topic": TOPIC, "id": old, "removed": False}]
    assert len(topic.lake.tables()) == 1
    done = as_json(topic, "expire", "--remove-gone", "--yes")
    assert done["gone"] == [{"topic": TOPIC, "id": old, "removed": True}]
    assert topic.lake.tables() == []
    assert as_json(topic, "expire", "--remove-gone", "--yes")["gone"] == []


def test_expire_removes_no_table_that_is_no_archive_of_a_topic(topic: Both, tmp_path: Path) -> None:
    root = Path(topic.lake.path)
    columns = pa.table({"id": [1], "name": ["a"]})
    archived = DeltaTable(topic.lake.uri(topic.topic.of)).to_pyarrow_table()
    gone, written = (LakeTopic(TOPIC, id_text(bytes([number] * 16))) for number in (1, 2))
    for of in (gone, written):
        topic.lake.create(of)
    foreign = {
        "tables/sales": columns,
        "tables/sales_dead_letters": columns,
        f"tables/{gone.topic_id}": columns,
        f"{TOPIC}/{id_text(bytes(16))}": columns,
        f"copies/{gone.topic_id}": archived,
    }
    for path, rows in foreign.items():
        write_deltalake(root / path, rows)
    (root / "broken" / gone.topic_id / "_delta_log").mkdir(parents=True)
    reporter = PipelineReporter(
        topic.source, "sales", file="", tables=[topic.lake.uri(written)], stopped=threading.Event()
    )
    with reporter:
        pass
    [removed] = as_json(topic, "expire", "--remove-gone", "--yes")["gone"]
    assert removed == {"topic": TOPIC, "id": gone.topic_id, "removed": True}
    left = {str(item.parent.relative_to(root)) for item in root.rglob("_delta_log")}
    assert left == {"/".join(of) for of in (topic.topic.of, written)} | foreign.keys() | {
        f"broken/{gone.topic_id}"
    }


def test_upkeep_keeps_iceberg_in_step_and_drops_what_is_gone(topic: Both) -> None:
    catalog = properties(Path(topic.lake.path).parent)
    setting = ("--set", "lake.iceberg.catalog=" + ",".join(map("=".join, catalog.items())))
    printed(topic, "compact", *setting)
    check(topic.lake, topic.topic.of)
    topic.archive_batches((1, 1))
    as_json(topic, "expire", *setting)
    check(topic.lake, topic.topic.of)
    topic.worker.topics.delete([topic.worker.topics.get(TOPIC)])
    topic.worker.topics.create(TopicSpec(name="other", partitions=1))
    as_json(topic, "expire", *setting)
    assert names(topic.lake) == [TOPIC]
    as_json(topic, "expire", "--remove-gone", "--yes", *setting)
    assert (names(topic.lake), topic.lake.tables()) == ([], [])


def test_expire_removes_nothing_where_redis_knows_no_topic(topic: Both) -> None:
    topic.worker.topics.delete([topic.worker.topics.get(TOPIC)])
    assert "there is no topic at all" in failed(lake(topic, "expire", "--remove-gone", "--yes"))
    assert len(topic.lake.tables()) == 1


def test_verify_finds_a_sound_lake_sound_and_damage_by_its_name(topic: Both) -> None:
    topic.topics.put(topic.partition, MALFORMED["zeros"])
    topic.archive()
    sound = {"topic": TOPIC, "partition": 0, "files": 4, "rows": 8, "compared": 8, "findings": []}
    assert as_json(topic, "verify")[0] == sound | {"known_holes": [{"first": 8, "end": 9}]}
    lines = printed(topic, "verify").splitlines()
    assert f"{TOPIC}-0: known hole: batches of offsets 8 to 8 are kept as bytes" in lines
    [first, _] = [line.split() for line in lines if line.split()[:1] == [TOPIC]]
    assert first == [TOPIC, "0", "4", "8", "8", "0"]
    file = topic.files()[2]
    topic.path_of(file.path).unlink()
    result = lake(topic, "verify", "--json")
    assert f"Error: {TOPIC}-0: unreadable: {file.path}" in failed(result)
    [finding] = json.loads(result.stdout)[0]["findings"]
    assert (finding["kind"], finding["offset"]) == ("unreadable", 4)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("compact", "--interval", "1", "--once"), 2, "--interval excludes"),
        (("expire", "--interval", "1", "--dry-run"), 2, "--interval excludes"),
        (("expire", "--interval", "1", "--remove-gone"), 2, "--interval excludes"),
        (("expire", "--topic", TOPIC, "--remove-gone"), 2, "--topic excludes"),
        (("expire", "--vacuum-hours", "23"), 2, "--vacuum-hours"),
        (("compact", "--topic", "none"), 1, "there is no topic none"),
        (("expire", "--topic", "none"), 1, "there is no topic none"),
        (("verify", "--topic", "none"), 1, "there is no topic none"),
        (("verify", "--lake", ""), 2, "give the location of the tables"),
        (("compact", "--redis-url", "redis://127.0.0.1:1"), 1, "127.0.0.1:1"),
    ],
)
def test_mistakes_are_one_clear_error(
    topic: Both, arguments: tuple[str, ...], code: int, message: str
) -> None:
    command, *flags = arguments
    assert message in failed(lake(topic, command, *flags), code)


def test_rewind_prints_what_leaves_the_tables(topic: Both, raw_redis: Any) -> None:
    assert printed(topic, "rewind") == "no table is ahead of Redis\n"
    state, before = topic.partition.state, raw_redis.dump(topic.partition.state)
    now = time.time_ns() // 1_000_000
    topic.archive_batches((now, now, now))
    raw_redis.restore(state, 0, before, replace=True)
    raw_redis.xtrim(topic.partition.stream, maxlen=4)
    partition = {"topic": TOPIC, "partition": 0, "first": 8, "end": 11, "records": 3, "files": 1}
    expected = {"rewound": [{**partition, "start": None, "error": None}], "gone": []}
    assert as_json(topic, "rewind", "--dry-run") == expected
    assert len(topic.files()) == 5
    assert "no record is removed: confirm at a terminal, or give --yes" in failed(lake(topic, "rewind"))
    assert len(topic.files()) == 5
    assert row(printed(topic, "rewind", "--topic", TOPIC, "--yes")) == [TOPIC, "0", "3", "1", "-", "8", "11"]
    assert len(topic.files()) == 4
    raw_redis.delete(state)
    assert f"Error: {TOPIC}-0: " in failed(lake(topic, "rewind"))
    assert "Error: there is no topic other" in failed(lake(topic, "rewind", "--topic", "other"))
