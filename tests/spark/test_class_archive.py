"""korvet/spark/class_archive.py: what it writes is used by the Java and the Python workers of a later session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from korvet.spark.class_archive import MODULES, compile_modules
from tests.cli.commands import SPARK_SECONDS_MAX

ROOT = Path(__file__).parents[2]
# Sessions of their own: a program has one Java, and that of the tests runs already.
PROGRAM = """
import sys
from pathlib import Path
from pyspark import SparkContext
from korvet.spark import class_archive, session

archive = session.CLASS_ARCHIVE = class_archive.CLASS_ARCHIVE = Path(sys.argv[1])
class_archive.MODULES = archive.with_name("none.zip")
if sys.argv[2] == "write":
    sys.exit(class_archive.main())
with session.session("test", master="local[2]", only_schedules=True) as spark:
    print(spark.sparkContext.parallelize([1, 2], 2).map(str).collect())
    print(str(archive) in Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text())
    print(spark._jvm.System.getProperty("log4j2.configurationFile").endswith("log4j2.properties"))
"""


def program(archive: Path, what: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive), what],
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=SPARK_SECONDS_MAX,
    )


@pytest.mark.spark
def test_a_session_maps_the_archive_of_classes_and_starts_without_one(tmp_path: Path) -> None:
    archive = tmp_path / "a place" / "korvet.jsa"
    archive.parent.mkdir()
    written = program(archive, "write")
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    assert [*archive.parent.iterdir()] == [archive]
    mapped = program(archive, "use")
    assert (mapped.stdout, mapped.stderr) == ("['1', '2']\nTrue\nTrue\n", "")
    # As of another Java: Java looks at the head of the file first.
    other = archive.with_name("other.jsa")
    other.write_text("of another Java")
    ignored = program(other, "use")
    assert (ignored.stdout, ignored.stderr) == ("['1', '2']\nFalse\nTrue\n", "")


def test_without_java_there_is_no_archive_and_one_line_says_why(tmp_path: Path) -> None:
    archive = tmp_path / "korvet.jsa"
    result = program(archive, "write", JAVA_HOME=str(tmp_path))
    assert (result.returncode, [*tmp_path.iterdir()]) == (1, [])
    assert result.stderr.startswith("no archive of Spark's classes: Spark needs Java 17 or later")
    assert result.stderr.count("\n") == 1


def test_workers_import_modules_that_are_compiled_already(tmp_path: Path) -> None:
    archive = tmp_path / "pyspark.zip"
    shutil.copy(MODULES, archive)
    compile_modules(archive)
    # The same once more, as after an update of Korvet.
    compile_modules(archive)
    assert [*tmp_path.iterdir()] == [archive]
    program = "import pyspark.worker, pyspark.errors; print(pyspark.worker.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": f"{archive}{os.pathsep}{next(MODULES.parent.glob('py4j-*.zip'))}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == (f"{archive}/pyspark/worker.pyc\n", "")
