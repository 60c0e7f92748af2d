"""Ports and addresses: would a broker get its ports, who holds them, and do clients find what they are told.

Knows sockets, and /proc for who holds a port; a broker that runs here on these ports is no fault.

Settings that are allowed each, and together look like a slip.

Knows settings alone: what is said here is true on every machine.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from korvet.config.listeners import Listener, wanted_listeners
from korvet.config.settings import Settings
from korvet.config.values import WILDCARDS, Address, parse_address
from korvet.doctor.finding import Finding, error, ok, warning
from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.server.supervisor import ports
from korvet.server.supervisor import ports as listeners
from korvet.server.supervisor import run_state as run_file

_LOOPBACK = ("localhost", "127.", "::1")


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what looks wrong, or that nothing does."""
    found = [
        *_leases(settings),
        *_sizes(settings),
        *_exposure(settings),
    ]
    yield from found or [ok("settings", "nothing contradicts itself")]


def is_local(host: str) -> bool:
    """Whether a host is this machine and none else."""
    return host.startswith(_LOOPBACK)


def _leases(settings: Settings) -> Iterator[Finding]:
    for name, lease_ms in (
        ("keeper.lease.ms", settings.keeper_lease_ms),
        ("broker.lease.ms", settings.broker_lease_ms),
    ):
        if lease_ms <= settings.redis_timeout_ms:
            yield warning(
                name,
                f"{lease_ms} ms, no more than redis.timeout.ms ({settings.redis_timeout_ms}): a slow command loses it",
                f"set {name} to twice redis.timeout.ms or more",
            )


def _sizes(settings: Settings) -> Iterator[Finding]:
    if settings.message_max_bytes > settings.socket_request_max_bytes:
        yield warning(
            "message.max.bytes",
            f"{settings.message_max_bytes}, more than socket.request.max.bytes ({settings.socket_request_max_bytes}):"
            " such a batch never arrives",
            "raise socket.request.max.bytes above message.max.bytes",
        )
    if settings.message_max_bytes > settings.record_decompressed_max_bytes:
        yield warning(
            "message.max.bytes",
            f"{settings.message_max_bytes}, more than record.decompressed.max.bytes"
            f" ({settings.record_decompressed_max_bytes}): such a batch is refused",
            "raise record.decompressed.max.bytes above message.max.bytes",
        )


def _exposure(settings: Settings) -> Iterator[Finding]:
    if settings.ops_listen and settings.console_enable:
        host = parse_address(settings.ops_listen).host
        if host in WILDCARDS or not is_local(host):
            yield warning(
                "ops.listen",
                f"{settings.ops_listen}: whoever reaches it sees all records on the console",
                "listen on 127.0.0.1 or a private network, or set console.enable to false",
            )
    if settings.redis_url:
        server = redis_url.parse(settings.redis_url)
        if server.host and not is_local(server.host) and not server.password:
            yield warning(
                "redis.url",
                f"{server} is asked for no password: whoever reaches it reads and deletes records",
                "give Korvet a user of its own in Redis (README, How durable, has its rights)",
            )


_CONNECT_SECONDS_MAX = 3.0
_LISTENING = "0A"


class Holder(NamedTuple):
    """The process that listens on a port; `command` is empty where this user may not see it."""

    pid: int
    command: str

    def __str__(self) -> str:
        """Name it for a message."""
        return (
            f"process {self.pid} ({self.command})" if self.pid else "another process (root would see which)"
        )


def addresses_examine(settings: Settings) -> Iterator[Finding]:
    """Yield what is true of each port and of each address that clients are told."""
    wanted = wanted_listeners(settings.listeners, settings.listen)
    runs = {}
    for each in wanted:
        finding, runs[each.name] = _port("listeners" if settings.listeners else "listen", each.address)
        yield finding
    if settings.ops_listen:
        yield _port("ops.listen", parse_address(settings.ops_listen))[0]
    try:
        bound = listeners.bind_listeners(settings, wanted)
    except ConfigError as problem:
        yield error("advertised", str(problem), "give clients an address that they can connect to")
        return
    for told in bound:
        place = Listener(told.name, told.address)
        yield _advertised(place, told.advertised, runs=runs[told.name])


def _port(setting: str, address: Address) -> tuple[Finding, bool]:
    """Return what is true of a port, and whether a broker of this machine listens there."""
    try:
        ports.reserve(f"{setting} ", address).close()
    except ConfigError as problem:
        holder = _holder(address.port)
        if holder is None:
            return error(setting, str(problem), "choose another address or port"), False
        if _is_broker(holder.pid):
            return ok(setting, f"{address}: a broker listens, {holder}"), True
        return error(
            setting, f"{address}: {holder} has the port", "end that process, or choose another port"
        ), False
    return ok(setting, f"{address} is free"), False


def _advertised(listener: Listener, told: Address, *, runs: bool) -> Finding:
    what = f"advertised ({listener.name})"
    try:
        found = socket.getaddrinfo(told.host, told.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or "no host name"
        return error(what, f"{told}: {reason}", "let clients be told a name that resolves, or an IP address")
    if is_local(told.host) and not is_local(listener.address.host):
        return warning(
            what,
            f"{told}: clients on other machines are told to connect to themselves",
            "set it to the address of this machine by which clients reach it",
        )
    if not runs:
        return ok(
            what, f"{told} resolves to {found[0][4][0]}; whether it leads here is seen once the broker runs"
        )
    try:
        socket.create_connection(told, _CONNECT_SECONDS_MAX).close()
    except OSError as problem:
        return error(
            what,
            f"{told} does not answer: {problem.strerror or problem}",
            "correct it, or what lies between: clients go there after the first answer",
        )
    return ok(what, f"{told} answers")


def _is_broker(pid: int) -> bool:
    return any(state.pid in (pid, _parent(pid)) for state in run_file.running().values())


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _holder(port: int) -> Holder | None:
    """Return who listens on a port, None for nobody, or where the system does not tell."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            inodes.update(
                f"socket:[{row[9]}]"
                for row in rows
                if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port
            )
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(fd.readlink()) in inodes for fd in process.joinpath("fd").iterdir()):
                words = process.joinpath("cmdline").read_bytes().split(b"\0")
                return Holder(int(process.name), b" ".join(words[:4]).decode(errors="replace").strip())
    return Holder(0, "")
