"""Spark as Korvet's jobs use it: a session, and one clear error where it does not start.

Knows Java, masters and Spark's configuration; nothing of what a job does. By default all of it runs in this process and
its children, and listens on 127.0.0.1 only. Starting takes seconds: no request of a client ever waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from korvet import java
from korvet.errors import LakeError
from korvet.spark.java_process import launch_quietly
from korvet.spark.submitted import is_submitted

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
    """Give a session of the application `name`, and stop it behind the block; raises SparkError.

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
    """Return what Python says behind the last of its stacks, which Spark may put behind words of its own."""
    stacks = [at for at, line in enumerate(lines) if "Traceback (most recent" in line]
    if not stacks:
        return None
    behind = (line for line in lines[stacks[-1] + 1 :] if not line[:1].isspace() and line.strip("^~ "))
    said = next(behind, None)
    return None if said is None else _OWN_ERROR.sub("", said)
