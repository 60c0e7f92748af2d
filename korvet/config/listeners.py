"""Named listeners, as Kafka writes them: NAME://HOST:PORT, comma-separated (its `listeners`, `advertised.listeners`).

Knows text and what goes together in it; nothing of sockets. `listen` and `advertised` are the short way to have one
listener, without a name. Kafka compares names without case, so they are read as upper case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import combinations
from typing import NamedTuple

from korvet.config.values import WILDCARDS, Address, parse_address
from korvet.errors import ConfigError

DEFAULT_LISTENER = "PLAINTEXT"
"""Name of the only listener where none was named, as in Kafka's own default."""

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,64})://(?P<host>.*):(?P<port>[0-9]+)")
_FORM = "NAME://HOST:PORT, comma-separated"
_NOT_SPOKEN = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
"""Names that in Kafka say how a listener is secured, and are not to seem so here."""


class Listener(NamedTuple):
    """A name, in upper case, and an address: where to listen, or what clients are told."""

    name: str
    address: Address

    def __str__(self) -> str:
        """Write it as NAME://HOST:PORT."""
        return f"{self.name}://{self.address}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read `NAME://HOST:PORT,...`; an empty host is every interface. Raises ValueError."""
    return tuple(_parse_one(part.strip()) for part in text.split(",")) if text else ()


def listeners_or_none(text: str) -> str:
    """Allow listeners to bind, each name and each port once, or nothing; port 0 lets the kernel choose."""
    allowed = (
        f"{_FORM}, with names of letters, digits, '_' and '-' (not {', '.join(sorted(_NOT_SPOKEN))}: all are"
        " plaintext), and each name and each port once (0 takes a free one), or nothing"
    )
    try:
        found = parse_listeners(text)
    except ValueError:
        return allowed
    clash = any(_share_a_port(one.address, other.address) for one, other in combinations(found, 2))
    secured = not _NOT_SPOKEN.isdisjoint(each.name for each in found)
    return allowed if clash or secured or not _has_each_name_once(found) else ""


def advertised_listeners_or_none(text: str) -> str:
    """Allow listeners at addresses that a client can connect to, each name once, or nothing."""
    allowed = f"{_FORM}, with addresses that clients can connect to and each name once, or nothing"
    try:
        found = parse_listeners(text)
    except ValueError:
        return allowed
    reachable = all(each.address.port and each.address.host not in WILDCARDS for each in found)
    return "" if reachable and _has_each_name_once(found) else allowed


def wanted_listeners(listeners: str, listen: str) -> tuple[Listener, ...]:
    """Return where to listen: `listeners`, or in their place `listen`."""
    return parse_listeners(listeners) or (Listener(DEFAULT_LISTENER, parse_address(listen)),)


def advertised_by_name(listeners: Sequence[Listener], advertised: str) -> dict[str, Address]:
    """Return what `advertised` says of `listeners`, by name; raises ConfigError where it names none of them."""
    told = dict(parse_listeners(advertised))
    names = [each.name for each in listeners]
    if unknown := [name for name in told if name not in names]:
        raise ConfigError(
            f"advertised.listeners: there is no listener {unknown[0]} to connect to, only {', '.join(names)}"
        )
    return told


def _parse_one(text: str) -> Listener:
    found = _LISTENER.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not NAME://HOST:PORT")
    # Kafka's own default has no host, `PLAINTEXT://:9092`: any interface, which `listen` says with 0.0.0.0.
    host = found["host"] or "0.0.0.0"  # noqa: S104 - what was asked for
    address = parse_address(f"{host}:{found['port']}")
    return Listener(found["name"].upper(), address)


def _has_each_name_once(listeners: Sequence[Listener]) -> bool:
    return all(times == 1 for times in Counter(each.name for each in listeners).values())


def _share_a_port(one: Address, other: Address) -> bool:
    """Tell whether two listeners have one port; an IPv4 and an IPv6 address may (KIP-797)."""
    if one.port != other.port or not one.port:
        return False
    try:
        return ip_address(one.host).version == ip_address(other.host).version
    except ValueError:  # a name, which may stand for either
        return True
