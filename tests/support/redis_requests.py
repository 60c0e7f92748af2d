"""The requests that a client sends to its Redis servers, as it sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from korvet.redis.client import Redis


def requests_of(redis: Redis) -> list[tuple[str, int]]:
    """Return a list that gets the name of each request from now on (a script's name), and how many commands it has."""
    sent: list[tuple[str, int]] = []

    def noted(
        begin: Callable[..., Any], commands: Sequence[object], operation: str, *args: Any, **options: Any
    ) -> Any:
        sent.append((operation, len(commands)))
        return begin(commands, operation, *args, **options)

    for node in redis.nodes():
        node._begin = partial(noted, node._begin)  # type: ignore[method-assign]  # the client has no such hook
    return sent
