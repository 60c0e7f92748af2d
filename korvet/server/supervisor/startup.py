"""Everything that is there before the first fork, in the order in which `korvet serve` starts.

Ports, embedded server, check of Redis, scripts, registration, and codecs meanwhile. The ports come first because a
refused one must leave no data directory behind. What fails is a ConfigError, and what was begun is undone by the
ExitStack that the caller closes.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from korvet import logs
from korvet.cluster.registration import Registration
from korvet.cluster.usage import Disk
from korvet.config.listeners import Listener
from korvet.config.settings import Settings
from korvet.config.values import Address, parse_address
from korvet.redis import url as redis_url
from korvet.server import embedded as embedded_server
from korvet.server.embedded import EmbeddedServer, Progress
from korvet.server.finding import require
from korvet.server.supervisor import checks, ports, run_state
from korvet.server.supervisor.ports import Bound
from korvet.server.supervisor.preparation import Preparation, Prepared
from korvet.server.supervisor.signals import Signals

_log = logs.Log(__name__)

_OPS_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Runtime:
    """The state before the first child: children inherit it.

    `resolved` are settings whose values the start may find, by attribute. `incarnation` distinguishes this start of the
    broker from all others.
    """

    resolved: Mapping[str, Any]
    embedded: EmbeddedServer | None
    prepared: Prepared
    data: str
    reserved: tuple[Listener, ...]
    ops_listener: socket.socket | None
    metrics_directory: Path
    incarnation: str

    def settle(self, settings: Settings) -> Settings:
        """Return `settings` as children get them: the embedded server's URL, the cluster's id, the broker's."""
        return dataclasses.replace(settings, **self.resolved)

    @property
    def listen(self) -> Address:
        return self.reserved[0].address

    @property
    def status(self) -> str:
        """What a service manager shows of a broker that serves."""
        return f"serving clients at {self.listen}"

    def listeners(self, settings: Settings) -> tuple[Bound, ...]:
        """Return every listener with what `settings` advertise for it; raises ConfigError if that is no address."""
        return ports.bind_listeners(settings, self.reserved)

    def check(self, settings: Settings) -> None:
        """Raise ConfigError for what a reload must not apply: listeners that no client could use."""
        require(checks.of_listeners(settings, self.reserved))

    @property
    def ops(self) -> Address | None:
        return Address(*self.ops_listener.getsockname()[:2]) if self.ops_listener else None


def prepare(settings: Settings, signals: Signals, progress: Progress, cleanup: ExitStack) -> Runtime:
    """Start, check and prepare everything that children need; raises ConfigError, and StoppedError on a signal.

    `progress` gets a line about what takes long.
    """
    reservations = ports.reserve_listeners(settings, cleanup)
    reserved = tuple(Listener(name, item.address) for name, item in reservations.items())
    # Refused here, before anything is forked.
    require(checks.examine(settings, reserved))
    ops_listener = None
    if settings.ops_listen:
        ops_address = parse_address(settings.ops_listen)
        ops_listener = cleanup.enter_context(
            ports.bind_alone("ops.listen ", ops_address, reservations.values())
        )
    embedded = None
    if not settings.redis_url:
        embedded = _start_embedded(settings, signals, progress, cleanup)
        settings = dataclasses.replace(settings, redis_url=embedded.url)
    metrics_directory = cleanup.enter_context(run_state.directory_for(reserved[0].address))
    incarnation = uuid.uuid4().hex
    start = Registration(
        broker_id=settings.broker_id,
        listeners=ports.endpoints(ports.bind_listeners(settings, reserved)),
        incarnation=incarnation,
    )
    # Its last step is the registration: from then on clients of other brokers may be sent here.
    with closing(Preparation(settings, start, own=embedded is not None)) as preparation:
        compile_codecs()
        prepared = preparation.wait(signals, progress)
    require(prepared.facts.findings)
    if ops_listener is not None:
        # Not before: while the data loads a probe must be refused, not wait.
        ops_listener.listen(_OPS_BACKLOG)
    resolved = {
        "redis_url": settings.redis_url,
        "cluster_id": prepared.cluster_id,
        "broker_id": prepared.broker_id,
    }
    server = redis_url.parse_url(settings.redis_url)
    data = f"{embedded.data_dir.path}, embedded" if embedded else f"Redis at {server}"
    return Runtime(resolved, embedded, prepared, data, reserved, ops_listener, metrics_directory, incarnation)


def worker_count(settings: Settings) -> int:
    """Return the number of workers: by default one per core that this process may run on, or one as `system` says."""
    if settings.workers:
        return settings.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _start_embedded(
    settings: Settings, signals: Signals, progress: Progress, cleanup: ExitStack
) -> EmbeddedServer:
    binary = embedded_server.find_program()
    directory = embedded_server.open_locked(Path(settings.data_dir))
    cleanup.callback(directory.close)
    disk = Disk(directory.path)
    free, needed = disk.free_bytes(), disk.needed_bytes(settings.embedded_disk_max_bytes)
    if free < needed:
        _log.warning(
            "the data directory has little room", path=directory.path, free_bytes=free, needed_bytes=needed
        )
    embedded = EmbeddedServer(directory, binary, settings.embedded_maxmemory_bytes)
    embedded.start(signals.pause, progress)
    cleanup.callback(embedded.stop)
    return embedded


def compile_codecs() -> None:
    """Compile what reads and writes Kafka's messages."""
    # Here for the time that compiling takes and for the errors it may raise; the records so that workers share them.
    from korvet.protocol.compile import compile_served  # noqa: PLC0415 - as said above
    from korvet.protocol.messages import all_messages  # noqa: PLC0415 - as said above
    from korvet.protocol.records import batch  # noqa: F401, PLC0415 - as said above

    compile_served(all_messages())
