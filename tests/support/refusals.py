"""Calls that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError


def refusal(call: Callable[..., object], *args: Any, **fields: Any) -> ErrorCode:
    """Return the code of the error that a call raises."""
    with pytest.raises(KafkaError) as refused:
        call(*args, **fields)
    return refused.value.code
