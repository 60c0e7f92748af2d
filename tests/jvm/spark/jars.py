"""Jars for Spark: `python -m tests.jvm.spark.jars` fetches its Kafka source, Delta Lake, S3 and YARN, or says why not.

With an argument, `iceberg`, it fetches those of that directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
from pathlib import Path

from loadtest.bench.toolchain import copy_jars, need_java
from loadtest.harness import NotAvailableError

HERE = Path(__file__).parent
S3 = HERE / "s3"
"""What Spark needs for S3 besides."""
YARN = HERE / "hadoop"
"""YARN's daemons."""

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings of a session with Delta Lake."""


def prepare(directory: Path = HERE) -> list[Path]:
    """Fetch the jars of a directory's pom.xml unless that was done, and return them.

    Raises NotAvailableError without Java or Maven, where Maven fails, and where a jar is not the one in jars.sha256.
    """
    need_java()
    jars = directory / ".cache" / "jars"
    jars.parent.mkdir(exist_ok=True)
    with (jars.parent / "lock").open("w") as lock:
        # Tests in several processes ask at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy_jars(directory / "pom.xml", jars)
    lines = (directory / "jars.sha256").read_text().splitlines()
    named = {name: digest for digest, name in map(str.split, lines)}
    results = sorted(jars.glob("*.jar"))
    for result in results:
        digest = hashlib.sha256(result.read_bytes()).hexdigest()
        if named.pop(result.name, None) != digest:
            raise NotAvailableError(f"{result} is not the jar in jars.sha256: it has the SHA-256 {digest}")
    if named:
        raise NotAvailableError(f"{jars} lacks {', '.join(named)}")
    return results


def main() -> int:
    """Fetch the jars; returns the exit code."""
    try:
        for item in [HERE.parent / name for name in sys.argv[1:]] or [HERE, S3, YARN]:
            prepare(item)
    except NotAvailableError as missing:
        print(missing, file=sys.stderr)  # noqa: T201 - a command
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
