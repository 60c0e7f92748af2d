"""korvet/spark/session.py: a Java process that is killed under a job is one log line, and one error for each job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.commands import SPARK_SECONDS_MAX
from tests.support.archives import Topics, orders, where
from tests.support.processes import children, die_with_tests, kill

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, signal, sys, threading

from korvet import logs
from korvet.config.settings import Settings
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from korvet.lake.tasks import ArchiveTask
from korvet.spark.jobs import archive_runner, merge_runner
from korvet.spark.session import JavaProcess, SparkError, is_stopped, session

logs.configure(Settings(), "archiver")
lake = sys.argv[1]
os.makedirs(os.path.join(lake, "orders", "AAAAAAAAAAAAAAAAAAAAAA"))
java = JavaProcess()
watching = threading.Thread(target=java.watch, daemon=True)
watching.start()
with session("test", master="local[1,4]", launch=java.launch) as spark:
    source = LakeSource(redis_url="redis://127.0.0.1:1", lake=Lake(lake))
    with source.opened() as stores:
        partition = stores.logs.partition("orders", 0, "AAAAAAAAAAAAAAAAAAAAAA", 10, "batch")
    task = ArchiveTask(partition=partition, first=0, end=1, bytes=1, last=True, log_append_time=False)
    run = archive_runner(spark, source)
    print("error", [each.error is not None for each in run([task])])
    print("stopped", is_stopped(spark))
    os.kill(java._process.pid, signal.SIGKILL)
    watching.join()
    for job in (run, merge_runner(spark, source.lake)):
        try:
            list(job([task]))
        except SparkError as error:
            print("the job failed" in str(error))
    print("stopped", is_stopped(spark))
os._exit(0)
"""


def test_a_job_whose_java_is_killed_fails_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-u", "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SPARK_SECONDS_MAX,
        check=False,
    )
    assert done.stdout.splitlines() == ["error [True]", "stopped False", "True", "True", "stopped True"], done
    [line] = [each for each in done.stderr.splitlines() if "Java ended" in each]
    assert "archiver Java ended status=-9" in line
    assert "Traceback" not in done.stderr


def test_a_command_whose_java_is_killed_ends_with_one_line(topics: Topics) -> None:
    topic = orders(topics)
    command = [sys.executable, "-m", "korvet", "lake", "archive", *where(topics), "--master", "local[1,4]"]
    with subprocess.Popen(
        [*command, "--interval", "0.1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=die_with_tests,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        [java] = [
            each for each in children(process.pid) if "java" in Path(f"/proc/{each}/cmdline").read_text()
        ]
        kill(java)
        # Whether a job is running then is chance; the next one fails in any case.
        topics.produce(topic.partitions[0], b"4")
        _, output = process.communicate(timeout=SPARK_SECONDS_MAX)
    assert process.returncode == 1
    [line] = [each for each in output.splitlines() if not each.startswith("starting Spark: ")]
    assert line.startswith("Error: the job failed: ")
