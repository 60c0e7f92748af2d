"""A log on an empty server, in each layout, and with records in each of the forms that the scripts take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from korvet.topics.entry_ids import DENSE
from tests.lua.support import BatchLog, Log

LAYOUTS: dict[str, Callable[[Any], Log]] = {
    "own fields": partial(Log, shared=0),
    "two shared fields": partial(Log, shared=2),
    "three shared fields": partial(Log, shared=3),
    "four shared fields": partial(Log, shared=4),
    "dense": partial(Log, bits=DENSE),
    "batch": BatchLog,
}


@pytest.fixture(params=LAYOUTS)
def log(raw_redis: Any, request: pytest.FixtureRequest) -> Log:
    return LAYOUTS[request.param](raw_redis)
