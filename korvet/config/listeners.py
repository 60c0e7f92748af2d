"""Named listeners, as Kafka writes them: NAME://HOST:PORT, comma-separated (its `listeners`, `advertised.listeners`).

`listen` and `advertised` are the short form for one listener without a name. Kafka compares names without case, so they
are read as upper case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import combinations
from typing import NamedTuple

from korvet.config.values import WILDCARDS, Address, listed, parse_address
from korvet.errors import ConfigError

DEFAULT_LISTENER = "PLAINTEXT"
"""Name of the only listener if none is named, as in Kafka's own default."""

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,64})://(?P<host>.*):(?P<port>[0-9]+)")
_FORM = "NAME://HOST:PORT, comma-separated"
_NOT_SUPPORTED = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
"""In Kafka these names say how a listener is secured, so no plaintext listener may have them."""


class Listener(NamedTuple):
    """A name, in upper case, and an address: one to bind, or one advertised to clients."""

    name: str
    address: Address

    def __str__(self) -> str:
        """Write it as NAME://HOST:PORT."""
        return f"{self.name}://{self.address}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read `NAME://HOST:PORT,...`; an empty host is every interface. Raises ValueError."""
    return tuple(map(_parse_one, listed(text)))


def listeners_to_bind(text: str) -> str:
    """Allow listeners with each name and each port once; port 0 lets the kernel choose."""
    allowed = (
        f"{_FORM}, with names of letters, digits, '_' and '-' (not {', '.join(sorted(_NOT_SUPPORTED))}: all are"
        " plaintext), and each name and each port once"
    )
    try:
        found = parse_listeners(text)
    except ValueError:
        return allowed
    clash = any(_share_a_port(one.address, other.address) for one, other in combinations(found, 2))
    secured = not _NOT_SUPPORTED.isdisjoint(each.name for each in found)
    return allowed if clash or secured or not _has_each_name_once(found) else ""


def advertised_listeners(text: str) -> str:
    """Allow listeners at addresses that a client can connect to, each name once."""
    try:
        found = parse_listeners(text)
    except ValueError:
        found = ()
    reachable = all(each.address.port and each.address.host not in WILDCARDS for each in found)
    if found and reachable and _has_each_name_once(found):
        return ""
    return f"{_FORM}, with addresses that clients can connect to and each name once"


def wanted_listeners(listeners: str, listen: str) -> tuple[Listener, ...]:
    """Return the listeners to bind: `listeners`, or else `listen`."""
    return parse_listeners(listeners) or (Listener(DEFAULT_LISTENER, parse_address(listen)),)


def advertised_by_name(listeners: Sequence[Listener], advertised: str) -> dict[str, Address]:
    """Return the addresses that `advertised` gives `listeners`, by name; raises ConfigError if it names another."""
    addresses = dict(parse_listeners(advertised))
    names = [each.name for each in listeners]
    if unknown := [name for name in addresses if name not in names]:
        raise ConfigError(
            f"advertised.listeners: there is no listener {unknown[0]} to connect to, only {', '.join(names)}"
        )
    return addresses


def _parse_one(text: str) -> Listener:
    found = _LISTENER.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not NAME://HOST:PORT")
    # Kafka's own default has no host, `PLAINTEXT://:9092`: any interface, which `listen` says with 0.0.0.0.
    host = found["host"] or "0.0.0.0"  # noqa: S104 - what was asked for
    return Listener(found["name"].upper(), parse_address(f"{host}:{found['port']}"))


def _has_each_name_once(listeners: Sequence[Listener]) -> bool:
    return len({each.name for each in listeners}) == len(listeners)


def _share_a_port(one: Address, other: Address) -> bool:
    """Return whether two listeners have one port; an IPv4 and an IPv6 address may share one (KIP-797)."""
    if one.port != other.port or not one.port:
        return False
    try:
        return ip_address(one.host).version == ip_address(other.host).version
    except ValueError:  # a name, which may stand for either
        return True
