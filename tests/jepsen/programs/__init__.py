"""Clients of other libraries, a program each: `prepare` compiles them, `command` starts one.

A producer takes its bootstrap servers, topic, number of partitions, name, how many values to send (0: until its stdin
ends), milliseconds to wait after every ten values, and `single` for a batch per value, else `many`. It sends the value
NAME/0, NAME/1, ... (without a name 0, 1, ..., in Python) in order to one partition after another, and writes a line for
what it does and learns:
    sent PARTITION NUMBER
    acknowledged PARTITION NUMBER OFFSET
    failed TEXT            the last one: it ends with what it had open

Transact takes its bootstrap servers, topic, number of partitions, transactional id and name, and to copy a topic that
one and its group. It writes a line for what it does and learns:
    put TRANSACTION PARTITION NUMBER [PARTITION OFFSET VALUE]    with what it is a copy of
    committing TRANSACTION
    committed TRANSACTION
    aborted TRANSACTION
    failed TEXT
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from tests.jvm import jars

HERE = Path(__file__).parent
_CACHE = HERE / ".cache"
CLASSES = _CACHE / "classes"
_PYTHON = ("librdkafka", "kafka-python", "aiokafka")
_GO = ("sarama", "franz-go")
PRODUCERS = (*_PYTHON, "java", *_GO)


def prepare(names: Collection[str]) -> None:
    """Compile what these clients need; NotAvailableError or an error of the compiler if that fails."""
    _CACHE.mkdir(exist_ok=True)
    if "java" in names:
        jars.prepare()
        sources = map(str, [*sorted(HERE.glob("*.java")), jars.HERE / "java" / "Share.java"])
        _run("javac", "-Xlint:all,-path", "-cp", f"{jars.JARS}/*", "-d", str(CLASSES), *sources)
    if not set(_GO).isdisjoint(names):
        _run("go", "build", "-o", str(_CACHE / "produce"), ".")


def producer(name: str) -> list[str]:
    """Return the command of a producer, but for its arguments."""
    if name in _PYTHON:
        return [sys.executable, "-m", "tests.jepsen.programs.produce", name]
    if name in _GO:
        return [str(_CACHE / "produce"), name]
    return java("Produce")


def java(program: str) -> list[str]:
    """Return the command of a program in Java, with few threads of its own: it shares the machine with brokers."""
    flags = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
    return ["java", *flags, "-cp", f"{CLASSES}:{jars.JARS}/*", program]


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is not on PATH")
    subprocess.run(command, check=True, cwd=HERE, env={**os.environ, "CGO_ENABLED": "0"})
