"""The broker's listeners: where each is bound, and what its clients are told.

Knows the settings and reserved ports; nothing of who accepts connections there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from korvet.config import (
    DEFAULT_LISTENER,
    WILDCARDS,
    Address,
    Listener,
    Settings,
    advertised_by_name,
    parse_address,
    wanted_listeners,
)
from korvet.errors import ConfigError
from korvet.server import ports
from korvet.server.ports import Reservation
from korvet.storage.registration import Endpoint


class Bound(NamedTuple):
    """A listener whose port is this broker's: its name, where workers bind, and what clients are told."""

    name: str
    address: Address
    advertised: Address


def reserve(settings: Settings, cleanup: ExitStack) -> tuple[Reservation, ...]:
    """Reserve the ports of all listeners until `cleanup`; raises ConfigError where one is taken."""
    return tuple(
        cleanup.enter_context(ports.reserve(_setting(settings, each.name), each.address))
        for each in wanted_listeners(settings.listeners, settings.listen)
    )


def reserved(settings: Settings, reservations: Sequence[Reservation]) -> tuple[Listener, ...]:
    """Return the listeners as they are reserved, with the ports that the kernel chose."""
    wanted = wanted_listeners(settings.listeners, settings.listen)
    return tuple(Listener(each.name, found.address) for each, found in zip(wanted, reservations, strict=True))


def bound(settings: Settings, listeners: Sequence[Listener]) -> tuple[Bound, ...]:
    """Return reserved listeners with what their clients are told, which other settings may change.

    Raises ConfigError where that is a wildcard, for a client cannot connect to 0.0.0.0, or a listener's that is not.
    """
    told = advertised_by_name(listeners, settings.advertised_listeners)
    if settings.advertised:
        told.setdefault(DEFAULT_LISTENER, parse_address(settings.advertised))
    return tuple(
        Bound(each.name, each.address, told.get(each.name) or _reachable(settings, each))
        for each in listeners
    )


def endpoints(listeners: Sequence[Bound]) -> dict[str, Endpoint]:
    """Return what clients are told, by listener, the first first."""
    return {each.name: Endpoint(*each.advertised) for each in listeners}


def _reachable(settings: Settings, listener: Listener) -> Address:
    if listener.address.host in WILDCARDS:
        how = "advertised.listeners" if settings.listeners else "advertised (--advertised HOST:PORT)"
        setting = _setting(settings, listener.name)
        raise ConfigError(
            f"{setting}{listener.address} is no address that clients can connect to: also set {how}"
        )
    return listener.address


def _setting(settings: Settings, name: str) -> str:
    """Return what stands before an address where it is told of."""
    return f"listeners {name}://" if settings.listeners else "listen "
