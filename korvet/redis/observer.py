"""What connections to Redis report, such as to the metrics."""

from __future__ import annotations


class Observer:
    """What connections report to a listener; this one ignores it.

    Every method is called in the middle of something else: it must be short, and must not wait or raise.
    """

    def round_trip(self, operation: str, seconds: float) -> None:
        """Note the seconds from the begin of an operation (a script's name, or a client's word) to its last reply.

        Waits for a connection and for room are among them. One that has no reply at all is not noted.
        """

    def reconnected(self) -> None:
        """Note that a new connection replaced one that was lost."""

    def connect_failed(self) -> None:
        """Note that Redis could not be reached, or refused the connection."""

    def script_failed(self, script: str, error: str) -> None:
        """Note that a script answered with an error, such as UNKNOWN_MEMBER_ID, WRONGTYPE or OOM."""


NO_OBSERVER = Observer()
