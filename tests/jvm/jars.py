"""Kafka's jars for the tests on a JVM: `python -m tests.jvm.jars` fetches them, or says what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path

from loadtest.bench.toolchain import copy_jars, need_java
from loadtest.harness import NotAvailableError

HERE = Path(__file__).parent
JARS = HERE / ".cache" / "jars"
LATER_CLIENT = HERE / ".cache" / "clients"
"""The jars of clients/pom.xml."""


def prepare() -> None:
    """Fetch the jars unless that was done; NotAvailableError without Java or Maven, or where Maven fails."""
    need_java()
    copy_jars(HERE / "pom.xml", JARS)
    copy_jars(HERE / "clients" / "pom.xml", LATER_CLIENT)


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
