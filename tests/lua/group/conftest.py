"""A group on an empty server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.group.support import Group
from tests.lua.support import STATE, TOPIC_ID


@pytest.fixture
def group(raw_redis: Any) -> Group:
    """Give a group that is not there yet, and a topic to commit for."""
    raw_redis.hset(STATE, "topic", TOPIC_ID)
    return Group(raw_redis)
