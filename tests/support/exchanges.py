"""How often a client of Redis waits for an answer, by its own count: what other clients send does not count."""

from __future__ import annotations

from korvet.redis.observer import Observer


class Exchanges(Observer):
    """Counts them: several commands that are sent at once are one."""

    count = 0

    def round_trip(self, operation: str, seconds: float) -> None:  # noqa: ARG002 - as Observer has it
        self.count += 1
