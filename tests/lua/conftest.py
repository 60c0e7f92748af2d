"""A log on an empty server, in each format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.support import BatchLog, Log


@pytest.fixture(params=[Log, BatchLog])
def log(raw_redis: Any, request: pytest.FixtureRequest) -> Log:
    made: Log = request.param(raw_redis)
    return made
