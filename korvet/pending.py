"""What is under way: something was begun, and its result is waited for later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """Something under way."""

    def result(self) -> T_co:
        """Wait for the result and return it, or raise what prevented it; to be called once."""


class SendOrder:
    """Whether what is sent from now on can overtake what was sent before and is not answered.

    A refused request is sent again, behind all requests sent meanwhile. If the reason has ended by then, those were not
    refused. So followers (`follow`) hear whenever such a reason ends: a slot has moved, a script or an epoch is known.
    """

    __slots__ = ("_followers",)

    def __init__(self) -> None:
        self._followers: list[Callable[[], object]] = []

    def follow(self, call: Callable[[], object]) -> None:
        """Call `call`, which must not wait, at each change from now on."""
        self._followers.append(call)

    def change(self) -> None:
        """Note that what was refused until now is not refused from now on."""
        for call in self._followers:
            call()


class Done(Generic[T]):
    """A result that is known already."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def result(self) -> T:
        return self._value


class Then(Generic[S, T]):
    """What follows from another result: `step` makes its own of that one."""

    __slots__ = ("_first", "_step")

    def __init__(self, first: Pending[S], step: Callable[[S], T]) -> None:
        self._first, self._step = first, step

    def result(self) -> T:
        """Wait for the other's result, and return what follows from it."""
        return self._step(self._first.result())
