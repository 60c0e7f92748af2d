"""Times as an operator writes and reads them: ISO 8601, UTC where no zone is given; milliseconds since 1970 inside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)


def milliseconds_of(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601; raises ValueError, also for one before 1970."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ValueError(f"{text} lies before 1970")
    return milliseconds


def time_of(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC; the bare number where it is beyond the years that have four digits."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
