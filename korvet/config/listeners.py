"""Named listeners, as Kafka writes them: NAME://HOST:PORT, comma-separated (its `listeners`, `advertised.listeners`).

`listen` and `advertised` are the short form for one listener without a name. Kafka compares names without case, so they
are read as upper case. `listener.security.protocol.map` says how each is secured.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from ipaddress import ip_address
from itertools import combinations
from typing import NamedTuple

from korvet.config.values import WILDCARDS, Address, listed, parse_address, read_by
from korvet.errors import ConfigError

DEFAULT_LISTENER = "PLAINTEXT"
"""Name of the only listener if none is named, as in Kafka's own default."""

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,64})://(?P<host>.*):(?P<port>[0-9]+)")
_FORM = "NAME://HOST:PORT, comma-separated"
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MECHANISM = "|".join(re.escape(item.lower()) for item in (*SASL_MECHANISMS, "GSSAPI"))
_OVERRIDE = re.compile(
    rf"listener\.name\.(?P<listener>[a-z0-9_-]{{1,64}}(\.({_MECHANISM}))?)\.(?P<setting>[a-z0-9.-]+)"
)
_VARIABLE = "KORVET_LISTENER_NAME_"


class SecurityProtocol(StrEnum):
    """How a listener is secured: whether by TLS, and whether its clients log in by SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        return self.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.startswith("SASL_")


PROTOCOL_MAP = ",".join(f"{item}:{item}" for item in SecurityProtocol)
"""Kafka's default: a listener that is named like a protocol has it."""


class Listener(NamedTuple):
    """A name, in upper case, and an address: one to bind, or one advertised to clients."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read `NAME://HOST:PORT,...`; an empty host is every interface. Raises ValueError."""
    return tuple(map(_parse_one, listed(text)))


def listeners_to_bind(text: str) -> str:
    """Allow listeners with each name and each port once; port 0 lets the kernel choose."""
    allowed = f"{_FORM}, with names of letters, digits, '_' and '-', and each name and each port once"
    try:
        result = parse_listeners(text)
    except ValueError:
        return allowed
    clash = any(_share_a_port(one.address, other.address) for one, other in combinations(result, 2))
    return allowed if clash or not _has_each_name_once(result) else ""


def advertised_listeners(text: str) -> str:
    """Allow listeners at addresses that a client can connect to, each name once."""
    try:
        results = parse_listeners(text)
    except ValueError:
        results = ()
    reachable = all(result.address.port and result.address.host not in WILDCARDS for result in results)
    if results and reachable and _has_each_name_once(results):
        return ""
    return f"{_FORM}, with addresses that clients can connect to and each name once"


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Read `NAME:PROTOCOL,...`, without case as Kafka does; raises ValueError."""
    pairs = [part.partition(":") for part in listed(text)]
    result = {name.strip().upper(): SecurityProtocol(protocol.strip().upper()) for name, _, protocol in pairs}
    if len(result) != len(pairs) or "" in result:
        raise ValueError("not NAME:PROTOCOL, comma-separated, each name once")
    return result


protocol_map = read_by(
    parse_protocol_map,
    f"NAME:PROTOCOL, comma-separated, each name once, with {', '.join(SecurityProtocol)} as protocols",
)


def split_override(name: str) -> tuple[str, str] | None:
    """Return listener and setting of `listener.name.<listener>.<setting>`; None if `name` is not one.

    With a mechanism, as in `listener.name.<listener>.<mechanism>.<setting>`, that is part of the listener's name.
    """
    result = _OVERRIDE.fullmatch(name)
    return (result["listener"].upper(), result["setting"]) if result else None


def override_of_variable(variable: str, attributes: Collection[str]) -> str:
    """Return the name of the setting that KORVET_LISTENER_NAME_<LISTENER>_<SETTING> gives one listener; "" if none.

    Where names of several settings end a variable, the longest is meant.
    """
    rest = variable.removeprefix(_VARIABLE).lower()
    ends = [attribute for attribute in attributes if rest.endswith(f"_{attribute}")]
    if rest == variable.lower() or not ends:
        return ""
    setting = max(ends, key=len)
    return f"listener.name.{rest.removesuffix(f'_{setting}')}.{setting.replace('_', '.')}"


def wanted_listeners(listeners: str, listen: str) -> tuple[Listener, ...]:
    """Return the listeners to bind: `listeners`, or else `listen`."""
    return parse_listeners(listeners) or (Listener(DEFAULT_LISTENER, parse_address(listen)),)


def advertised_by_name(listeners: Sequence[Listener], advertised: str) -> dict[str, Address]:
    """Return the addresses that `advertised` gives `listeners`, by name; raises ConfigError if it names another."""
    addresses = dict(parse_listeners(advertised))
    names = [listener.name for listener in listeners]
    if unknown := [name for name in addresses if name not in names]:
        raise ConfigError(
            f"advertised.listeners: there is no listener {unknown[0]} to connect to, only {', '.join(names)}"
        )
    return addresses


def check_protocols(listeners: Sequence[Listener], text: str, overridden: Iterable[str] = ()) -> None:
    """Raise ConfigError unless each listener has a protocol; and if one of `overridden` is not a listener."""
    names = [listener.name for listener in listeners]
    protocols = parse_protocol_map(text)
    for name in names:
        if name not in protocols:
            raise ConfigError(
                f"No security protocol defined for listener {name}: add {name}:PLAINTEXT, or another protocol, to"
                f" listener.security.protocol.map = {text}"
            )
    if unknown := [name for name in overridden if name.partition(".")[0] not in names]:
        raise ConfigError(
            f"listener.name.{unknown[0].lower()}: there is no such listener, only {', '.join(names)}"
        )


def _parse_one(text: str) -> Listener:
    result = _LISTENER.fullmatch(text)
    if not result:
        raise ValueError(f"{text!r} is not NAME://HOST:PORT")
    # Kafka's own default has no host, `PLAINTEXT://:9092`: any interface, which `listen` says with 0.0.0.0.
    host = result["host"] or "0.0.0.0"  # noqa: S104 - what was asked for
    return Listener(result["name"].upper(), parse_address(f"{host}:{result['port']}"))


def _has_each_name_once(listeners: Sequence[Listener]) -> bool:
    return len({listener.name for listener in listeners}) == len(listeners)


def _share_a_port(one: Address, other: Address) -> bool:
    """Return whether two listeners have one port; an IPv4 and an IPv6 address may share one (KIP-797)."""
    if one.port != other.port or not one.port:
        return False
    try:
        return ip_address(one.host).version == ip_address(other.host).version
    except ValueError:  # a name, which may stand for either
        return True
