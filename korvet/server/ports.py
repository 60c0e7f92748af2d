"""The broker's port: refused when taken, resolved when 0, and held for as long as the supervisor lives.

Knows sockets and names of hosts; nothing of who listens. Workers bind sockets of their own with SO_REUSEPORT, so the
kernel would let two brokers share a port without a word: a first bind without that option is what tells them apart.
"""

from __future__ import annotations

import errno
import socket
from typing import Self

from korvet.config import Address, parse_address
from korvet.errors import ConfigError

_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised here, not bound


class Reservation:
    """A bound port on which nothing listens: it takes no connection, and nobody else gets the port."""

    def __init__(self, held: socket.socket) -> None:
        self._held = held
        self.address = Address(*held.getsockname()[:2])

    def covers(self, address: Address) -> bool:
        """Whether a socket that is to be bound to the numeric `address` would need the reserved port."""
        if address.port != self.address.port or family(address) != family(self.address):
            return False
        return address.host == self.address.host or not _WILDCARDS.isdisjoint(
            (address.host, self.address.host)
        )

    def close(self) -> None:
        """Give the port back."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reserve(setting: str, address: Address) -> Reservation:
    """Reserve `address` for sockets with SO_REUSEPORT; `setting` names it in the ConfigError when it is taken."""
    family, numeric = _resolve(setting, address)
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        # Without this, connections of an earlier broker in TIME_WAIT would keep the port for a minute.
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(alone, setting, numeric)
        # Port 0 is resolved by the exclusive bind: the kernel may give a REUSEPORT socket a port of another broker.
        bound = Address(*alone.getsockname()[:2])
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(held, setting, bound)
    return Reservation(held)


def bound(setting: str, address: Address, beside: Reservation) -> socket.socket:
    """Return a non-blocking socket, not listening yet, that has `address` alone, for a process that is no worker.

    Raises ConfigError where the address is taken, and says so where it is `beside` that has it.
    """
    family, numeric = _resolve(setting, address)
    if beside.covers(numeric):
        raise ConfigError(f"{setting} {address}: listen {beside.address} has that port: give each its own")
    alone = socket.socket(family, socket.SOCK_STREAM)
    alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _bind(alone, setting, numeric)
    alone.settimeout(0.0)
    return alone


def prepare_shared(sock: socket.socket) -> None:
    """Set on a worker's socket, before its bind, the options that go with a `Reservation`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # For the next broker's exclusive bind: connections in TIME_WAIT remember the option of their listener.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def family(address: Address) -> socket.AddressFamily:
    """Return the family of a resolved address."""
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def advertised(configured: str, bound: Address) -> Address:
    """Return the address that clients are told: `configured` (HOST:PORT), else `bound`.

    Raises ConfigError where that is a wildcard: a client cannot connect to 0.0.0.0.
    """
    if configured:
        return parse_address(configured)
    if bound.host in _WILDCARDS:
        message = f"listen {bound} is no address that clients can connect to: also set advertised"
        raise ConfigError(f"{message} (--advertised HOST:PORT)")
    return bound


def _resolve(setting: str, address: Address) -> tuple[socket.AddressFamily, Address]:
    host, port = address
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise ConfigError(f"{setting} {address}: {reason}") from None
    # IPv4 first: a client given "localhost" may know only one of the two, and then it is this one.
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    chosen, numeric = found[0][0], found[0][4]
    return chosen, Address(str(numeric[0]), int(numeric[1]))


def _bind(sock: socket.socket, setting: str, address: Address) -> None:
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{setting} {address}: {_bind_reason(error)}") from None


def _bind_reason(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is in use by another process"
        case errno.EADDRNOTAVAIL:
            return "no interface of this machine has that address"
        case errno.EACCES:
            return "this user may not bind that port"
        case _:
            return error.strerror or str(error)
