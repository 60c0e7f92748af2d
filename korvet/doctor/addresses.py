"""Ports and addresses: would a broker get its ports, who holds them, and do advertised addresses lead to it.

A broker that runs here on these ports is no fault.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError
from korvet.config.listeners import SecurityProtocol, wanted_listeners
from korvet.config.settings import Settings
from korvet.config.values import Address, is_local, parse_address
from korvet.doctor import redis_server
from korvet.errors import ConfigError
from korvet.server.finding import Finding, error, ok, warning
from korvet.server.supervisor import ports, run_state
from korvet.server.supervisor.ports import Bound

_CONNECT_SECONDS_MAX = 3.0
_LISTENING = "0A"


class Holder(NamedTuple):
    """The process that listens on a port; `command` is empty where this user may not see it."""

    pid: int
    command: str

    def __str__(self) -> str:
        if not self.pid:
            return "another process (root would see which)"
        return f"process {self.pid} ({self.command})"


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what is true of each port and of each advertised address."""
    wanted = wanted_listeners(settings.listeners, settings.listen)
    runs = {}
    for partition in wanted:
        what = "listeners" if settings.listeners else "listen"
        finding, runs[partition.name] = _port(what, partition.address)
        plain = settings.security_protocol(partition.name) is SecurityProtocol.PLAINTEXT
        yield (
            runs[partition.name] and plain and _other_cluster(what, partition.address, settings)
        ) or finding
    if settings.ops_listen:
        yield _port("ops.listen", parse_address(settings.ops_listen))[0]
    bound: tuple[Bound, ...] = ()
    with contextlib.suppress(ConfigError):  # as the checks of a start say
        bound = ports.bind_listeners(settings, wanted)
    for listener in bound:
        yield _advertised(listener, runs=runs[listener.name])


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
        said = f"{address}: {holder} has the port"
        return error(setting, said, "end that process, or choose another port"), False
    return ok(setting, f"{address} is free"), False


def _other_cluster(what: str, address: Address, settings: Settings) -> Finding | None:
    """Return the error if the broker that listens at an address is not of the cluster of these settings."""
    try:
        with AdminClient(str(address), timeout=_CONNECT_SECONDS_MAX) as admin:
            theirs = admin.cluster.describe().cluster_id
    except AdminError:
        return None
    ours = redis_server.cluster_of(settings)
    if ours is None or theirs == ours:
        return None
    said = f"{address}: a broker of cluster {theirs} listens; the cluster of these settings is {ours or 'not started'}"
    return error(what, said, "choose another port, or examine that broker with its own settings")


def _advertised(listener: Bound, *, runs: bool) -> Finding:
    what, address = f"advertised ({listener.name})", listener.advertised
    try:
        result = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or "no host name"
        return error(what, f"{address}: {reason}", "advertise a name that resolves, or an IP address")
    if is_local(address.host) and not is_local(listener.address.host):
        said = f"{address}: clients on other machines would connect to themselves"
        return warning(what, said, "advertise the address by which clients reach this machine")
    if not runs:
        said = f"{address} resolves to {result[0][4][0]}; start the broker to see if it leads here"
        return ok(what, said)
    try:
        socket.create_connection(address, _CONNECT_SECONDS_MAX).close()
    except OSError as problem:
        advice = "correct the address, or the network to it: clients connect there after their first request"
        return error(what, f"{address} does not answer: {problem.strerror or problem}", advice)
    return ok(what, f"{address} answers")


def _is_broker(pid: int) -> bool:
    return any(state.pid in (pid, _parent(pid)) for state in run_state.running().values())


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _holder(port: int) -> Holder | None:
    """Return the process that listens on a port, None if there is none or the system does not say."""
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
