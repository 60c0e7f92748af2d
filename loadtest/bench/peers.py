"""What is compared: Korvet in both formats, Apache Kafka, Tansu, kfake, and Redis itself.

Knows how each is started with its own defaults and ended; nothing of what is measured. Each keeps its data in a
directory of its own, all on the same disk; brokers listen on free ports of 127.0.0.1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from korvet_core import pack_command

from korvet.errors import ConfigError
from korvet.server.embedded import find_program
from loadtest import harness
from loadtest.bench import toolchain
from loadtest.bench.load import Load
from loadtest.harness import NotAvailableError
from loadtest.redis_server import Request, Server
from tests.support.processes import free_port

_WORKERS = 2
_KORVET = f"{_WORKERS} workers, embedded server, appendfsync everysec"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")


class Peer(ABC):
    """One broker, started and stopped as often as wanted; each start is on empty data.

    `name` is the one of --peers, `what` is its description above the table.
    """

    name = ""
    what = ""
    configs = ""
    """The topic configs that make it what it is, name:value with commas."""
    dense = True
    """Whether offsets count records, so that they tell how many were written."""
    tls = False
    """Whether the load generator's clients connect by TLS; everything else does without."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / self.name
        self.log = self.directory / "log"
        self._certificate = self.directory / "key-and-certificate.pem"
        self.port = 0
        self._tls_port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def note(self) -> str:
        """What a reader of the table should know."""
        return f"{self.what}; clients by TLS" if self.tls else self.what

    @property
    def bootstrap(self) -> str:
        """Address as clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> dict[str, object]:
        """Where the load generator's clients connect, and whose certificate they trust."""
        if not self.tls:
            return {"bootstrap": self.bootstrap}
        return {"bootstrap": f"127.0.0.1:{self._tls_port}", "tls": self._certificate}

    @property
    def pid(self) -> int:
        """Root of its tree of processes."""
        assert self._process is not None
        return self._process.pid

    def prepare(self) -> None:
        """Empty its directory and do what has to be done before a start; no part of the start-up time."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.port = free_port()
        if self.tls:
            self._tls_port = free_port()
            self._make_certificate()

    def launch(self) -> None:
        """Start it and wait until it answers; NotAvailableError with its last words when it does not."""
        self._process = harness.spawn(self.command(), self.log)
        try:
            harness.await_metadata(("127.0.0.1", self.port))
        except NotAvailableError:
            last_words = harness.tail(self.log)
            self.stop()
            raise NotAvailableError(f"it did not start: {last_words}") from None

    def start(self) -> None:
        """Prepare and launch."""
        self.prepare()
        self.launch()

    def stop(self) -> None:
        """End it and remove its data."""
        harness.stop(self._process)
        self._process = None
        if self.log.exists():
            shutil.copyfile(self.log, self.directory.with_suffix(".log"))
        shutil.rmtree(self.directory, ignore_errors=True)

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts it."""

    def _listeners(self) -> list[str]:
        """Return where it listens, and its certificate, in the settings that Kafka and Korvet share."""
        listeners = f"listeners=PLAINTEXT://{self.bootstrap}"
        if not self.tls:
            return [listeners]
        keystore = ["ssl.keystore.type=PEM", f"ssl.keystore.location={self._certificate}"]
        return [f"{listeners},SSL://127.0.0.1:{self._tls_port}", *keystore]

    def _make_certificate(self) -> None:
        names = ("-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1")
        made = ("-keyout", "-", "-out", "-", "-days", "2", *names)
        command = ["/usr/bin/env", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made]
        self._certificate.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)

    def create(self, load: Load, topic: str, partitions: int, count: int = 1) -> float:
        """Create `count` topics and return the seconds that took; LoadError when it refuses."""
        options = {**self.address, "topic": topic, "partitions": partitions, "count": count}
        return load.do("create", **options, configs=self.configs)["seconds"]

    def delete(self, load: Load, topic: str) -> None:
        """Delete a topic and its records."""
        load.do("delete", **self.address, topic=topic)


class Korvet(Peer):
    """Korvet on its embedded server with the defaults of both, but for the number of workers."""

    workers = _WORKERS

    def command(self) -> list[str]:
        """`korvet serve`."""
        flags = [word for setting in self._listeners() for word in ("--set", setting)]
        flags += ["--ops-listen", f"127.0.0.1:{free_port()}"]
        flags += ["--workers", str(self.workers), "--data-dir", str(self.directory / "data")]
        return [sys.executable, "-m", "korvet", "serve", *flags]


class KorvetRecord(Korvet):
    """One stream entry per record."""

    name = "korvet-record"
    configs = "storage.format:record"
    what = f"storage.format=record, {_KORVET}"
    dense = False


class KorvetBatch(Korvet):
    """One stream entry per batch."""

    name = "korvet-batch"
    configs = "storage.format:batch"
    what = f"storage.format=batch, {_KORVET}"


class KorvetBatchTls(KorvetBatch):
    """The same, with clients that connect by TLS."""

    name = "korvet-batch-tls"
    tls = True


class Kafka(Peer):
    """Apache Kafka, broker and controller in one process (KRaft), with its own defaults."""

    name = "kafka"
    what = f"Apache Kafka {toolchain.kafka_version()}, KRaft, one node, default heap of 1 GiB"
    # As bin/kafka-server-start.sh and bin/kafka-run-class.sh set them.
    HEAP = ("-Xmx1G", "-Xms1G")
    TUNING = (
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-Djava.awt.headless=true",
    )

    def prepare(self) -> None:
        """Write its configuration and format its log directory."""
        super().prepare()
        controller = free_port()
        listeners, *tls = self._listeners()
        lines = [
            "process.roles=broker,controller",
            "node.id=1",
            f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            f"listener.security.protocol.map={','.join(f'{name}:{name}' for name in _PROTOCOLS)},CONTROLLER:PLAINTEXT",
            *tls,
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            f"log.dirs={self.directory / 'data'}",
            # There is only this broker to hold replicas.
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "share.coordinator.state.topic.replication.factor=1",
            "share.coordinator.state.topic.min.isr=1",
        ]
        self._config.write_text("\n".join(lines) + "\n")
        tool = toolchain.command("kafka.tools.StorageTool")
        arguments = ["format", "--config", str(self._config), "--cluster-id", "a29ydmV0LWJlbmNobWFyaw"]
        made = subprocess.run([*tool, *arguments], check=False, capture_output=True, text=True, timeout=60)
        if made.returncode:
            raise NotAvailableError(f"its storage cannot be formatted: {made.stderr.strip()[-300:]}")

    @property
    def _config(self) -> Path:
        return self.directory / "server.properties"

    def command(self) -> list[str]:
        """kafka.Kafka with the flags of its start script."""
        return [*toolchain.command("kafka.Kafka", *self.HEAP, *self.TUNING), str(self._config)]


class KafkaTls(Kafka):
    """The same, with clients that connect by TLS."""

    name = "kafka-tls"
    tls = True


class Kfake(Peer):
    """franz-go's fake of a cluster."""

    name = "kfake"
    what = "franz-go's kfake, in memory: made for tests of clients"

    def command(self) -> list[str]:
        """loadtest/bench/go/main.go."""
        return [str(toolchain.kfake()), str(self.port)]


class Tansu(Peer):
    """Tansu without a database."""

    name = "tansu"
    what = f"Tansu {toolchain.TANSU_VERSION}, in memory"
    dense = False  # the end that it names is before the records of the last batch

    def command(self) -> list[str]:
        """`tansu broker`."""
        listen = f"tcp://{self.bootstrap}"
        flags = ["--listener-url", listen, "--advertised-listener-url", listen]
        flags += ["--storage-engine", "memory://tansu/", "--silent"]
        return [str(toolchain.tansu()), "broker", *flags]


class Redis:
    """The embedded server without a broker before it: the ceiling of what a broker with an entry per record can reach.

    `produce`, `consume` and `single` return how much was done and in how many seconds, as the load generator does.
    """

    name = "redis"
    _PIPELINE, _READ_COUNT = 100, 1000
    _STREAM = "korvet:bench:0"
    _SECONDS_MAX = 300.0

    def __init__(self, directory: Path) -> None:
        self.directory = directory / self.name
        self._tool = shutil.which("redis-benchmark")
        self._server: Server | None = None
        how = "redis-benchmark" if self._tool else "a pipelined loader in Python (no redis-benchmark on PATH)"
        self.note = f"no broker: XADD of records, XRANGE of {self._READ_COUNT} by {how}, {self._PIPELINE} in a pipeline"

    @property
    def server(self) -> Server:
        """The server while it runs."""
        assert self._server is not None
        return self._server

    @property
    def pid(self) -> int:
        """Root of its tree of processes."""
        return self.server.pid

    def prepare(self) -> None:
        """Empty its directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def launch(self) -> None:
        """Start it as Korvet does, and wait until it answers; raises NotAvailableError."""
        try:
            self._server = Server(self.directory, find_program()).__enter__()
        except ConfigError as why:
            raise NotAvailableError(str(why)) from None

    def start(self) -> None:
        """Prepare and launch."""
        self.prepare()
        self.launch()

    def stop(self) -> None:
        """End it and remove its data."""
        if self._server is not None:
            self._server.__exit__()
        self._server = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def clear(self) -> None:
        """Remove all records."""
        self.server.call("FLUSHALL")

    def produce(self, size: int, records: int, clients: int) -> tuple[int, float]:
        """XADD single records in the fields that Korvet uses."""
        now_ms = str(int(time.time() * 1000))
        command = ["XADD", self._STREAM, "*", "value", "x" * size, "timestamp", now_ms]
        return self._run(command, records, clients, self._PIPELINE)

    def consume(self, records: int) -> tuple[int, float]:
        """XRANGE the first records of the stream again and again."""
        command = ["XRANGE", self._STREAM, "-", "+", "COUNT", str(self._READ_COUNT)]
        commands, seconds = self._run(command, max(records // self._READ_COUNT, 10), 1, 2)
        return commands * self._READ_COUNT, seconds

    def single(self, size: int, records: int, clients: int) -> tuple[int, float]:
        """XADD single records, one under way on each connection."""
        return self._run(["XADD", self._STREAM, "*", "value", "x" * size], records, clients, 1)

    def _run(self, command: list[str], count: int, clients: int, pipeline: int) -> tuple[int, float]:
        if self._tool is None:
            rounds = max(count // pipeline, 1)
            bursts = [Request(pack_command(command) * pipeline, pipeline)] * rounds
            began = time.monotonic()
            self.server.exchange(bursts, 1)
            return rounds * pipeline, time.monotonic() - began
        place = ["-s", self.server.socket, "-c", str(clients)]
        flags = ["-n", str(count), "-P", str(pipeline), "--csv"]
        whole = [self._tool, *place, *flags, *command]
        began = time.monotonic()
        subprocess.run(whole, check=True, capture_output=True, timeout=self._SECONDS_MAX)
        return count, time.monotonic() - began
