"""Writes what Spark starts sooner with, beside Spark: `python -m korvet.spark.class_archive`.

An archive of Spark's classes: a Java that maps it (class data sharing) neither reads these classes from jars nor
verifies them, which is nearly half of what the start of Spark takes. It is for one build of Java and these very jars,
and has some 150 MB. And PySpark's modules, compiled: Spark lets its Python workers import them from an archive of
sources, which Python compiles in each process, half a second of CPU; a pipeline starts eight.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import zipfile
from pathlib import Path

import pyspark
from pyspark import SparkContext

from korvet.spark.session import CLASS_ARCHIVE, SparkError, java_options, session

MODULES = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
"""What Spark puts first in PYTHONPATH of its workers."""

_UNCHECKED = 1
"""Flag of a compiled module that Python does not compare with its source."""


def write(path: Path) -> None:
    """Write what a session uses that archives and queries. Raises SparkError and OSError."""
    begun = path.with_suffix(f".{os.getpid()}")
    # Java names each class that it leaves out.
    options = java_options(f"-XX:ArchiveClassesAtExit={begun}", "-Xlog:disable", "-Xlog:all=error:stderr")
    try:
        with session(
            "korvet", master="local[2]", configs={"spark.driver.extraJavaOptions": options}
        ) as spark:
            spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
            spark.range(100).selectExpr("id % 7 AS key").groupBy("key").count().orderBy("key").toPandas()
        java = SparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - PySpark does not tell
        java.stdin.close()
        if java.wait() or not begun.exists():
            raise SparkError("Java has written no archive of classes")
        # Java maps a file as it finds it: one that is not whole would crash it.
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


def compile_modules(path: Path) -> None:
    """Put compiled modules beside the sources in an archive; another Python ignores them. Raises OSError."""
    begun = path.with_suffix(f".{os.getpid()}")
    try:
        with (
            zipfile.ZipFile(path) as sources,
            zipfile.ZipFile(begun, "w", zipfile.ZIP_DEFLATED) as written,
        ):
            for source in sources.infolist():
                if source.filename.endswith(".pyc"):
                    continue
                data = sources.read(source)
                written.writestr(source, data)
                if source.filename.endswith(".py"):
                    code = compile(data, f"{path}/{source.filename}", "exec", dont_inherit=True)
                    head = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little")
                    compiled = zipfile.ZipInfo(f"{source.filename}c", source.date_time)
                    compiled.compress_type = zipfile.ZIP_DEFLATED
                    written.writestr(compiled, head + importlib.util.source_hash(data) + marshal.dumps(code))
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


def main() -> int:
    """Write both; returns the exit code."""
    try:
        # A Spark that was not installed by pip may have none.
        if MODULES.exists():
            compile_modules(MODULES)
        write(CLASS_ARCHIVE)
    except (SparkError, OSError) as error:
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
