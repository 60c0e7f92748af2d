"""Whether the clocks of Redis' servers were set: every deadline in Redis was made by them."""

from __future__ import annotations

from collections.abc import Iterable

from korvet.clock import CLOCK, Clock
from korvet.errors import KafkaError
from korvet.redis.client import RedisNode
from korvet.redis.replies import time_ms

JUMP_MS = 2000
"""A clock that has moved by this much more or less than time has passed was set; slewing is far slower."""

_ROUND_TRIP_SECONDS_MAX = 0.5
"""An answer that took longer does not say what time it is."""


class RedisClocks:
    """The clocks of some servers, compared with this machine's monotonic one."""

    def __init__(self, *, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._ahead_ms: dict[RedisNode, float] = {}
        self._kept_ms: dict[RedisNode, float] = {}

    def set_since(self, nodes: Iterable[RedisNode]) -> set[RedisNode]:
        """Return the nodes whose clock was set since `keep`; of one that does not answer that shows later."""
        were_set = set()
        for node in nodes:
            began = self._clock.monotonic()
            try:
                now_ms = time_ms(node.call("TIME"))
            except KafkaError:
                continue
            answered = self._clock.monotonic()
            if answered - began > _ROUND_TRIP_SECONDS_MAX:
                continue
            ahead_ms = now_ms - (began + answered) * 500
            if abs(ahead_ms - self._kept_ms.get(node, ahead_ms)) > JUMP_MS:
                were_set.add(node)
            self._ahead_ms[node] = ahead_ms
        return were_set

    def keep(self) -> None:
        """Compare with the last look from now on: what was to be done because a clock was set is done."""
        self._kept_ms.update(self._ahead_ms)
