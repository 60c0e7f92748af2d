"""The JVM that runs a class of Kafka's tests: its jars, the classes of java/, and its command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from korvet.config.settings import SETTINGS
from loadtest.bench.toolchain import copy_jars, make_once, need_java
from tests.jvm import jars
from tests.jvm.kafka_broker.lists import HERE
from tests.jvm.kafka_broker.results import ROOT

TEST_SECONDS_MAX = 90
CLASS_SECONDS_MAX = 1800
_STOP_SECONDS_MAX = 20.0
LAYOUTS = {
    "time": "storage.format=record,offset.encoding=time",
    "dense": "storage.format=record,offset.encoding=dense",
    "batch": "storage.format=batch",
}
"""The settings of a broker whose topics have the layout (docs/records.md)."""
_CACHE = jars.HERE / ".cache" / "kafka_broker"
_JARS = _CACHE / "jars"
_CLASSES = _CACHE / "classes"
_CLUSTER = _CACHE / "cluster"
"""The class that hides one of Kafka's, so Kafka as the control does not get it."""
_PATCHED = _CACHE / "patched"
_REPORT = HERE / "services"
"""Names Report.java to JUnit."""


def prepare() -> None:
    """Fetch jars, compile java/ and patch the harness, unless that was done; NotAvailableError without the tools."""
    need_java()
    copy_jars(HERE / "pom.xml", _JARS)
    ours = sorted((HERE / "java" / "korvet").rglob("*.java"))
    hiding = sorted((HERE / "java" / "org").rglob("*.java"))
    libraries = f"{_CLASSES}:{_JARS}/*"
    lint = "-Xlint:all,-path,-processing,-try"
    make_once(_CLASSES, ours, ["javac", lint, "-cp", libraries, "-d", str(_CLASSES), *map(str, ours)])
    make_once(
        _CLUSTER, [*ours, *hiding], ["javac", lint, "-cp", libraries, "-d", str(_CLUSTER), *map(str, hiding)]
    )
    sources = [HERE / "pom.xml", *ours]
    make_once(_PATCHED, sources, ["java", "-cp", libraries, "korvet.broker.HarnessPatch", str(_PATCHED)])


def run_class(target: str, owner: str, methods: Sequence[str], report: Path, logs: Path) -> None:
    """Run a class, or some of its methods; a JVM that hangs is ended, and that is one more failure in the report."""
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a broker starts for each test
    # The path of a Unix socket is short, so brokers' data is not in the checkout.
    with tempfile.TemporaryDirectory(prefix="kafka-broker-", ignore_cleanup_errors=True) as data:
        with (logs / "java.log").open("wb") as log:
            process = subprocess.Popen(
                _command(target, owner, methods, report, logs, data),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "TMPDIR": data},
                cwd=data,
                start_new_session=True,
            )
        try:
            process.wait(CLASS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            with report.open("a") as file:
                file.write(
                    f"-\tfailed\t{CLASS_SECONDS_MAX}\tthe class did not end in {CLASS_SECONDS_MAX} s\n"
                )
        finally:
            _stop(process)


def _command(
    target: str, owner: str, methods: Sequence[str], report: Path, logs: Path, data: str
) -> list[str]:
    path = [_REPORT, _CLASSES, f"{_JARS}/*"]
    properties = {
        "java.io.tmpdir": data,
        "java.net.preferIPv4Stack": "true",
        "korvet.report": report,
        "org.slf4j.simpleLogger.defaultLogLevel": "error",
    }
    if target != "kafka":
        path = [_PATCHED, _CLUSTER, *path]
        properties |= {
            "korvet.logs": logs,
            "korvet.layout": LAYOUTS[target],
            "korvet.python": sys.executable,
            "korvet.settings": ",".join(SETTINGS),
        }
    junit = {
        "junit.jupiter.execution.timeout.test.method.default": f"{TEST_SECONDS_MAX}s",
        "junit.jupiter.execution.timeout.testtemplate.method.default": f"{TEST_SECONDS_MAX}s",
        # By default a test is interrupted, and may wait on.
        "junit.jupiter.execution.timeout.thread.mode.default": "SEPARATE_THREAD",
        "junit.jupiter.extensions.autodetection.enabled": "true",
    }
    # Its garbage collector and compiler threads are few: brokers share the cores with it. Mockito attaches an agent.
    flags = ["-Xmx1500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+EnableDynamicAgentLoading"]
    return [
        *("java", *flags),
        *(f"-D{name}={value}" for name, value in properties.items()),
        *("-cp", ":".join(map(str, path)), "org.junit.platform.console.ConsoleLauncher", "execute"),
        *("--disable-banner", "--details=none", "--select-class", owner),
        *(f"--include-methodname=.*#{re.escape(method)}" for method in methods),
        *(f"--config={name}={value}" for name, value in junit.items()),
    ]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a running JVM and with it its broker; by force if it takes long."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
