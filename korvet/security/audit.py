"""The audit log: refused logins and requests, and changes by administrators, as lines of the logger `korvet.audit`.

A line says who, from where, by which listener, and what. It never holds a password, a key or a token. Refusals come as
often as a client asks: of each kind some are written, and a later line says how many were left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from korvet.logs import Log, RateLimitedLogger
from korvet.security.session import Session
from korvet.telemetry import metrics

LINES_MAX = 100
"""Refusals of one kind that are written in ten seconds: a client that tries again and again is one event."""
NAMES_MAX = 20
"""Names in one line of what a request has changed, or could not."""

_log = Log("korvet.audit")
_rate_limited_log = RateLimitedLogger(_log, burst=LINES_MAX)


def refused(session: Session, kind: str, /, **fields: object) -> None:
    """Note that a client was refused something; `kind` is one of few."""
    _rate_limited_log.warning(kind, kind, **_who(session), **fields)


def denied(session: Session, api: str, operation: str, resource: str, name: str) -> None:
    """Note that a request was refused, in part or as a whole, for want of a right; as in Kafka that is no warning."""
    metrics.AUTHORIZATION_DENIED.labels(api, operation, resource).inc()
    fields = {"api": api, "operation": operation, "resource": resource, "name": name}
    _rate_limited_log.info(api, "authorization denied", **_who(session), **fields)


def requested(session: Session, api: str, done: Sequence[str], failed: Mapping[str, str]) -> None:
    """Note what an administrative request has changed, and with which errors it has not changed the rest."""
    metrics.ADMIN_CHANGES.labels(api, "done").inc(len(done))
    metrics.ADMIN_CHANGES.labels(api, "failed").inc(len(failed))
    errors = [f"{what} {error}" for what, error in failed.items()]
    parts = {"done": done, "failed": errors}
    _log.info(
        "administrative request",
        **_who(session),
        api=api,
        **{outcome: _listed(names) for outcome, names in parts.items() if names},
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _who(session: Session) -> dict[str, object]:
    return {"principal": session.principal, "peer": session.peer, "listener": session.listener}
