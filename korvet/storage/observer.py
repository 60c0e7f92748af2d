"""What connections to Redis tell of themselves to whoever watches them.

Knows the words; nothing of who listens. Every method is called in the middle of something else: it must be short, and
must not wait or raise.
"""

from __future__ import annotations


class Observer:
    """Watches nothing; who wants to know overrides."""

    def round_trip(self, operation: str, seconds: float) -> None:
        """Hear how long Redis took from a command's sending to its answer: a script's name, or a connection's word."""

    def reconnected(self) -> None:
        """Hear that a connection was made in the place of one that was lost."""

    def connect_failed(self) -> None:
        """Hear that Redis could not be reached, or refused the connection."""

    def script_failed(self, script: str, error: str) -> None:
        """Hear that a script answered with an error, such as UNKNOWN_MEMBER_ID, WRONGTYPE or OOM."""


NOBODY = Observer()
"""For connections that nobody watches."""
