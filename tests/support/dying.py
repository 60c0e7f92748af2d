"""A process that is killed at one of its requests to Redis, as the process itself would see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis


class Dying:
    """Lets a worker be killed by an error of its client, until it `lives` again."""

    def __init__(self, redis: Redis) -> None:
        self._begins = {node: node._begin for node in redis.nodes()}
        self.was_killed = False

    def at(self, request: int, *, served: bool = False) -> None:
        """Have it be killed at its n-th request from now on, before or after Redis has served that."""
        left = itertools.count(request, -1)
        self.was_killed = False

        def killed(begin: Callable[..., Any], *args: Any, **options: Any) -> Any:
            remaining = next(left)
            if remaining > 0 or (remaining == 0 and served):
                waiter = begin(*args, **options)
                if remaining > 0:
                    return waiter
            self.was_killed = True
            raise StorageUnavailableError("killed")

        for node, begin in self._begins.items():
            node._begin = partial(killed, begin)  # type: ignore[method-assign]  # the worker dies there

    def lives(self) -> None:
        """Let it live again, once Redis has served what it has sent."""
        for node, begin in self._begins.items():
            node._begin = begin  # type: ignore[method-assign]  # as it was
            node.call("PING")
