"""The requests that a client sends to its Redis servers, as it sends them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from korvet.redis.client import Redis


def requests_of(redis: Redis) -> list[tuple[str, int]]:
    """Return a list that gets the name of each request from now on (a script's name), and how many commands it has."""
    sent: list[tuple[str, int]] = []

    def noted(
        begin: Callable[..., Any], data: bytes, count: int, operation: str, *args: Any, **options: Any
    ) -> Any:
        sent.append((operation, count))
        return begin(data, count, operation, *args, **options)

    for node in redis.nodes():
        node._begin = partial(noted, node._begin)  # type: ignore[method-assign]  # the client has no such hook
    return sent
