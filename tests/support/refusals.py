"""Calls that must be refused, and outcomes of which none may be an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError


def value(outcomes: Sequence[Any]) -> Any:
    """Return the one outcome, or raise it if it is an error."""
    [outcome] = outcomes
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


def refusal(call: Callable[..., object], *args: Any, **fields: Any) -> ErrorCode:
    """Return the code of the error that a call raises."""
    with pytest.raises(KafkaError) as refused:
        call(*args, **fields)
    return refused.value.code
