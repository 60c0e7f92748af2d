"""One finding: what was looked at, how it is, and what to change."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """`error` is what keeps a broker from starting or loses records, `warning` what may hurt under load or one day."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """`advice` says what to change; it is empty where all is well, or nothing can be done."""

    what: str
    level: Level
    said: str
    advice: str = ""


def ok(what: str, said: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(what, Level.OK, said)


def warning(what: str, said: str, advice: str) -> Finding:
    """Return a finding that may hurt under load or one day."""
    return Finding(what, Level.WARNING, said, advice)


def error(what: str, said: str, advice: str) -> Finding:
    """Return a finding that keeps a broker from starting, or loses records."""
    return Finding(what, Level.ERROR, said, advice)


def is_local(host: str) -> bool:
    """Whether a host is this machine and none else."""
    return host.startswith(("localhost", "127.", "::1"))
