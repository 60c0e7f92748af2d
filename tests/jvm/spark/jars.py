"""Jars for Spark, its Kafka source and Delta Lake: `python -m tests.jvm.spark.jars` fetches them, or says why not."""

from __future__ import annotations

import fcntl
import hashlib
import sys
from pathlib import Path

from loadtest.bench.processes import NotAvailableError
from loadtest.bench.toolchain import copy_jars, need_java

HERE = Path(__file__).parent
JARS = HERE / ".cache" / "jars"


def prepare() -> list[Path]:
    """Fetch the jars unless that was done, and return them.

    Raises NotAvailableError without Java or Maven, where Maven fails, and where a jar is not the one in jars.sha256.
    """
    need_java()
    JARS.parent.mkdir(exist_ok=True)
    with (JARS.parent / "lock").open("w") as lock:
        # Tests in several processes ask at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy_jars(HERE / "pom.xml", JARS)
    lines = (HERE / "jars.sha256").read_text().splitlines()
    named = {name: digest for digest, name in map(str.split, lines)}
    found = sorted(JARS.glob("*.jar"))
    for each in found:
        digest = hashlib.sha256(each.read_bytes()).hexdigest()
        if named.pop(each.name, None) != digest:
            raise NotAvailableError(f"{each} is not the jar in jars.sha256: it has the SHA-256 {digest}")
    if named:
        raise NotAvailableError(f"{JARS} lacks {', '.join(named)}")
    return found


def main() -> int:
    """Fetch the jars; returns the exit code."""
    try:
        prepare()
    except NotAvailableError as missing:
        print(missing, file=sys.stderr)  # noqa: T201 - a command
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
