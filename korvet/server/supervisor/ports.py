"""The broker's ports and listeners: refused when taken, resolved when 0, and held as long as the supervisor lives.

Workers bind sockets of their own with SO_REUSEPORT, so the kernel would let two brokers share a port without a word: a
first bind without that option keeps them apart.

The kernel resets connections in the queue of a closing socket, and on their way to it. So before one of several
sockets of a port closes, no handshake may begin on it. A filter in the kernel (classic BPF, see socket(7)) drops the
first packet of each connection; its client sends it again after a second, and by then the port's other sockets get it.
Handshakes under way go on: only their first packet carries SYN, and it has passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

from korvet.cluster.registration import Endpoint
from korvet.config.listeners import (
    DEFAULT_LISTENER,
    Listener,
    advertised_by_name,
    check_protocols,
    wanted_listeners,
)
from korvet.config.settings import Settings
from korvet.config.values import WILDCARDS, Address, is_local, parse_address
from korvet.errors import ConfigError

_SO_ATTACH_FILTER = 26
_LOAD_BYTE, _JUMP_IF_ANY_BIT, _RETURN = 0x30, 0x45, 0x06
_FLAGS_AT, _SYN = 13, 0x02
"""Offset of the flags in the TCP header, where the filter of a TCP socket counts from, and the flag SYN."""
_ALL = 0xFFFFFFFF
# Code, instructions to skip if true and if false, operand.
_PROGRAM = (
    (_LOAD_BYTE, 0, 0, _FLAGS_AT),
    (_JUMP_IF_ANY_BIT, 0, 1, _SYN),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _ALL),
)


_BIND_REASONS = {
    errno.EADDRINUSE: "the port is in use by another process",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address",
    errno.EACCES: "this user may not bind that port",
}


class Reservation(AbstractContextManager["Reservation"]):
    """A bound port on which nothing listens: it takes no connection, and nobody else gets the port."""

    def __init__(self, what: str, held: socket.socket) -> None:
        """`held` is bound; `what` is written before its address in messages."""
        self._what = what
        self._held = held
        self.address = Address(*held.getsockname()[:2])

    def covers(self, address: Address) -> bool:
        """Whether binding a socket to the numeric `address` would need the reserved port."""
        if address.port != self.address.port or family(address) != family(self.address):
            return False
        return address.host == self.address.host or not WILDCARDS.isdisjoint(
            (address.host, self.address.host)
        )

    def __str__(self) -> str:
        return f"{self._what}{self.address}"

    def close(self) -> None:
        self._held.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def reserve(what: str, address: Address) -> Reservation:
    """Reserve `address` for sockets with SO_REUSEPORT; raises ConfigError when it is taken.

    `what` is written before the address in that, for instance "listen ".
    """
    family, numeric = _resolve(what, address)
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        # Without this, connections of an earlier broker in TIME_WAIT would keep the port for a minute.
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(alone, what, numeric)
        # Port 0 is resolved by the exclusive bind: the kernel may give a REUSEPORT socket a port of another broker.
        bound = Address(*alone.getsockname()[:2])
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(held, what, bound)
    return Reservation(what, held)


def bind_alone(what: str, address: Address, beside: Iterable[Reservation]) -> socket.socket:
    """Return a non-blocking socket, not listening yet, that has `address` alone, for a process that is no worker.

    Raises ConfigError if the address is taken, and names the reservation of `beside` that has it.
    """
    family, numeric = _resolve(what, address)
    for item in beside:
        if item.covers(numeric):
            raise ConfigError(f"{what}{address}: {item} has that port: give each its own")
    alone = socket.socket(family, socket.SOCK_STREAM)
    alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _bind(alone, what, numeric)
    alone.settimeout(0.0)
    return alone


def prepare_shared(sock: socket.socket) -> None:
    """Set on a worker's socket, before its bind, the options that go with a `Reservation`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # For the next broker's exclusive bind: connections in TIME_WAIT remember the option of their listener.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def begin_no_handshake(listener: socket.socket) -> None:
    """Have `listener` drop every packet that begins a connection, from now on; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _PROGRAM)
    program = ctypes.create_string_buffer(code, len(code))
    # A kernel without filters: the queue may lose connections.
    with contextlib.suppress(OSError):
        described = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def _resolve(what: str, address: Address) -> tuple[socket.AddressFamily, Address]:
    host, port = address
    try:
        result = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise ConfigError(f"{what}{address}: {reason}") from None
    # IPv4 first: a client given "localhost" may know only one of the two, and then it is this one.
    result.sort(key=lambda info: info[0] != socket.AF_INET)
    chosen, numeric = result[0][0], result[0][4]
    return chosen, Address(str(numeric[0]), int(numeric[1]))


def _bind(sock: socket.socket, what: str, address: Address) -> None:
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        reason = _BIND_REASONS.get(error.errno or 0) or error.strerror or error
        raise ConfigError(f"{what}{address}: {reason}") from None


class Bound(NamedTuple):
    """A listener whose port is this broker's: its name, where workers bind, and what it advertises."""

    name: str
    address: Address
    advertised: Address


def reserve_listeners(settings: Settings, cleanup: ExitStack) -> dict[str, Reservation]:
    """Reserve the ports of all listeners, by name, until `cleanup`; raises ConfigError where one is taken."""
    return {
        wanted_listener.name: cleanup.enter_context(
            reserve(_setting(settings, wanted_listener.name), wanted_listener.address)
        )
        for wanted_listener in wanted_listeners(settings.listeners, settings.listen)
    }


def bind_listeners(settings: Settings, listeners: Sequence[Listener]) -> tuple[Bound, ...]:
    """Return reserved listeners with what they advertise, which a reload may change.

    Raises ConfigError if that is a wildcard, for a client cannot connect to 0.0.0.0, or names an unknown listener; and
    if it is not said how one is secured.
    """
    check_protocols(listeners, settings.listener_security_protocol_map)
    advertised = advertised_by_name(listeners, settings.advertised_listeners)
    if settings.advertised:
        advertised.setdefault(DEFAULT_LISTENER, parse_address(settings.advertised))
    return tuple(
        Bound(
            listener.name, listener.address, advertised.get(listener.name) or _reachable(settings, listener)
        )
        for listener in listeners
    )


def unguarded(settings: Settings, listeners: Sequence[Listener]) -> dict[str, str]:
    """Return which listeners other machines may reach without showing who they are, or without ACLs, and what lacks."""
    result = {}
    for listener in listeners:
        protocol = settings.security_protocol(listener.name)
        certificate = protocol.tls and settings.for_listener(listener.name).ssl_client_auth == "required"
        lacks = [] if protocol.sasl or certificate else ["no authentication"]
        lacks += [] if settings.authorizer_class_name else ["no authorizer"]
        if lacks and not is_local(listener.address.host):
            result[listener.name] = " and ".join(lacks)
    return result


def endpoints(listeners: Sequence[Bound]) -> dict[str, Endpoint]:
    """Return what clients get, by listener, the first first."""
    return {listener.name: Endpoint(*listener.advertised) for listener in listeners}


def in_settings(listeners: Sequence[Bound]) -> dict[str, str]:
    """Return `listeners` and `advertised.listeners` as they are in effect."""
    return {
        "listeners": ",".join(str(Listener(listener.name, listener.address)) for listener in listeners),
        "advertised.listeners": ",".join(
            str(Listener(listener.name, listener.advertised)) for listener in listeners
        ),
    }


def _reachable(settings: Settings, listener: Listener) -> Address:
    if listener.address.host in WILDCARDS:
        how = "advertised.listeners" if settings.listeners else "advertised (--advertised HOST:PORT)"
        setting = _setting(settings, listener.name)
        raise ConfigError(
            f"{setting}{listener.address} is not an address that clients can connect to: set {how} too"
        )
    return listener.address


def _setting(settings: Settings, name: str) -> str:
    return f"listeners {name}://" if settings.listeners else "listen "
