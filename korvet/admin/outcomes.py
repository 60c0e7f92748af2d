"""Outcomes of questions about many things at once: for each the answer, or the error that kept it from being told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from korvet.admin.connection import Address
from korvet.admin.errors import AdminError, BadAnswerError

K = TypeVar("K")
T = TypeVar("T")


def settled(outcomes: Mapping[K, T | AdminError]) -> dict[K, T]:
    """Return the outcomes where none is an error; raises the first one that is."""
    values: dict[K, T] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, AdminError):
            raise outcome
        values[key] = outcome
    return values


def for_each(
    address: Address, asked: Iterable[K], found: Mapping[K, T | AdminError]
) -> dict[K, T | AdminError]:
    """Return an outcome for everything that a broker was asked about, and for nothing else."""
    unanswered = BadAnswerError(f"{address} leaves out what it was asked about")
    return {key: found.get(key, unanswered) for key in asked}
