"""The audit log: refused logins and changes by administrators, each as one line of the logger `korvet.audit`.

A line says who, from where, by which listener, and what. It never holds a password, a key or a token.
"""

from __future__ import annotations

from korvet.logs import Log, RateLimitedLogger
from korvet.security.session import Session

LINES_MAX = 100
"""Refusals of one kind that are written in ten seconds: a client that tries again and again is one event."""

_log = Log("korvet.audit")
_rate_limited_log = RateLimitedLogger(_log, burst=LINES_MAX)


def refused(session: Session, kind: str, /, **fields: object) -> None:
    """Note that a client was refused something; `kind` is one of few."""
    _rate_limited_log.warning(kind, kind, **_who(session), **fields)


def changed(session: Session, what: str, /, **fields: object) -> None:
    """Note that a client has changed something that is the administrators'."""
    _log.info(what, **_who(session), **fields)


def _who(session: Session) -> dict[str, object]:
    return {"principal": session.principal, "peer": session.peer, "listener": session.listener}
