"""A process that is killed at one of its requests to Redis, as the process itself would see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from tests.support.redis_requests import around_requests


class Dying:
    """Lets a worker be killed by an error of its client, until it `lives` again."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._dies = ExitStack()
        self.was_killed = False

    def at(self, request: int, *, served: bool = False) -> None:
        """Have it be killed at its n-th request from now on, before or after Redis has served that."""
        left = itertools.count(request, -1)
        self.was_killed = False

        def killed(begin: Callable[..., Any], *args: Any) -> Any:
            remaining = next(left)
            if remaining > 0 or (remaining == 0 and served):
                waiter = begin(*args)
                if remaining > 0:
                    return waiter
            self.was_killed = True
            raise StorageUnavailableError("killed")

        self._dies.close()
        self._dies.enter_context(around_requests(self._redis, killed))

    def lives(self) -> None:
        """Let it live again, once Redis has served what it has sent."""
        self._dies.close()
        for node in self._redis.nodes():
            node.call("PING")
