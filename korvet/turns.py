"""Turns of greenlets: long loops let others run, so that one large request delays no other connection.

A loop calls `give_turn` for each of its elements, or goes through `in_turns`, or over a LongArray. All of them share
one count and one clock: if none has given a turn for TURN_SECONDS, the next one lets all others run that are ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import gevent

T = TypeVar("T")

TURN_SECONDS = 0.005
"""How long a loop runs before others do: a turn costs 3 us."""

SHORTEST_SECONDS = 1e-6
"""A pause after which the event loop has looked at all sockets."""

CALLS_PER_LOOK = 32
"""Elements between two looks at the clock: most cost less than the look."""


class _Turns:
    """The turns of this process, which has one event loop."""

    calls_left = CALLS_PER_LOOK
    given_at = 0.0


def give_turn(cost: int = 1) -> None:
    """Let other greenlets run if none has for a while; what costs CALLS_PER_LOOK has it looked at now."""
    _Turns.calls_left -= cost
    if _Turns.calls_left > 0:
        return
    _Turns.calls_left = CALLS_PER_LOOK
    if time.monotonic() - _Turns.given_at > TURN_SECONDS:
        # Not 0: gevent looks at no socket before it has run 50 such callbacks, which is a second of turns.
        gevent.sleep(SHORTEST_SECONDS)
        _Turns.given_at = time.monotonic()


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and give turns between them."""
    for item in items:
        give_turn()
        yield item


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in slices of `size` at the most, one at least, and give a turn before each."""
    for start in range(0, max(len(items), 1), size):
        give_turn(CALLS_PER_LOOK)
        yield items[start : start + size]


class LongArray(list[T]):
    """A long array of a request: it gives turns as it is filled and as it is gone through."""

    def append(self, item: T) -> None:
        give_turn()
        super().append(item)

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the items, which gives turns."""
        return in_turns(super().__iter__())
