"""A transactional id on an empty server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.transaction.support import Transaction


@pytest.fixture
def transaction(raw_redis: Any) -> Transaction:
    return Transaction(raw_redis)
