"""What is under way: something was begun, and its result is waited for later.

Between the beginning and the result its owner may begin more. That pays while Redis works: a producer's
next request is checked and sent while the one before it is being written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """Something under way."""

    @property
    def in_order(self) -> bool:
        """Whether what begins from now on takes effect after this.

        Once it does not, nothing else may begin until the results of all that has begun are taken.
        """

    @property
    def ready(self) -> bool:
        """Whether `result` has nothing to wait for, as far as is known."""

    def result(self) -> T_co:
        """Wait for the result and return it, or raise what prevented it; to be called once."""


class SendOrder:
    """Whether what is sent from now on can overtake what was sent before and is not answered.

    What was refused is sent again, behind all that was sent meanwhile. If the reason has ended by then, that was not
    refused. `version` changes whenever such a reason ends: a slot has moved, a script or a leader epoch is known.
    """

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0

    def change(self) -> None:
        """Note that what was refused until now is not refused from now on."""
        self.version += 1


class Done(Generic[T]):
    """A result that is known already: a value, or an exception to raise."""

    __slots__ = ("_outcome",)
    in_order = True
    ready = True

    def __init__(self, outcome: T | Exception) -> None:
        self._outcome = outcome

    def result(self) -> T:
        """Return the value, or raise the exception."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class Then(Generic[S, T]):
    """What follows from another result: `step` makes its own of that one; `waits`: it has something to wait for."""

    __slots__ = ("_first", "_step", "_waits")

    def __init__(self, first: Pending[S], step: Callable[[S], T], *, waits: bool = False) -> None:
        self._first, self._step, self._waits = first, step, waits

    @property
    def in_order(self) -> bool:
        """Whether what begins from now on takes effect after this (Pending)."""
        return self._first.in_order

    @property
    def ready(self) -> bool:
        """Whether `result` has nothing to wait for (Pending)."""
        return self._first.ready and not self._waits

    def result(self) -> T:
        """Wait for the other's result, and return what follows from it."""
        return self._step(self._first.result())
