"""Two workers that serve one streams group, on an empty server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.groups.streams.support import Application
from tests.support.domain import domain


@pytest.fixture
def at(redis_url: str, raw_redis: Any) -> Iterator[Application]:
    with domain(redis_url) as made:
        yield Application(made, raw_redis)


@pytest.fixture
def other(redis_url: str, raw_redis: Any, at: Application) -> Iterator[Application]:
    assert at is not None
    with domain(redis_url) as made:
        yield Application(made, raw_redis)
