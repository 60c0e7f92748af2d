"""The configuration: which settings there are, what they are worth, and where each value came from.

`load` reads the sources once, at the top; what it returns is passed down. Nothing here is changed afterwards,
and nothing below the command line reads the environment.
"""

from __future__ import annotations

from korvet.config.settings import Row, Settings, Value, rows
from korvet.config.sources import COMMAND_LINE, DEFAULT, ENVIRONMENT, Configuration, load
from korvet.config.values import Address, parse_address, without_secrets

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "ENVIRONMENT",
    "Address",
    "Configuration",
    "Row",
    "Settings",
    "Value",
    "load",
    "parse_address",
    "rows",
    "without_secrets",
]
