"""Writes an archive of Spark's classes beside Spark: `python -m korvet.spark.class_archive`.

A Java that maps it (class data sharing) neither reads these classes from jars nor verifies them, which is nearly half
of what the start of Spark takes. It is for one build of Java and these very jars, and has some 150 MB.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkContext

from korvet.spark.session import CLASS_ARCHIVE, SparkError, java_options, session


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


def main() -> int:
    """Write the archive; returns the exit code."""
    try:
        write(CLASS_ARCHIVE)
    except (SparkError, OSError) as error:
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
