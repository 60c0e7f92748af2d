"""The checker finds each kind of violation, and none in a history that holds."""

from __future__ import annotations

import pytest

from tests.jepsen.__main__ import Injected, suspects
from tests.jepsen.checker import check
from tests.jepsen.history import (
    Acknowledged,
    Began,
    Committed,
    Delivered,
    Event,
    Fetched,
    Log,
    Owned,
    Seen,
    Sent,
)


def acknowledged(number: int, offset: int) -> Acknowledged:
    """Return the acknowledgement of a value of an idempotent producer."""
    return Acknowledged("p", 0, number, offset, ordered=True, at=1.0)


LOG: Log = {0: [(0, "p/0"), (1, "p/1"), (3, "p/2")], 1: []}
EVENTS: list[Event] = [
    *(Sent("p", 0, number, 0.0) for number in range(3)),
    acknowledged(0, 0),
    acknowledged(1, 1),
    Began("r", 0, 0, 0.0),
    Began("later", 0, 1, 0.0),
    Seen("r", 0, 0, "p/0", 2.0),
    Seen("r", 0, 1, "p/1", 2.0),
    Seen("r", 0, 3, "p/2", 2.0),
    *(Delivered("g", 0, offset, 2.0) for offset in (0, 1, 3, 3)),
    Owned("g", 1, "a", (0,), 1.0),
    Owned("g", 1, "b", (1,), 1.0),
    Owned("g", 2, "b", (0, 1), 1.0),
    Committed("c", 1, 1.0),
    Fetched("c", 1, 1.5, 1.6),
    Committed("c", 2, 2.0),
    Fetched("c", 1, 1.9, 2.1),
    Fetched("c", 7, 3.0, 3.1),
]


def kinds(events: list[Event], log: Log) -> list[str]:
    return [each.kind for each in check(events, log)]


def test_a_history_that_holds_has_no_violation() -> None:
    assert check(EVENTS, LOG) == []


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ({0: [(1, "p/1"), (3, "p/2")], 1: []}, ["lost"]),
        ({0: [*LOG[0], (4, "p/1")], 1: []}, ["doubled", "reordered", "not delivered"]),
        ({0: [*LOG[0], (4, "q/0")], 1: []}, ["unsent", "not delivered"]),
        ({0: [*LOG[0], (2, "p/1")], 1: []}, ["doubled", "skipped", "not delivered"]),
        (
            {0: [(0, "p/1"), (1, "p/0"), (3, "p/2")], 1: []},
            ["moved", "moved", "reordered", *4 * ["two values"]],
        ),
    ],
)
def test_a_log_that_is_another(log: Log, found: list[str]) -> None:
    log = {partition: sorted(records) for partition, records in log.items()}
    assert sorted(kinds(EVENTS, log)) == sorted(found)


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (acknowledged(2, 4), ["moved"]),
        (acknowledged(2, 1), ["moved", "two values"]),
        (acknowledged(9, 9), ["lost"]),
        (acknowledged(2, -1), []),
        (acknowledged(9, -1), ["lost"]),
        (Seen("r", 0, 1, "p/1", 3.0), ["went back"]),
        (Seen("later", 0, 1, "p/1", 3.0), []),
        (Seen("later", 0, 0, "p/0", 3.0), ["went back"]),
        (Seen("later", 0, 3, "p/2", 3.0), ["skipped"]),
        (Fetched("c", 1, 2.5, 2.6), ["commit went back"]),
        (Owned("g", 2, "a", (1,), 1.0), ["two owners"]),
    ],
)
def test_an_event_that_must_not_be(event: Event, found: list[str]) -> None:
    assert kinds([*EVENTS, event], LOG) == found


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (5.0, []),
        (9.0, ["first"]),
        (15.0, ["first"]),
        (29.0, ["first", "second", "third"]),
        (35.0, ["second", "third"]),
        (0.0, ["first", "second", "third"]),
    ],
)
def test_a_fault_is_suspected_until_the_one_after_the_next_and_for_what_redis_had_not_written(
    at: float, expected: list[str]
) -> None:
    began = [Injected(10.0, "first"), Injected(20.0, "second"), Injected(30.0, "third")]
    assert suspects(began, at) == expected
