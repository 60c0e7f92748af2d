"""One finding: what was looked at, how it is, and what to change."""

from __future__ import annotations

from enum import StrEnum
from functools import partial

import msgspec


class Level(StrEnum):
    """`error` is what keeps a broker from starting or loses records, `warning` what may hurt under load or one day."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """`advice` says what to change; it is empty where all is well, or nothing can be done."""

    what: str
    said: str
    advice: str = ""
    level: Level = Level.OK

    def about(self, node: str) -> Finding:
        """Return it with the name of the server of a cluster that it is about, if there is one."""
        return msgspec.structs.replace(self, said=f"{node}: {self.said}") if node else self


ok = Finding
warning = partial(Finding, level=Level.WARNING)
error = partial(Finding, level=Level.ERROR)


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
