"""korvet/spark/session.py: where Spark does not start, one line says why; where it does, it keeps to itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from korvet.spark.session import SparkError, check_java, reason_of, session
from tests.cli.commands import SPARK_SECONDS_MAX


def java(tmp_path: Path, script: str) -> str:
    """Return a JAVA_HOME whose java is a shell script."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "java is Java 11$"),
        ("echo 'java version \"1.8.0_392\"' >&2", "java is Java 8$"),
        ("exit 1", "java is no Java that prints its version$"),
    ],
)
def test_an_unusable_java_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, script))
    with pytest.raises(SparkError, match=f"Spark needs Java 17 or later.*{said}"), session("test"):
        pass


def test_no_java_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match=f"there is none in JAVA_HOME={tmp_path}"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkError, match="there is none in PATH"):
        check_java()


@pytest.mark.parametrize("version", ['openjdk version "17.0.9"', 'openjdk version "21" 2023-09-19'])
def test_a_java_that_is_new_enough_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, f"echo '{version}' >&2"))
    check_java()


def test_spark_listens_on_this_machine_only_and_shows_no_pages(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert context.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.uiWebUrl is None
    assert context.getConf().get("spark.python.daemon.module") == "korvet.spark.daemon"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_commit_of_delta_lake_costs_one_task_unless_a_user_says_how_many(spark: SparkSession) -> None:
    name = "spark.databricks.delta.snapshotPartitions"
    assert spark.conf.get(name) == "1"
    program = (
        "from korvet.spark.session import session\n"
        f'with session("test", master="local[1]", configs={{"{name}": "7"}}) as spark:\n'
        f'    print(spark.conf.get("{name}"))'
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SPARK_SECONDS_MAX
    )
    assert result.stdout == "7\n"


def test_a_failure_has_its_reason_and_no_stack() -> None:
    assert (
        reason_of(Exception("An error occurred while calling o1.\n: org.apache.X: why\n\tat Y"))
        == "org.apache.X: why"
    )
    assert (
        reason_of(Exception("It failed:\nTraceback (most recent\n  File 1\nOSError: why")) == "OSError: why"
    )
    stack = "Traceback (most recent call last):\n  File 1\n    f(x)\n    ^^^^\nOSError: why\n"
    of_source = f"[SOME_ERROR] It failed: {stack} SQLSTATE: 1"
    assert reason_of(Exception(of_source)) == "OSError: why"
    assert reason_of(Exception(of_source.replace("OSError", "korvet.errors.LakeError"))) == "why"
    of_task = f"Job aborted: org.X: {of_source}\n\n\tat org.Y\nDriver stacktrace:"
    assert reason_of(Exception(of_task)) == "OSError: why"
    missing = "Error from python worker:\n  python3: No module named 'korvet'\norg.apache.X: why"
    assert reason_of(Exception(missing)).startswith("a worker's Python has no korvet: PYSPARK_PYTHON")
    unknown = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: korvet. Make sure the name is correct"
    assert reason_of(Exception(unknown)) == reason_of(Exception(missing))
    assert "PYSPARK_PYTHON" not in reason_of(Exception(unknown.replace("korvet", "delta")))
    assert reason_of(
        Exception("An error occurred while calling o1.f.\n: MetaException(message:why)\n\tat org.X")
    ) == ("MetaException(message:why)")
    assert reason_of(Exception("why")) == "why"
    assert reason_of(KeyError()) == "KeyError"


def test_a_python_without_the_lake_imports_the_format_and_says_what_it_needs() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
from pyspark_korvet import DefaultSource
try:
    DefaultSource({})
except ImportError as error:
    print(DefaultSource.name(), error, sep=": ")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("korvet: pyarrow is not installed: run `")
