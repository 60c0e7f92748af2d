"""Everything that is there before the first fork, in the order in which `korvet serve` starts.

Knows the order: ports, embedded server, check of Redis, scripts, codecs, registration. Nothing of children. The ports
come first because a refused one is to leave no data directory behind. Whatever fails is a ConfigError, and what was
begun is undone by the ExitStack that the caller closes.

What `korvet serve` prints once it is ready: where to connect, where the records are, and a line to try.

Knows words; nothing of processes. Lines of the form `name  value` on stdout; logs go to stderr.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

import korvet
from korvet import java, logs
from korvet.cluster.registration import Registration
from korvet.config.listeners import Listener
from korvet.config.settings import Settings
from korvet.config.values import Address, parse_address
from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.server import data_dir
from korvet.server import embedded as binaries
from korvet.server.embedded import EmbeddedServer, Progress
from korvet.server.supervisor import ports, redis_check
from korvet.server.supervisor import ports as listeners
from korvet.server.supervisor import run_state as runtime_dir
from korvet.server.supervisor.ports import Bound, Reservation
from korvet.server.supervisor.redis_check import ServerFacts
from korvet.server.supervisor.signals import Signals

_log = logs.Log(__name__)

_OPS_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the children stand on.

    `resolved` are settings whose values were found, not given; `incarnation` tells this start from every other.
    """

    resolved: dict[str, str | int]
    embedded: EmbeddedServer | None
    facts: ServerFacts
    data: str
    reservations: tuple[Reservation, ...]
    reserved: tuple[Listener, ...]
    ops_listener: socket.socket | None
    metrics_directory: Path
    incarnation: str

    def settle(self, settings: Settings) -> Settings:
        """Return `settings` as children get them: the embedded server's URL, the cluster's id, the broker's."""
        return msgspec.structs.replace(settings, **self.resolved)

    @property
    def listen(self) -> Address:
        """Where the first listener is."""
        return self.reserved[0].address

    def listeners(self, settings: Settings) -> tuple[Bound, ...]:
        """Return every listener with what `settings` tell its clients; raises ConfigError where that is no address."""
        return listeners.listeners_bound(settings, self.reserved)

    @property
    def ops(self) -> Address | None:
        """Where ops listens."""
        return Address(*self.ops_listener.getsockname()[:2]) if self.ops_listener else None


def prepare(settings: Settings, signals: Signals, progress: Progress, cleanup: ExitStack) -> Runtime:
    """Start, check and prepare everything that children need; raises ConfigError, and StoppedError on a signal.

    `progress` is told what takes long.
    """
    if settings.replicas and not settings.redis_url:
        raise ConfigError("replicas: the embedded server has none, only a redis.url of your own may")
    check_lake(settings)
    reservations = listeners.listeners_reserve(settings, cleanup)
    reserved = listeners.reserved(settings, reservations)
    # Refused here, before anything is forked, where an address that clients would be told is none.
    bound = listeners.listeners_bound(settings, reserved)
    ops_listener = None
    if settings.ops_listen:
        ops_address = parse_address(settings.ops_listen)
        ops_listener = cleanup.enter_context(ports.bound("ops.listen ", ops_address, reservations))
    given = settings
    embedded = None
    if not settings.redis_url:
        embedded = _start_embedded(settings, signals, progress, cleanup)
        settings = msgspec.structs.replace(settings, redis_url=embedded.url)
    facts = redis_check.check(settings, signals.pause, progress)
    for warning in facts.warnings:
        _log.warning(warning)
    settings = redis_check.prepare(settings)
    compile_codecs()
    metrics_directory = runtime_dir.empty_for(reserved[0].address)
    cleanup.callback(shutil.rmtree, metrics_directory, ignore_errors=True)
    if ops_listener is not None:
        # Not before: a probe is to be refused while the data loads, not to wait.
        ops_listener.listen(_OPS_BACKLOG)
    # Last, for from here on clients of other brokers may be sent here. Whoever holds the data directory is alone there.
    incarnation = uuid.uuid4().hex
    start = Registration(
        broker_id=settings.broker_id, listeners=listeners.endpoints(bound), incarnation=incarnation
    )
    broker_id = redis_check.register(settings, start, own=embedded is not None)
    settings = msgspec.structs.replace(settings, broker_id=broker_id)
    resolved = {
        name: getattr(settings, name)
        for name in ("redis_url", "cluster_id", "broker_id")
        if getattr(settings, name) != getattr(given, name)
    }
    server = redis_url.parse(settings.redis_url)
    data = f"{embedded.data_dir.path}, embedded" if embedded else f"Redis at {server}"
    return Runtime(
        resolved,
        embedded,
        facts,
        data,
        reservations,
        reserved,
        ops_listener,
        metrics_directory,
        incarnation,
    )


def worker_count(settings: Settings) -> int:
    """Return how many workers are wanted: by default one per core that this process may run on."""
    if settings.workers:
        return settings.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_lake(settings: Settings) -> None:
    """Raise ConfigError where there is to be a lake, and what its processes need is not there."""
    if not settings.lake_path:
        return
    # Found, not imported: they are for the processes that read and write the lake.
    archives = settings.lake_interval_ms > 0
    needed = ("deltalake", "pyarrow", "numpy", *(("pyspark",) if archives else ()))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"lake.path needs {', '.join(missing)}: pip install 'korvet[lake]', or make lake in the repository"
        )
    if archives and (problem := java.problem()):
        raise ConfigError(
            f"lake.path: {problem}; or let `korvet lake archive` run elsewhere, with lake.interval.ms=0"
        )


def _start_embedded(
    settings: Settings, signals: Signals, progress: Progress, cleanup: ExitStack
) -> EmbeddedServer:
    binary = binaries.find()
    directory = data_dir.open_locked(Path(settings.data_dir))
    cleanup.callback(directory.close)
    embedded = EmbeddedServer(directory, binary, settings.embedded_maxmemory_bytes)
    embedded.start(signals.pause, progress)
    cleanup.callback(embedded.stop)
    return embedded


def compile_codecs() -> None:
    """Compile what reads and writes Kafka's messages."""
    # Here for the time that compiling takes and for the errors it may raise; the records so that workers share them.
    from korvet.protocol import messages  # noqa: PLC0415
    from korvet.protocol.records import builder  # noqa: F401, PLC0415

    messages.compile_all()


# While an fsync is under way, Redis puts off its next write for up to two seconds ("Redis persistence").
_EVERYSEC = (
    "written to disk once a second: a crash of the machine, or of Redis while the disk is busy, "
    "may lose the last 2 seconds"
)
_DURABILITY = {
    "always": "written to disk before every acknowledgement",
    "everysec": _EVERYSEC,
    "no": "written to disk when the operating system likes: a crash of the machine may lose half a minute",
}

_PYTHON = """\
{python} - <<'END'
import asyncio, aiokafka
async def main():
    async with aiokafka.AIOKafkaProducer(bootstrap_servers="{address}") as producer:
        await producer.send_and_wait("hello", b"world")
    consumer = aiokafka.AIOKafkaConsumer("hello", bootstrap_servers="{address}", auto_offset_reset="earliest")
    async with consumer:
        print(await consumer.getone())
asyncio.run(main())
END"""
_KCAT = "echo world | kcat -b {address} -t hello -P && kcat -b {address} -t hello -C -e"


def ready(
    *,
    settings: Settings,
    listeners: Sequence[Bound],
    workers: int,
    data: str,
    facts: ServerFacts,
    ops: Address | None,
) -> str:
    """Return the announcement of a broker, ending in a newline; `data` says where its records are."""
    first, *others = listeners
    counted = f"{workers} worker{'s' if workers != 1 else ''}"
    rows = [
        ("bootstrap", _reached(first, counted, named=bool(others))),
        *(("", _reached(each, named=True)) for each in others),
        ("broker", f"{settings.broker_id} of cluster {settings.cluster_id}"),
        ("data", f"{data}, {facts.name} {facts.version}"),
        ("durability", durability(facts)),
        *([("lake", where)] if (where := lake(settings)) else ()),
        ("ops", f"http://{ops} (console, /healthz /readyz /metrics)" if ops else "off"),
        ("stop", "Ctrl-C, or SIGTERM; SIGHUP reads the configuration again"),
    ]
    lines = [f"  {name:<10}  {value}" for name, value in rows]
    # At the left edge, because the end of a here-document must stand there to be pasted.
    return (
        "\n".join([f"Korvet {korvet.__version__} is ready", *lines, "Try:", _example(str(first.advertised))])
        + "\n"
    )


def _reached(listener: Bound, *more: str, named: bool) -> str:
    """Return what the clients of a listener are told, its name where it is not the only one, and where it is bound."""
    facts = [listener.name] if named else []
    facts += more
    if listener.address != listener.advertised:
        facts.append(f"listening on {listener.address}")
    return f"{listener.advertised} ({', '.join(facts)})" if facts else str(listener.advertised)


def durability(facts: ServerFacts) -> str:
    """Return in words what a crash may cost."""
    if facts.appendonly is None:
        return "the server does not tell"
    if not facts.appendonly:
        return "appendonly is off: a restart of Redis loses what came after its last snapshot"
    return _DURABILITY.get(
        facts.appendfsync or "", "appendonly is on, as often as the server is configured to"
    )


def lake(settings: Settings) -> str:
    """Return in words where the archive is and who writes it, nothing where there is none."""
    path = settings.lake_path
    if not path:
        return ""
    where = path if "://" in path else str(Path(path).expanduser().absolute())
    if settings.lake_interval_ms:
        every = f"every {settings.lake_interval_ms / 1000:g} s"
        return f"{where}, {every}, topics with remote.storage.enable=true"
    return f"{where}, written by korvet lake archive"


def _example(address: str) -> str:
    if shutil.which("kcat"):
        return _KCAT.format(address=address)
    # aiokafka is one of Korvet's own dependencies, so this works wherever Korvet does.
    return _PYTHON.format(python=sys.executable, address=address)
