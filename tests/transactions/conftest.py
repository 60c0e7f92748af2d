"""Two processes with transactions, and a topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.config.settings import Settings
from tests.transactions.support import Found, Process, make_topic


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url)


@pytest.fixture
def worker(settings: Settings) -> Iterator[Process]:
    made = Process(settings)
    make_topic(made)
    yield made
    made.dying.lives()
    made.close()


@pytest.fixture
def other(settings: Settings, worker: Process) -> Iterator[Process]:
    """Give another process, of the same topic."""
    made = Process(settings)
    made.topics.refresh()
    yield made
    made.close()


@pytest.fixture
def stored(raw_redis: Any) -> Found:
    return Found(raw_redis)
