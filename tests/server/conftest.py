"""Fixtures of tests of a broker's processes: settings on a private Redis, a keeper, and a connection to a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.config.settings import Settings
from korvet.server.keeper.keeper import Keeper
from tests.support.fixtures import client

__all__ = ["client", "keeper", "settings"]


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url)


@pytest.fixture
def keeper(settings: Settings) -> Iterator[Keeper]:
    made = Keeper(settings)
    yield made
    made.context.close()
