"""The connection of a process that is killed at one of its calls: before Redis has run it, or after."""

from __future__ import annotations

import re
from collections.abc import Sequence

from korvet.redis.client import Redis, ScriptCall
from korvet.redis.replies import Arg, Reply


def _hash_tag(key: str) -> str:
    """Return the part of a key by which Redis Cluster chooses its slot."""
    tagged = re.search(r"\{([^}]+)\}", key)
    return tagged[1] if tagged else key


class KilledRedis(Redis):
    """Raises an error at its call number `calls`, which Redis has run if it was `sent`, and at all after it."""

    def __init__(self, url: str, calls: int, error: BaseException, *, sent: bool) -> None:
        super().__init__(url, timeout_ms=5000, connect_timeout_ms=5000)
        self.calls_left = calls
        self._error, self._sent = error, sent

    def pipeline(self, commands: Sequence[Sequence[Arg]], *, reply_bytes: int = 0) -> list[Reply]:
        """Send commands if the process is still there."""
        self._begin()
        replies = super().pipeline(commands, reply_bytes=reply_bytes)
        self._end()
        return replies

    def scripts(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        """Send scripts, each about keys of one slot of Redis Cluster, if the process is still there."""
        for script, keys, _ in calls:
            assert len({_hash_tag(str(key)) for key in keys}) == 1, (script.name, keys)
        self._begin()
        replies = super().scripts(calls)
        self._end()
        return replies

    def _begin(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0 or (self.calls_left == 0 and not self._sent):
            raise self._error

    def _end(self) -> None:
        if self.calls_left == 0:
            raise self._error
