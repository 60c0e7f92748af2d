"""YARN on this machine: a ResourceManager and a NodeManager, processes of their own as on a cluster.

Knows Hadoop's daemons and their settings, which clients read too. Containers are processes that the NodeManager starts,
with an environment of its own, and ends when they take more memory than they have asked for: both as by default.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyspark

from tests.jvm.spark import jars
from tests.support.processes import free_port, logged, wait_until

_JARS = Path(pyspark.__file__).with_name("jars")
_SERVER = "org.apache.hadoop.yarn.server"
_SECONDS_MAX = 120.0
_MEMORY_MIB = 3072
"""For one application: its master, and two executors."""


class Yarn:
    """A running one; `conf` is the directory of its settings, HADOOP_CONF_DIR of clients."""

    def __init__(self, conf: Path, port: int) -> None:
        self.conf = conf
        self._port = port

    def has_node(self) -> bool:
        """Return whether there is a ResourceManager, and a NodeManager has registered with it."""
        try:
            return bool(self._get("metrics")["clusterMetrics"]["activeNodes"])
        except OSError:
            return False

    def applications(self) -> dict[str, str]:
        """Return how each application has ended, by its name: UNDEFINED if it runs."""
        result = self._get("apps")["apps"]
        return {item["name"]: item["finalStatus"] for item in result.get("app", [])}

    def _get(self, what: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("GET", f"/ws/v1/cluster/{what}")
        body = connection.getresponse().read()
        connection.close()
        return msgspec.json.decode(body, type=dict[str, Any])


@contextlib.contextmanager
def yarn(directory: Path) -> Iterator[Yarn]:
    """Start one, with what it writes in `directory`, and end it after the block."""
    conf = directory / "conf"
    conf.mkdir()
    ports = {name: free_port() for name in ("webapp", "", "scheduler", "resource-tracker", "admin")}
    _write(
        conf / "yarn-site.xml",
        {f"yarn.resourcemanager.{name}.address".replace("..", "."): _at(port) for name, port in ports.items()}
        | {f"yarn.nodemanager.{name}address": _at(0) for name in ("", "webapp.")}
        | {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.nodemanager.localizer.address": _at(free_port()),
            "yarn.nodemanager.local-dirs": f"{directory}/local",
            "yarn.nodemanager.log-dirs": f"{directory}/containers",
            "yarn.nodemanager.resource.memory-mb": str(_MEMORY_MIB),
            # A disk of this machine that is nearly full is none that YARN uses, by default.
            "yarn.nodemanager.disk-health-checker.enable": "false",
        },
    )
    running = Yarn(conf, ports["webapp"])
    with (
        _started("resourcemanager.ResourceManager", conf) as manager,
        _started("nodemanager.NodeManager", conf) as node,
    ):

        def ready() -> bool:
            logs = [item.read_text() for item in directory.glob("*.log")]
            assert [manager.poll(), node.poll()] == [None, None], logs
            return running.has_node()

        wait_until(ready, "YARN has a node", _SECONDS_MAX)
        yield running


def _at(port: int) -> str:
    return f"127.0.0.1:{port}"


def _write(file: Path, settings: Mapping[str, str]) -> None:
    lines = (
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>\n{''.join(lines)}</configuration>\n")


def _started(name: str, conf: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    path = ":".join([str(conf), *map(str, jars.prepare(jars.YARN)), f"{_JARS}/*"])
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path]
    return logged([*command, f"{_SERVER}.{name}"], conf.parent / f"{name}.log", cwd=conf.parent)
