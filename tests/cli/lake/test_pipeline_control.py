"""`korvet lake pipeline` list, status, start, stop and reset; pipelines run in real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from korvet.cluster.pipelines import (
    LEASE_MS,
    LostOffsets,
    PipelineProcess,
    PipelineStore,
    QueryPosition,
    QueryStatus,
)
from korvet.log.packed import LOG_FIELD
from korvet.spark.pipelines.status import PipelineReporter
from tests.cli.commands import SPARK_SECONDS_MAX, done, failed, korvet, korvet_process
from tests.support.archives import Topics, where
from tests.support.pipelines import FILE, pipeline_process
from tests.support.processes import alive, wait_until

NAME = "sales"


@pytest.fixture
def store(topics: Topics) -> Iterator[PipelineStore]:
    with topics.source.opened() as stores:
        yield stores.pipelines


def pipeline(topics: Topics, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return korvet("lake", "pipeline", command, *where(topics), *arguments)


def started(topics: Topics, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a pipeline by a process of its own: it has to outlive that."""
    return korvet_process(
        "lake", "pipeline", "start", *where(topics), *arguments, seconds_max=SPARK_SECONDS_MAX
    )


def state(store: PipelineStore) -> str:
    [row] = store.read()
    return row.state


@contextlib.contextmanager
def running(topics: Topics, store: PipelineStore, name: str = NAME) -> Iterator[subprocess.Popen[str]]:
    """Give a process that runs a pipeline, and is known to."""
    with pipeline_process(topics.source, name) as process:
        wait_until(lambda: [row for row in store.read() if row.state == "running"], "it runs")
        yield process


def test_a_file_that_is_wrong_is_refused_before_java_starts(topics: Topics, tmp_path: Path) -> None:
    """A test of this folder that started a process would fail."""
    file = tmp_path / "sales.toml"
    file.write_text("name = 'sales'\n[sources.a]\ntopics = ['a']\n[target]\ntype = 'delt'\n")
    problem = "'delt' is none of 'delta', 'parquet', 'topic'"
    for command in ("run", "validate"):
        message = failed(pipeline(topics, command, str(file)))
        assert message == f"Error: {file}:5: target.type: {problem}\n"


def test_without_pipelines_there_is_nothing_to_show(topics: Topics) -> None:
    for command in ("list", "status"):
        assert done(pipeline(topics, command)) == "no pipelines\n"
        assert json.loads(done(pipeline(topics, command, "--json"))) == []
    for command in ("status", "stop"):
        message = failed(pipeline(topics, command, NAME))
        assert message == f"Error: there is no pipeline {NAME}: none of that name has run\n"


def test_a_pipeline_is_listed_with_its_process(topics: Topics, store: PipelineStore) -> None:
    with running(topics, store) as process:
        [row] = json.loads(done(pipeline(topics, "list", "--json")))
        assert (row["name"], row["state"], row["process"]) == (NAME, "running", process.pid)
        assert (row["host"], row["file"], row["restarts"]) == (PipelineProcess.own().host, FILE, 0)
        head, cells = (line.split() for line in done(pipeline(topics, "list")).splitlines())
        assert head == ["Pipeline", "State", "Since", "Host", "Process", "Restarts", "File", "Log"]
        assert cells[:2] == [NAME, "running"]
        assert str(process.pid) in cells


def test_the_status_shows_what_is_left_to_read_and_the_last_batch(
    topics: Topics, store: PipelineStore
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], b"1", b"2", b"3")
    with running(topics, store):
        pass
    [row] = store.read()
    batch = QueryStatus(
        batch=7,
        ended_ms=1_700_000_000_000,
        polled_ms=1_700_000_900_000,
        records=2,
        duration_ms=2500,
        records_per_second=0.8,
        positions={"orders": QueryPosition(topic.id, {0: 1})},
        lost={"orders": {0: LostOffsets(3, 5, 8)}},
    )
    unread = {"orders.value: schema id 3: Order.amount": 2}
    known = msgspec.structs.replace(row, state="completed", since_ms=0, records=1, dead_letters=4, restarts=1)
    store.write(msgspec.structs.replace(known, unread_fields=unread, queries={"main": batch}))
    [result] = json.loads(done(pipeline(topics, "status", "--json", NAME)))
    assert (result["lag_records"], result["state"], result["process"]) == (2, "completed", row.process.id)
    assert result["queries"]["main"]["positions"] == {"orders": {"id": topic.id, "offsets": {"0": 1}}}
    assert result["lag_ms"] > 0
    assert "holder" not in result
    [_, line, last] = done(pipeline(topics, "status")).splitlines()
    assert last == f"{NAME}: fields not read: sources.orders.value: schema id 3: Order.amount: 2 records"
    name, state, since, *cells = line.split()
    assert (name, state, cells[0], cells[2:4], cells[6:9]) == (
        NAME,
        "completed",
        "2",
        ["1", "0.8"],
        ["4", "3", "1"],
    )
    assert all(float(age) > 0 for age in (since, cells[1], cells[4]))
    # A topic that is slow, and no hang: the pipeline has looked for records since its last batch.
    assert int(cells[4]) - int(cells[5]) == 900
    assert line.endswith(f"{row.process.id} on {row.process.host}")


def test_one_that_has_failed_or_is_lost_makes_the_exit_code_one(topics: Topics, store: PipelineStore) -> None:
    with (
        contextlib.suppress(OSError),
        PipelineReporter(topics.source, "a", file="", stopped=threading.Event()),
    ):
        raise OSError("the disk is full")
    with running(topics, store, "b") as process:
        process.kill()
        process.wait()
        result = pipeline(topics, "status", "b")
        # Its lease has not ended.
        assert (result.returncode, result.stdout.splitlines()[1].split()[:2]) == (0, ["b", "running"])
        store.lease("b").release(store.holder("b") or "")
    result = pipeline(topics, "status", "a", "b")
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == ["failed", "lost"]
    lines = failed(result).splitlines()
    assert lines[0].startswith("Error: a: the disk is full")
    assert lines[1].startswith(
        f"Error: b: process {process.pid} on {PipelineProcess.own().host} ended without"
    )


def test_a_lag_that_cannot_be_known_hides_no_status(
    topics: Topics, store: PipelineStore, raw_redis: Any
) -> None:
    topic = topics.make("orders", "batch")
    with running(topics, store):
        pass
    [row] = store.read()
    queries = {"main": QueryStatus(positions={"orders": QueryPosition(topic.id, {0: 0})})}
    store.write(msgspec.structs.replace(row, state="stopped", queries=queries))
    raw_redis.hset("{korvet:orders:0}:state", LOG_FIELD, "no log")
    result = pipeline(topics, "status")
    assert result.returncode == 0
    assert result.stdout.splitlines()[1].split()[3:5] == ["-", "-"]
    assert result.stderr.startswith(f"Error: {NAME}: its lag is not known: ")


def test_a_pipeline_is_stopped_in_order_and_by_its_file_too(
    topics: Topics, store: PipelineStore, tmp_path: Path
) -> None:
    file = tmp_path / "any.toml"
    file.write_text(f'name = "{NAME}"\n[sources.a]\ntopics = ["a"]\n[target]\ntype = "parquet"\npath = "p"\n')
    for given in (NAME, str(file)):
        with running(topics, store) as process:
            result = pipeline(topics, "stop", given)
            assert (result.returncode, result.stdout) == (0, f"stopped {NAME}\n")
            assert not alive(process.pid)
            assert process.wait() == 0
            assert state(store) == "stopped"
        message = failed(pipeline(topics, "stop", given))
        assert message == f"Error: pipeline {NAME} does not run: it is stopped\n"


def test_a_reset_is_refused_while_the_pipeline_runs_or_if_its_flags_do_not_fit(
    topics: Topics, store: PipelineStore, file: Path
) -> None:
    with running(topics, store) as process:
        message = failed(pipeline(topics, "reset", str(file), "--from", "earliest"))
        where_it_runs = f"process {process.pid} on {PipelineProcess.own().host}"
        assert message == f"Error: pipeline {NAME} runs: {where_it_runs}; stop it first\n"
    [row] = store.read()
    store.write(msgspec.structs.replace(row, name=f"{NAME}.range-1", state="completed", file=str(file)))
    # The file's own pipeline would be reset.
    message = failed(pipeline(topics, "reset", f"{NAME}.range-1", "--from", "earliest"))
    assert message.startswith(
        f"Error: pipeline {NAME}.range-1: its file is that of {NAME}, whose range it has read"
    )
    message = failed(pipeline(topics, "reset", "bills", "--from", "latest"))
    assert message == "Error: pipeline bills: none of that name has run; give its file in place of its name\n"
    for problem, *flags in (
        ("--from offsets and --offsets need each other", "offsets"),
        ("--from time and --time need each other", "earliest", "--time", "2026-01-01"),
        ("--offsets takes orders:0=23,orders:1=42, not 'orders=1'", "offsets", "--offsets", "orders=1"),
        ("--offsets names orders:0 twice", "offsets", "--offsets", "orders:0=1,orders:0=2"),
    ):
        assert problem in pipeline(topics, "reset", str(file), "--from", *flags).stderr


def test_one_that_was_killed_is_stopped_without_waiting_for_its_lease(
    topics: Topics, store: PipelineStore
) -> None:
    with running(topics, store) as process:
        process.kill()
        process.wait()
        assert state(store) == "running"
        assert pipeline(topics, "stop", NAME).stdout == f"stopped {NAME}\n"
        assert (state(store), store.holder(NAME)) == ("stopped", None)


def test_one_on_another_machine_is_left_alone(topics: Topics, store: PipelineStore) -> None:
    with running(topics, store) as process:
        [row] = store.read()
        elsewhere = row.process._replace(host="east", machine="another")
        holder = row.holder
        store.lease(NAME).release(holder)
        assert store.lease(NAME).acquire(str(elsewhere), LEASE_MS)
        store.write(msgspec.structs.replace(row, holder=str(elsewhere)))
        message = failed(pipeline(topics, "stop", NAME))
        assert message == f"Error: pipeline {NAME} runs on east, as process {process.pid}: stop it there\n"
        assert alive(process.pid)
        # Nor is it forgotten while it runs.
        assert failed(pipeline(topics, "stop", NAME, "--forget")) == message


def test_one_that_does_not_end_is_reported(topics: Topics, store: PipelineStore) -> None:
    with running(topics, store) as process:
        process.send_signal(signal.SIGSTOP)
        message = failed(pipeline(topics, "stop", NAME, "--timeout", "0.3"))
        assert f"Error: process {process.pid} of pipeline {NAME} has not ended within 0.3 s" in message


def test_a_pipeline_is_forgotten_whether_it_runs_or_not(
    topics: Topics, store: PipelineStore, raw_redis: Any
) -> None:
    for runs in (True, False):
        with running(topics, store) as process:
            if not runs:
                process.terminate()
                process.wait()
            result = pipeline(topics, "stop", NAME, "--forget")
            said = [f"stopped {NAME}"] * runs + [f"removed {NAME} from the list"]
            assert (result.returncode, result.stdout.splitlines()) == (0, said)
            assert store.read() == []
            assert raw_redis.keys("*pipeline*") == []


@pytest.fixture
def file(topics: Topics, tmp_path: Path) -> Path:
    """Give the file of a pipeline of a topic with two orders; it needs no jar that PySpark has not."""
    topics.produce(topics.make("orders", "batch").partitions[0], b"1", b"2")
    result = tmp_path / "sales.toml"
    source = 'topics = ["orders"]\nvalue.format = "string"'
    target = 'type = "parquet"\npath = "tables/sales"'
    sql = 'sql = "SELECT value, offset FROM orders"'
    trigger = 'interval = "1s"'
    result.write_text(
        f'name = "{NAME}"\n[sources.orders]\n{source}\n[transform]\n{sql}\n[target]\n{target}\n[trigger]\n{trigger}\n'
    )
    return result


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_pipeline_runs_in_the_background_until_it_is_stopped(
    topics: Topics, store: PipelineStore, file: Path, tmp_path: Path
) -> None:
    logs = ("--log-dir", str(tmp_path / "logs"), "--master", "local[2]")
    said = started(topics, str(file), *logs)
    [row] = store.read()
    log = tmp_path / "logs/sales.log"
    try:
        assert (said.returncode, said.stdout) == (0, f"started {NAME}: process {row.process.id}, log {log}\n")
        assert alive(row.process.id)
        assert (row.log, row.file) == (str(log), str(file))
        wait_until(lambda: store.read()[0].records == 2, "both are read", 120)
        [result] = json.loads(done(pipeline(topics, "status", "--json", str(file))))
        assert (result["state"], result["lag_records"], result["records"]) == ("running", 0, 2)
        # It runs once, by whichever command it is started.
        again = f"Error: pipeline {NAME} runs already: process {row.process.id} on {row.process.host}\n"
        assert failed(started(topics, str(file), *logs)) == again
        assert failed(pipeline(topics, "run", str(file))) == again
    finally:
        stopped = pipeline(topics, "stop", NAME)
    assert (stopped.returncode, stopped.stdout, alive(row.process.id)) == (0, f"stopped {NAME}\n", False)
    rows = pq.read_table(tmp_path / "lake/tables/sales").to_pylist()
    assert sorted(rows, key=lambda item: item["offset"]) == [
        {"value": "1", "offset": 0},
        {"value": "2", "offset": 1},
    ]
    reset = partial(
        korvet_process, "lake", "pipeline", "reset", *where(topics), NAME, seconds_max=SPARK_SECONDS_MAX
    )
    flags = ("--from", "offsets", "--offsets", "orders:0=1")
    assert failed(reset(*flags)).endswith("files of another checkpoint: give another path, or remove it\n")
    file.write_text(file.read_text().replace("tables/sales", "tables/again"))
    for more in (["--dry-run"], []):
        head, row_of_0, *notes = reset(*flags, *more).stdout.splitlines()
        assert head.split() == ["Source", "Topic", "Partition", "Before", "After", "Skipped", "Again"]
        assert row_of_0.split() == ["orders", "orders", "0", "2", "1", "0", "1"]
        assert notes[0] == "Rows of records that are read again are appended once more."
        assert notes[1:] == ["Dry run: nothing is changed."] * len(more)
        [result] = json.loads(done(pipeline(topics, "status", "--json", NAME)))
        assert (result["lag_records"], result["state"]) == (0 if more else 1, "stopped")
    # One that reads all there is and ends is started, too; a flag with `=` is understood as well.
    file.write_text(file.read_text().replace('interval = "1s"', "available_now = true"))
    ended = started(topics, str(file), f"--log-dir={tmp_path / 'logs'}", "--json")
    answer = json.loads(ended.stdout)
    assert answer["name"] == NAME
    wait_until(lambda: state(store) == "completed", "it has read all", 120)
    # Spark ends after that.
    wait_until(lambda: not alive(answer["process"]), "its process has ended", 120)
    assert pq.read_table(tmp_path / "lake/tables/again").to_pylist() == [{"value": "2", "offset": 1}]


@pytest.mark.parametrize(
    ("range_flags", "name"),
    [((), NAME), (("--from", "earliest", "--to", "latest"), rf"{NAME}\.range-[0-9a-f]{{8}}")],
)
def test_a_pipeline_or_a_range_of_it_that_has_not_started_in_time_goes_on(
    topics: Topics, file: Path, tmp_path: Path, range_flags: tuple[str, ...], name: str
) -> None:
    if range_flags:
        file.write_text(file.read_text().replace('type = "parquet"', 'type = "delta"'))
    flags = ("--log-dir", str(tmp_path), "--wait", "0.1")
    message = failed(started(topics, str(file), *flags, *range_flags))
    said = re.search(rf"Error: pipeline {name} has not started within 0.1 s: process (\d+) goes on ", message)
    assert said, message
    os.kill(int(said[1]), signal.SIGKILL)


@pytest.mark.spark
def test_a_pipeline_that_does_not_start_says_why(topics: Topics, file: Path, tmp_path: Path) -> None:
    logs = ("--log-dir", str(tmp_path))
    file.write_text(file.read_text().replace("SELECT value", "SELECT size"))
    message = failed(started(topics, str(file), *logs))
    last = message.splitlines()[-1]
    assert last.startswith(f"Error: pipeline {NAME} did not start: transform: ")
    assert "size" in last
    assert last.endswith(f"(log: {tmp_path / 'sales.log'})")
    file.write_text("name = 1")
    assert failed(started(topics, str(file), *logs)).startswith(f"Error: {file}: ")
