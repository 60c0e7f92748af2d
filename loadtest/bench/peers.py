"""The brokers that are compared: Korvet in both formats, Apache Kafka, Tansu, kfake, librdkafka's mock cluster.

Knows how each is started with its own defaults and ended; nothing of what is measured. Each listens on a free port of
127.0.0.1 and keeps its data in a directory of its own, all on the same disk.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from loadtest.bench import frames, processes, toolchain
from loadtest.bench.load import Load, LoadError
from loadtest.bench.processes import NotAvailableError

START_SECONDS_MAX = 90.0
_REPOSITORY = Path(__file__).parents[2]
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")


class Peer(ABC):
    """One broker, started and stopped as often as wanted; each start is on empty data.

    `name` is the one of --peers; `note` is what a reader of the table should know.
    """

    name = ""
    note = ""
    dense = True
    """Whether offsets count records, so that they tell how many were written."""
    tls = False
    """Whether the load generator's clients connect by TLS; everything else does without."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / self.name
        self.port = 0
        self._tls_port = 0
        self._process: subprocess.Popen[str] | None = None

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

    @property
    def log(self) -> Path:
        """Where it writes what it has to say."""
        return self.directory / "log"

    def prepare(self) -> None:
        """Empty its directory and do what has to be done before a start; no part of the start-up time."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.port = processes.free_port()
        if self.tls:
            self._tls_port = processes.free_port()
            self._make_certificate()

    def launch(self) -> None:
        """Start it and wait until it answers; NotAvailableError with its last words when it does not."""
        self._process = processes.spawn(self.command(), self.log, cwd=_REPOSITORY)
        try:
            frames.await_metadata(self.bootstrap, START_SECONDS_MAX)
        except NotAvailableError:
            last_words = processes.tail(self.log)
            self.stop()
            raise NotAvailableError(f"it did not start: {last_words}") from None

    def start(self) -> None:
        """Prepare and launch."""
        self.prepare()
        self.launch()

    def stop(self) -> None:
        """End it and remove its data."""
        processes.stop(self._process)
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

    @property
    def _certificate(self) -> Path:
        return self.directory / "key-and-certificate.pem"

    def _make_certificate(self) -> None:
        names = ("-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1")
        made = ("-keyout", "-", "-out", "-", "-days", "2", *names)
        command = ["/usr/bin/env", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made]
        self._certificate.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)

    def configs(self) -> str:
        """Return the topic configs that make it what it is, name:value with commas."""
        return ""

    def check(self, load: Load) -> None:  # noqa: B027 - most peers that run can be measured
        """Raise NotAvailableError where it cannot be measured, though it runs."""

    def create(self, load: Load, topic: str, partitions: int, count: int = 1) -> float:
        """Create `count` topics and return the seconds that took; LoadError when it refuses."""
        options = {**self.address, "topic": topic, "partitions": partitions, "count": count}
        return load.do("create", **options, configs=self.configs())["seconds"]

    def delete(self, load: Load, topic: str) -> None:
        """Delete a topic and its records."""
        load.do("delete", **self.address, topic=topic)


class Korvet(Peer):
    """Korvet on its embedded server with the defaults of both, but for the number of workers."""

    workers = 2
    format = ""
    ops_port = 0

    def command(self) -> list[str]:
        """`korvet serve`."""
        flags = [word for setting in self._listeners() for word in ("--set", setting)]
        self.ops_port = processes.free_port()
        flags += ["--ops-listen", f"127.0.0.1:{self.ops_port}"]
        flags += ["--workers", str(self.workers), "--data-dir", str(self.directory / "data")]
        return [sys.executable, "-m", "korvet", "serve", *flags]

    def configs(self) -> str:
        """Return the format, which is fixed when a topic is created."""
        return f"storage.format:{self.format}"

    def check(self, load: Load) -> None:
        """Raise NotAvailableError where this Korvet does not have the format yet."""
        try:
            self.create(load, "probe", 1)
        except LoadError as error:
            raise NotAvailableError(f"a topic with {self.configs()} is refused: {error}") from None
        self.delete(load, "probe")


class KorvetRecord(Korvet):
    """One stream entry per record."""

    name = "korvet-record"
    format = "record"
    dense = False
    note = f"storage.format=record, {Korvet.workers} workers, embedded server, appendfsync everysec"


class KorvetBatch(Korvet):
    """One stream entry per batch."""

    name = "korvet-batch"
    format = "batch"
    note = f"storage.format=batch, {Korvet.workers} workers, embedded server, appendfsync everysec"


class KorvetBatchTls(KorvetBatch):
    """The same, with clients that connect by TLS."""

    name = "korvet-batch-tls"
    note = f"{KorvetBatch.note}; clients by TLS"
    tls = True


class Kafka(Peer):
    """Apache Kafka, broker and controller in one process (KRaft), with its own defaults."""

    name = "kafka"
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

    @property
    def note(self) -> str:  # type: ignore[override]  # the version is read from pom.xml
        """Which Kafka it is."""
        return f"Apache Kafka {toolchain.kafka_version()}, KRaft, one node, default heap of 1 GiB"

    def prepare(self) -> None:
        """Write its configuration and format its log directory."""
        super().prepare()
        controller = processes.free_port()
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

    @property
    def note(self) -> str:  # type: ignore[override]  # as above
        """Which Kafka it is."""
        return f"{super().note}; clients by TLS"


class Kfake(Peer):
    """franz-go's fake of a cluster."""

    name = "kfake"
    note = "franz-go's kfake, in memory: made for tests of clients"

    def command(self) -> list[str]:
        """loadtest/bench/go/main.go."""
        return [str(toolchain.kfake()), str(self.port)]


class Tansu(Peer):
    """Tansu without a database."""

    name = "tansu"
    note = f"Tansu {toolchain.TANSU_VERSION}, in memory"
    dense = False  # the end that it names is before the records of the last batch

    def command(self) -> list[str]:
        """`tansu broker`."""
        listen = f"tcp://{self.bootstrap}"
        flags = [
            "--listener-url",
            listen,
            "--advertised-listener-url",
            listen,
            "--storage-engine",
            "memory://tansu/",
        ]
        return [str(toolchain.tansu()), "broker", *flags, "--silent"]


class Mock(Peer):
    """The mock cluster inside librdkafka, in a process of its own."""

    name = "mock"
    note = "librdkafka's mock cluster: one thread, in memory, keeps the last 5 MiB of a partition"
    dense = False  # its log forgets

    def prepare(self) -> None:
        """Leave the port to it."""
        super().prepare()
        self.port = 0

    def launch(self) -> None:
        """Start it and read from its output where it listens."""
        self._process = processes.spawn(self.command(), self.log, pipes=True, cwd=_REPOSITORY)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.isdigit():
            self.stop()
            raise NotAvailableError("it did not start: confluent-kafka is not installed, or refuses to mock")
        self.port = int(line)
        frames.await_metadata(self.bootstrap, START_SECONDS_MAX)

    def command(self) -> list[str]:
        """loadtest/bench/mock_cluster.py."""
        return [sys.executable, "-m", "loadtest.bench.mock_cluster"]

    def check(self, load: Load) -> None:
        """Raise NotAvailableError where Kafka's Java clients cannot speak with this librdkafka's mock."""
        del load
        frames.check_version_refused(self.bootstrap)

    def create(self, load: Load, topic: str, partitions: int, count: int = 1) -> float:
        """Have a topic created by asking for it: always with 4 partitions, for any request."""
        del load, partitions, count
        frames.ask(self.bootstrap, frames.topic_metadata(topic))
        return 0.0

    def delete(self, load: Load, topic: str) -> None:
        """Keep it: the mock cannot delete, and bounds what it keeps."""
        del load, topic
