"""The Java process beside one that uses Spark: what it prints, that it ended, and its end.

Knows how PySpark starts it, and that it ends when its standard input does; not what it is asked. A broker's child has
what it prints in log lines, by JavaProcess; a program at a terminal has it as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from pathlib import Path

import py4j
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from korvet import logs

_END_SECONDS_MAX = 3.0
"""How long it may take to clear its files away."""

_NO_NEWS = "WARNING: Using incubator modules"
"""Java prints it whenever Spark starts, for Spark asks for one."""

_STDERR = 2

_PY4J = str(Path(py4j.__file__).parent)
"""Where Py4J is, some of whose lines are the root logger's: they go by no name."""

_log = logs.Log(__name__)


class JavaProcess:
    """The one that a session of Spark gets; what it and Spark's Python workers print becomes log lines."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._launched = threading.Event()
        self._ending = False

    def launch(self, conf: SparkConf) -> None:
        """Start it for the next session of this process. Raises PySparkException where it does not come up."""
        read_fd, write_fd = os.pipe()
        threading.Thread(target=self._tell, args=(read_fd,), daemon=True).start()
        try:
            gateway = launch_gateway(conf, {"stdout": write_fd, "stderr": write_fd})  # type: ignore[no-untyped-call]  # untyped there
        finally:
            os.close(write_fd)
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the way to give PySpark one
        # A Java that is gone is told of once: not also with a stack by each of the connections to it that break. The
        # class is PySpark's own and takes no other; mypy sees a method being replaced.
        AccumulatorTCPServer.handle_error = _forget_it  # type: ignore[assignment,method-assign]
        logging.getLogger().addFilter(lambda record: _PY4J not in record.pathname)
        self._process = gateway.proc
        self._launched.set()

    def watch(self) -> None:
        """Wait for its end, and tell of one that came before it was to."""
        self._launched.wait()
        assert self._process is not None  # noqa: S101 - it was launched
        status = self._process.wait()
        if not self._ending:
            _log.error("Java ended", status=status)

    def end(self) -> None:
        """End it; it gets seconds to clear its files away. One that is only starting ends once it has."""
        self._ending = True
        process = self._process
        if process is None:
            return
        assert process.stdin is not None  # noqa: S101 - PySpark gives it one, for this
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()

    def _tell(self, read_fd: int) -> None:
        with os.fdopen(read_fd, errors="backslashreplace") as lines:
            for line in lines:
                text = line.strip()
                # What it was doing when it was to end is nobody's concern any more.
                if text and not self._ending and not text.startswith(_NO_NEWS):
                    _log.warning("Spark says", line=text)


def launch_quietly(conf: SparkConf) -> None:
    """Start Java for the next session of a program, whose stderr gets its lines but the one that is no news.

    Does nothing where the program has a Java already. Raises PySparkException where it does not come up.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark does not tell
        return
    read_fd, write_fd = os.pipe()
    passing = threading.Thread(target=_pass_on, args=(read_fd,), daemon=True)
    passing.start()
    try:
        gateway = launch_gateway(conf, {"stderr": write_fd})  # type: ignore[no-untyped-call]  # untyped there
    except PySparkException:
        os.close(write_fd)
        # Java has ended; its last words say why.
        passing.join(_END_SECONDS_MAX)
        raise
    os.close(write_fd)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the way to give PySpark one


def _pass_on(read_fd: int) -> None:
    with os.fdopen(read_fd, "rb") as lines:
        for line in lines:
            if not line.startswith(_NO_NEWS.encode()):
                os.write(_STDERR, line)


def is_stopped(session: SparkSession) -> bool:
    """Return whether nothing can run on a session any more: Java is gone, or its cluster."""
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - PySpark does not tell
    except (Py4JError, AttributeError, OSError):
        return True


def _forget_it(*_of: object) -> None:
    pass
