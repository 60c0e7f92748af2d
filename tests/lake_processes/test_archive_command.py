"""`korvet lake archive` with a Spark of its own: indefinitely, ended in the middle, and without its Java."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from korvet.lake.source import SourceTopic
from tests.cli.commands import SPARK_SECONDS_MAX
from tests.support import batches
from tests.support.archives import Topics, orders, where
from tests.support.processes import alive, children, descendants, dying_with_tests, kill, wait_until

ROOT = Path(__file__).parents[2]
MASTER = ("--master", "local[2,4]")

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(topics: Topics) -> SourceTopic:
    return orders(topics)


def test_archive_with_an_interval_takes_new_records_and_ends_by_a_signal(
    topics: Topics, topic: SourceTopic
) -> None:
    command = [sys.executable, "-m", "korvet", "lake", "archive", *where(topics), *MASTER]
    with subprocess.Popen(
        dying_with_tests([*command, "--interval", "0.2", "--json"]), stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["records"] == 3
        topics.produce(topic.partitions[1], b"4", b"5")
        assert json.loads(process.stdout.readline())["records"] == 2
        topics.check(topic)
        started = descendants(process.pid)
        assert started
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        wait_until(lambda: not any(map(alive, started)), "Spark's processes are gone")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_end_in_the_middle_is_no_success_and_shows_no_stack(
    topics: Topics, topic: SourceTopic, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "korvet", "lake", "archive", *where(topics), *MASTER]

    def files() -> set[Path]:
        return set((Path(topics.lake) / topic.name / topic.id).glob("partition=1/*"))

    def ended() -> tuple[int, str]:
        """Archive what is produced now, and send the signal while a file is being written."""
        for _ in range(20):
            topics.produce(topic.partitions[1], *(bytes(5000) for at in range(1000)), codec=batches.ZSTD)
        before = files()
        with subprocess.Popen(
            dying_with_tests(command), stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            wait_until(lambda: files() - before, "a file is being written", SPARK_SECONDS_MAX)
            process.send_signal(number)
            _, output = process.communicate(timeout=SPARK_SECONDS_MAX)
        return process.returncode, output

    returncode, output = ended()
    if returncode == 0:  # all was done before the signal came
        returncode, output = ended()
    assert returncode == code
    assert output.startswith("starting Spark: 0 s\n")
    assert "\tat " not in output
    assert "Traceback" not in output
    assert topics.archiver().round(topics.run).failures == []
    topics.check(topic)


def test_a_command_whose_java_is_killed_ends_with_one_line(topics: Topics, topic: SourceTopic) -> None:
    command = [sys.executable, "-m", "korvet", "lake", "archive", *where(topics), "--master", "local[1,4]"]
    with subprocess.Popen(
        dying_with_tests([*command, "--interval", "0.1", "--json"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        [java] = [
            child for child in children(process.pid) if "java" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        kill(java)
        # Whether a job is running then is chance; the next one fails in any case.
        topics.produce(topic.partitions[0], b"4")
        _, output = process.communicate(timeout=SPARK_SECONDS_MAX)
    assert process.returncode == 1
    [line] = [splitline for splitline in output.splitlines() if not splitline.startswith("starting Spark: ")]
    assert line.startswith("Error: the job failed: ")
