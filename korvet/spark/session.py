"""Spark as Korvet's jobs use it: a session, and one clear error where it does not start.

Knows Java, masters and Spark's configuration; nothing of what a job does. By default all of it runs in this process and
its children, and listens on 127.0.0.1 only. Starting takes seconds: no request of a client ever waits for it.

The Java process beside one that uses Spark: what it prints, that it ended, and its end.

Knows how PySpark starts it, and that it ends when its standard input does; not what it is asked. A broker's child has
what it prints in log lines, by JavaProcess; a program at a terminal has it as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import py4j
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from korvet import java, logs
from korvet.errors import LakeError
from korvet.spark import is_submitted

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


MASTER_DEFAULT = "local[*,4]"
"""All cores of this machine; a task is tried four times, as on a cluster."""

_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)")
_OWN_ERROR = re.compile(r"^korvet\.errors\.\w+: ")
_LOGGING = Path(__file__).with_name("log4j2.properties")

_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Nobody is to read of Python workers whose rows were not needed.
    "spark.python.daemon.module": "korvet.spark.daemon",
    # Times in queries are as those in tables.
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


JOB_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""What a job raises that fails: Spark's errors, and those of the way to it where Java is gone."""


class SparkError(LakeError):
    """Spark does not start, or a job on it failed; the message says why, in one line."""


@contextlib.contextmanager
def session(
    name: str,
    *,
    master: str | None = None,
    configs: Mapping[str, str] | None = None,
    launch: Callable[[SparkConf], None] | None = None,
) -> Iterator[SparkSession]:
    """Give a session of the application `name`, and stop it after the block; raises SparkError.

    `master` is as Spark takes it (local[2], spark://, k8s://, yarn), by default MASTER_DEFAULT, or what spark-submit
    was told. `configs` are more of Spark's settings, and win. `launch` starts Java, by default as programs have it.
    """
    submitted = is_submitted()
    if master is None and not submitted:
        master = MASTER_DEFAULT
    wanted = dict(_ALWAYS)
    if master is not None and master.startswith("local"):
        # Spark makes the directory for tables that a query gives no place; one that is there is not to be made.
        wanted |= _LOCAL | {"spark.sql.warehouse.dir": Path(tempfile.gettempdir()).as_uri()}
        # Workers of this interpreter, where the packages are; and no look at what the host's name stands for.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not submitted:
        check_java()
        wanted["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    # It logs what it does, and with a stack what it raises anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    interrupted = signal.getsignal(signal.SIGINT)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    wanted |= dict(configs or {})
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        if not submitted:
            at_start = {"spark.app.name": name, "spark.master": master or MASTER_DEFAULT} | wanted
            (launch or launch_quietly)(SparkConf(loadDefaults=False).setAll(list(at_start.items())))
        started = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkError(f"Spark does not start: {reason_of(error)}") from error
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler asks Java to cancel jobs, in the middle of whatever Java is being asked.
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield started
    finally:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            # Where a job is under way still, each of its parts would tell of its end.
            started.sparkContext.setLogLevel("OFF")
            started.stop()


def check_java() -> None:
    """Raise SparkError where there is no Java that Spark runs on."""
    if problem := java.problem():
        raise SparkError(problem)


def reason_of(error: Exception) -> str:
    """Return in one line what an exception of Spark says, without the stacks of Java and of Python workers."""
    missing = _MISSING_MODULE.search(str(error))
    if missing is not None:
        return f"a worker's Python has no {missing[1]}: PYSPARK_PYTHON is to name one with korvet[lake] on each machine"
    # Py4J puts a line of its own before that of Java, which begins with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip(": ")]
    of_python = _after_traceback(str(error).splitlines())
    if of_python is not None:
        return of_python
    of_java = [line for line in lines if line.startswith(("java.", "org.", "scala."))]
    return (of_java or lines or [type(error).__name__])[0]


def _after_traceback(lines: Sequence[str]) -> str | None:
    """Return what Python says after the last of its stacks, which Spark may put after words of its own."""
    stacks = [at for at, line in enumerate(lines) if "Traceback (most recent" in line]
    if not stacks:
        return None
    end = (line for line in lines[stacks[-1] + 1 :] if not line[:1].isspace() and line.strip("^~ "))
    said = next(end, None)
    return None if said is None else _OWN_ERROR.sub("", said)
