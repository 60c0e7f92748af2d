"""The requests that a client sends to its Redis servers, as it begins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from korvet.redis.client import Redis

Begin = Callable[..., Any]


@contextmanager
def around_requests(redis: Redis, around: Callable[..., Any]) -> Iterator[None]:
    """Call `around` for each request of a client, with the function that begins it and its arguments."""
    driver = redis.driver
    begin, begin_scripts = driver.begin, driver.begin_scripts
    driver.begin, driver.begin_scripts = partial(around, begin), partial(around, begin_scripts)
    try:
        yield
    finally:
        driver.begin, driver.begin_scripts = begin, begin_scripts


def requests_of(redis: Redis) -> list[tuple[str, int]]:
    """Return a list that gets the name of each request from now on (a script's name), and how many commands it has."""
    sent: list[tuple[str, int]] = []
    driver = redis.driver

    def noted(begin: Begin, lane: int, commands: Sequence[object], operation: str, *args: Any) -> Any:
        sent.append((operation, len(commands)))
        return begin(lane, commands, operation, *args)

    driver.begin = partial(noted, driver.begin)
    driver.begin_scripts = partial(noted, driver.begin_scripts)
    return sent
