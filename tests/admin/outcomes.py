"""What tests look for in an outcome of a request."""

from __future__ import annotations

from korvet.admin.errors import BrokerError
from korvet.errors import ErrorCode


def code_of(outcome: object) -> ErrorCode | None:
    """Return the code of a broker's error; None for any other outcome."""
    return outcome.code if isinstance(outcome, BrokerError) else None
