"""Spark's driver in a process of its own, which runs functions of tests and can be killed like any other.

One process for each set of jars and settings: a JVM keeps the ones with which it was started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet.spark.session import session
from tests.support import processes

SECONDS_MAX = 240.0
"""Within which each function ends: the first query of a JVM takes half a minute where the machine is busy."""

_SETTINGS = {
    # Few threads for garbage and for compiling: brokers and tests share the cores with it.
    "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    # Compiling code for so few rows takes longer than going without.
    "spark.sql.codegen.wholeStage": "false",
}

P = ParamSpec("P")
T = TypeVar("T")

# In the driver's process: its session, ended with it.
_running = contextlib.ExitStack()
_sessions: list[SparkSession] = []


class FailedInSparkError(Exception):
    """What a function ran into there, as text."""


class Driver:
    """A driver with two threads for tasks: it starts for the first function, and after a kill for the next one."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._pool: ProcessPoolExecutor | None = None

    def run(
        self, function: Callable[Concatenate[SparkSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what a function of a module returns there: it gets the session, and values that can be pickled."""
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, spawn, _start, (self._settings,))
        return self._pool.submit(_call, function, args, kwargs).result(SECONDS_MAX)

    def kill(self) -> None:
        """Kill it as a crash would; its JVM ends with it."""
        pid = self.run(_process)
        jvms = processes.children(pid)
        assert jvms
        processes.kill(pid)
        processes.wait_until(lambda: not any(map(processes.alive, jvms)), "the driver's JVM is gone")
        self.end()

    def end(self) -> None:
        """End it in an orderly way, where it runs."""
        if self._pool is not None:
            with contextlib.suppress(BrokenExecutor):
                self._pool.submit(_running.close).result(SECONDS_MAX)
            self._pool.shutdown()
            self._pool = None


@contextlib.contextmanager
def spark_driver(
    directory: Path, jars: Sequence[Path], settings: Mapping[str, str] | None = None
) -> Iterator[Driver]:
    """Give one that writes what it has to write below `directory`, with these jars; ends it at the end."""
    files = {
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
    }
    driver = Driver(_SETTINGS | files | dict(settings or {}))
    try:
        yield driver
    finally:
        driver.end()


def _start(settings: dict[str, str]) -> None:
    processes.die_with_tests()
    _sessions.append(_running.enter_context(session("tests", master="local[2]", configs=settings)))


def _call(function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
    try:
        return function(_sessions[0], *args, **kwargs)
    except (PySparkException, Py4JError) as error:
        # These hold objects of the JVM, and do not leave the process.
        raise FailedInSparkError(f"{type(error).__name__}: {error}") from None


def _process(_: SparkSession) -> int:
    return os.getpid()
