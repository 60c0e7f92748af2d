"""Spark as Korvet's jobs use it: a session, its Java process, and one clear error if it does not start.

By default all of it runs in this process and its children, and listens on 127.0.0.1 only. Starting takes seconds: no
request of a client ever waits for it. Java ends when its standard input does. What it prints becomes log lines in a
broker's child process (`JavaProcess`); a program at a terminal passes it on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import py4j
import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from korvet import java as machine_java
from korvet import logs
from korvet.errors import LakeError
from korvet.spark import is_submitted

_END_SECONDS_MAX = 3.0
"""How long Java may take to delete its files."""

_NOISE = "WARNING: Using incubator modules"
"""Java prints it whenever Spark starts, for Spark uses one."""

_STDERR = 2

_PY4J = str(Path(py4j.__file__).parent)
"""Where Py4J is: some of its log lines are the root logger's, and have no name to filter by."""

_log = logs.Log(__name__)


class JavaProcess:
    """The Java process of a session; what it and Spark's Python workers print becomes log lines."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._launched = threading.Event()
        self._ending = False

    def launch(self, conf: SparkConf) -> None:
        """Start Java for the next session of this process. Raises PySparkException if it does not start."""
        read_fd, write_fd = os.pipe()
        threading.Thread(target=self._log_lines, args=(read_fd,), daemon=True).start()
        self._process = _started_java(conf, write_fd, "stdout", "stderr")
        self._launched.set()

    def watch(self) -> None:
        """Wait for the end of Java, and log one that was not requested."""
        self._launched.wait()
        assert self._process is not None  # noqa: S101 - it was launched
        status = self._process.wait()
        if not self._ending:
            _log.error("Java ended", status=status)

    def end(self) -> None:
        """End Java; it gets seconds to delete its files. One that is still starting ends once it has started."""
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

    def _log_lines(self, read_fd: int) -> None:
        with os.fdopen(read_fd, errors="backslashreplace") as lines:
            for line in lines:
                text = line.strip()
                # What Java was doing when it was ended does not matter any more.
                if text and not self._ending and not text.startswith(_NOISE):
                    _log.warning("output of Spark", line=text)


def launch_quietly(conf: SparkConf) -> None:
    """Start Java for the next session of a program, whose stderr gets its lines except one that is noise.

    Does nothing if the program has a Java already. Raises PySparkException if it does not start.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark does not tell
        return
    read_fd, write_fd = os.pipe()
    passing = threading.Thread(target=_pass_on, args=(read_fd,), daemon=True)
    passing.start()
    try:
        _started_java(conf, write_fd, "stderr")
    except PySparkException:
        # Java has ended; its last words say why.
        passing.join(_END_SECONDS_MAX)
        raise


def _started_java(conf: SparkConf, write_fd: int, *streams: str) -> subprocess.Popen[bytes]:
    """Start Java with these streams in a pipe, whose end is closed here then, and give it to PySpark."""
    try:
        gateway = launch_gateway(conf, dict.fromkeys(streams, write_fd))  # type: ignore[no-untyped-call]  # untyped there
    finally:
        os.close(write_fd)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the way to give PySpark one
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _pass_on(read_fd: int) -> None:
    with os.fdopen(read_fd, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE.encode()):
                os.write(_STDERR, line)


def is_stopped(session: SparkSession) -> bool:
    """Return whether a session cannot run jobs any more: Java is gone, or its cluster."""
    try:
        return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - PySpark does not tell
    except (Py4JError, AttributeError, OSError):
        return True


def _report_once() -> None:
    """Let the end of Java be one error, not also a stack of each connection to it that breaks."""
    # Py4J logs what it does, and with a stack what it raises anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    # PySpark takes no other class than its own; mypy sees a method being replaced.
    AccumulatorTCPServer.handle_error = _ignore  # type: ignore[assignment,method-assign]  # as said above


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return _PY4J not in record.pathname


def _ignore(*_of: object) -> None:
    pass


MASTER_DEFAULT = "local[*,4]"
"""All cores of this machine; a task is tried four times, as on a cluster."""

_MISSING_MODULE = re.compile(
    r"(?:No module named '?|Failed to find the data source: (?=korvet\b))(\w+(?:\.\w+)*)"
)
_OWN_ERROR = re.compile(r"^(korvet(\.\w+)+|ValueError): ")
_DECORATION = re.compile(r"^\[USER_RAISED_EXCEPTION\] | SQLSTATE: \w+$")
_SECRET = re.compile(r"secret|password|token|access.?key", re.IGNORECASE)
"""In the names of settings whose values Spark shows to nobody, by `spark.redaction.regex`."""
LOGGING = Path(__file__).with_name("log4j2.properties")

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting by which sources in Python get filters."""

_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Quiet about Python workers whose rows were not needed.
    "spark.python.daemon.module": "korvet.spark.daemon",
    # Where korvet.spark.names has views of topics.
    "spark.sql.globalTempDatabase": "korvet",
    # Sources in Python that take filters are an error without; of Korvet's those with the option pushFilters do.
    PUSHDOWN: "true",
    # Times in queries are as those in tables.
    "spark.sql.session.timeZone": "UTC",
}
_DEFAULTS = {
    # Delta Lake computes the state of a table in as many tasks for each commit, 50 by default.
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Unless a user has set them, by `configs`, --conf of spark-submit or spark-defaults.conf."""
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


CLASS_ARCHIVE = Path(pyspark.__file__).parent / "korvet.jsa"
"""Spark's classes as Java needs them, which class_archive has written; Java ignores those of another Java or Spark."""


def java_options(*more: str) -> str:
    """Return the options of Java's command line that each session has, and others."""
    return shlex.join([f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", *more])


def _start_options(*, only_schedules: bool) -> Iterator[str]:
    """Yield what makes Java start sooner."""
    if CLASS_ARCHIVE.exists():
        # Without a word about one that does not fit: it would do without.
        yield from (f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds*=off", "-Xlog:class+path*=off")
    if only_schedules:
        # What runs once or never again is compiled in vain, and half of what Java does at first is compiling.
        yield "-XX:TieredStopAtLevel=1"


JOB_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""What a failed job raises: Spark's errors, and those of the connection to Java if that is gone."""


class SparkError(LakeError):
    """Spark does not start, or a job on it failed; the message says why, in one line."""


class SparkStoppedError(SparkError):
    """No job can run on the session any more."""


@contextlib.contextmanager
def session(
    name: str,
    *,
    master: str | None = None,
    configs: Mapping[str, str] | None = None,
    java: JavaProcess | None = None,
    only_schedules: bool = False,
) -> Iterator[SparkSession]:
    """Give a session of the application `name`, and stop it after the block; raises SparkError.

    `master` is as Spark takes it (local[2], spark://, k8s://, yarn), by default MASTER_DEFAULT, or what spark-submit
    was given. `configs` are more of Spark's settings, and win. `java` is started for it, else Java as programs have it.
    `only_schedules`: Java sees no records, Python's tasks do all of the work.
    """
    submitted = is_submitted()
    if master is None and not submitted:
        master = MASTER_DEFAULT
    wanted = dict(_ALWAYS)
    if master is not None and master.startswith("local"):
        # Spark creates the directory for tables that a query gives no location; one that exists need not be created.
        wanted |= _LOCAL | {"spark.sql.warehouse.dir": Path(tempfile.gettempdir()).as_uri()}
        # Workers of this interpreter, which has the packages; and no lookup of the host's name.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not submitted:
        check_java()
        start_options = _start_options(only_schedules=only_schedules)
        wanted["spark.driver.extraJavaOptions"] = java_options(*start_options)
    _report_once()
    interrupted = signal.getsignal(signal.SIGINT)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    wanted |= dict(configs or {})
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        if not submitted:
            at_start = {"spark.app.name": name, "spark.master": master or MASTER_DEFAULT} | {
                # Any user of the machine sees the command line of Java, which needs none of them to start.
                key: value
                for key, value in wanted.items()
                if not _SECRET.search(key)
            }
            launch = launch_quietly if java is None else java.launch
            launch(SparkConf(loadDefaults=False).setAll(list(at_start.items())))
        started = builder.getOrCreate()
        _set_defaults(started)
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkError(f"Spark does not start: {reason_of(error)}") from error
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler calls Java to cancel jobs, in the middle of any other call.
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield started
    finally:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            # If a job is still running, each of its parts would log its end.
            started.sparkContext.setLogLevel("OFF")
            started.stop()


def _set_defaults(started: SparkSession) -> None:
    given = started.sparkContext.getConf()
    for key, value in _DEFAULTS.items():
        if not given.contains(key):
            started.conf.set(key, value)


def check_java() -> None:
    """Raise SparkError if there is no Java that Spark runs on."""
    if problem := machine_java.problem():
        raise SparkError(problem)


def reason_of(error: Exception) -> str:
    """Return in one line what an exception of Spark says, without the stacks of Java and of Python workers."""
    missing = _MISSING_MODULE.search(str(error))
    if missing is not None:
        return f"a worker's Python has no {missing[1]}: PYSPARK_PYTHON must name one with korvet[lake] on each machine"
    # Py4J adds a line of its own before that of Java, which begins with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip(": ")]
    of_python = _after_traceback(str(error).splitlines())
    if of_python is not None:
        return of_python
    of_java = [line for line in lines if line.startswith(("java.", "org.", "scala.", "io."))]
    return (of_java or lines or [type(error).__name__])[0]


def root_reason(error: Exception) -> str:
    """Return in one line what the first cause of an exception of Spark says: of a failed job that is what matters."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if cause is None:
        return reason_of(error)
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    said = cause.getMessage() or cause.toString()
    return _DECORATION.sub("", reason_of(Exception(said)))


def _after_traceback(lines: Sequence[str]) -> str | None:
    """Return the line after the last of Python's stacks, which Spark may put after words of its own."""
    stacks = [at for at, line in enumerate(lines) if "Traceback (most recent" in line]
    if not stacks:
        return None
    rest = (line for line in lines[stacks[-1] + 1 :] if not line[:1].isspace() and line.strip("^~ "))
    message = next(rest, None)
    return None if message is None else _OWN_ERROR.sub("", message)
