"""The configuration: which settings there are, what they are worth, and where each value came from.

`load` reads the sources once, at the top; what it returns is passed down, and nothing below the command line reads the
environment. What clients alter while brokers run lies over it (layers.py).
"""

from __future__ import annotations

from korvet.config.dynamic import Layers
from korvet.config.listeners import DEFAULT_LISTENER, Listener, advertised_by_name, wanted_listeners
from korvet.config.settings import ConfigKey, Settings, Value, rows
from korvet.config.sources import COMMAND_LINE, DEFAULT, ENVIRONMENT, BrokerConfig, load
from korvet.config.values import WILDCARDS, Address, parse_address, without_secrets

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "DEFAULT_LISTENER",
    "ENVIRONMENT",
    "WILDCARDS",
    "Address",
    "BrokerConfig",
    "ConfigKey",
    "Layers",
    "Listener",
    "Settings",
    "Value",
    "advertised_by_name",
    "load",
    "parse_address",
    "rows",
    "wanted_listeners",
    "without_secrets",
]
