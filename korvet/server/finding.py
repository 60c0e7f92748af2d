"""One finding of a check: what was looked at, how it is, and what to change.

A start and `korvet doctor` have the same checks. A start ends with the first finding that is fatal, and logs all others
that are not ok; doctor prints them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import partial

import msgspec

from korvet.errors import ConfigError
from korvet.logs import Log

_log = Log(__name__)


class Level(StrEnum):
    """`error` is what keeps a broker from starting or loses records, `warning` what may hurt under load or one day."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """`advice` says what to change; it is empty where all is well, or nothing can be done.

    `is_fatal`: with it no broker starts.
    """

    what: str
    said: str
    advice: str = ""
    level: Level = Level.OK
    is_fatal: bool = False

    def about(self, node: str) -> Finding:
        """Return it with the name of the server of a cluster that it is about, if there is one."""
        return msgspec.structs.replace(self, said=f"{node}: {self.said}") if node else self


ok = Finding
warning = partial(Finding, level=Level.WARNING)
error = partial(Finding, level=Level.ERROR)
fatal = partial(Finding, level=Level.ERROR, is_fatal=True)


def require(findings: Iterable[Finding]) -> None:
    """Log what is not ok; raises ConfigError for the first finding that is fatal."""
    for finding in findings:
        if finding.is_fatal:
            raise ConfigError(finding.said)
        if finding.level is not Level.OK:
            _log.warning(finding.said, check=finding.what, advice=finding.advice)


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
