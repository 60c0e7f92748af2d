"""The checker finds each kind of violation, and none in a history that holds."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.jepsen.__main__ import Injected, Row, count_acknowledged, suspects
from tests.jepsen.checker import check, check_copies, check_dense, check_failures, check_shares
from tests.jepsen.history import (
    Acknowledged,
    Acquisition,
    Began,
    Committed,
    Committing,
    Delivered,
    Departed,
    Ended,
    Event,
    Failed,
    Fetched,
    Log,
    Owned,
    Put,
    Revoked,
    Seen,
    Sent,
    Settled,
    Settling,
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
    Owned("k", -1, "a", (0, 1), 1.0),
    Revoked("k", "a", (1,), lost=False, at=2.0),
    Owned("k", -1, "b", (1,), 2.5),
    Committed("k/0", 5, 4.0, "a", 3.5),
    Owned("k", -1, "b", (0,), 5.0),
    Revoked("k", "a", (0,), lost=True, at=6.0),
    Fetched("k/0", 5, 5.0, 5.1),
]


def kinds(events: list[Event], log: Log) -> list[str]:
    return [item.kind for item in check(events, log)]


def test_a_history_that_holds_has_no_violation() -> None:
    assert check(EVENTS, LOG) == []


@pytest.mark.parametrize(
    ("log", "result"),
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
def test_a_log_that_is_another(log: Log, result: list[str]) -> None:
    log = {partition: sorted(records) for partition, records in log.items()}
    assert sorted(kinds(EVENTS, log)) == sorted(result)


@pytest.mark.parametrize(
    ("event", "result"),
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
        (Seen("later", 0, 2, "external", 3.0), ["unsent", "skipped"]),
        (Delivered("g", 0, 1, 2.0, "p/2"), []),
        (Delivered("h", 0, 1, 2.0), ["not delivered"]),
        (Fetched("c", 1, 2.5, 2.6), ["commit went back"]),
        (Owned("g", 2, "a", (1,), 1.0), ["same generation"]),
        (Owned("k", -1, "c", (1,), 1.5), ["two owners"]),
        (Owned("k", -1, "c", (0,), 3.0), ["two owners"]),
        (Committed("k/0", 6, 5.5, "a", 5.4), ["two owners"]),
        (Owned("k", -1, "c", (0,), 5.5), []),
        (Fetched("k/0", 4, 5.2, 5.3), ["commit went back"]),
    ],
)
def test_an_event_that_must_not_be(event: Event, result: list[str]) -> None:
    assert kinds([*EVENTS, event], LOG) == result


# Acknowledged without an offset, which an XADD does not know; the answer to number 1 was lost.
ADDED: list[Event] = [
    *(Sent("w", 0, number, 0.0) for number in range(3)),
    *(Acknowledged("w", 0, number, -1, ordered=True, at=1.0) for number in (0, 2)),
    *(Delivered("g", 0, offset, 2.0, value) for offset, value in enumerate(("w/0", "w/9", "w/1", "w/2"))),
    Delivered("g", 0, 1, 3.0, "w/2"),
]


@pytest.mark.parametrize(
    ("values", "result"),
    [
        (["w/0", "w/2"], []),
        (["w/0"], ["lost"]),
        (["w/0", "w/2", "w/1", "w/2"], ["doubled", "reordered"]),
        (["w/2", "w/0"], ["reordered", "not delivered"]),
        (["w/0", "w/1", "w/2"], ["not delivered"]),
    ],
)
def test_entries_of_a_writer_come_once_in_its_order_and_to_a_group_at_their_offsets(
    values: list[str], result: list[str]
) -> None:
    assert kinds(ADDED, {0: list(enumerate(values))}) == result


def test_offsets_that_count_records_have_no_gap() -> None:
    whole = [(0, "p/0"), (1, "p/1")]
    assert check_dense({0: whole, 1: []}) == []
    assert [item.kind for item in check_dense({0: whole, 1: whole[1:]})] == ["gap"]


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


def test_a_client_that_failed_is_found_unless_librdkafka_hung() -> None:
    hung = Failed("copier.1", "TimeoutError('send_offsets_to_transaction has not returned for 40.0 s')", 1.0)
    failed = Failed("writer.1", "TimeoutError('init_transactions has not returned for 40.0 s')", 2.0)
    assert [violation.text for violation in check_failures([hung, failed])] == [f"writer.1: {failed.error}"]


def test_a_stall_is_the_longest_of_a_fault_and_put_down_to_the_one_it_ends_in() -> None:
    events = [
        acknowledged(number, number)._replace(at=time) for number, time in enumerate((1.0, 4.0, 5.0, 9.0))
    ]
    rows = defaultdict[str, Row](Row)
    count_acknowledged(events, [Injected(3.0, "forward"), Injected(8.0, "forward")], rows)
    assert {name: row.stalls for name, row in rows.items()} == {"none": [0.0], "forward": [3.0, 4.0]}


TRANSACTIONS: list[Event] = [
    *(Put("committed", partition, number, None, 1.0) for number, partition in enumerate((0, 1, 0))),
    *(Put("aborted", partition, number, None, 1.0) for number, partition in enumerate((0, 1))),
    *(
        Put(name, partition, number, None, 1.0)
        for name in ("some", "none")
        for number, partition in enumerate((0, 1))
    ),
    Put("open", 0, 0, None, 1.0),
    *(Committing(name, 1.0) for name in ("committed", "some", "none")),
    Ended("committed", committed=True, at=2.0),
    Ended("aborted", committed=False, at=2.0),
    Began("r", 0, 0, 0.0),
    Seen("r", 0, 0, "committed/0", 3.0),
    Seen("r", 0, 1, "committed/2", 3.0),
]
IN_ZERO = [(0, "committed/0"), (1, "committed/2"), (5, "some/0")]
IN_ONE = [(0, "committed/1"), (3, "some/1")]


def test_transactions_that_hold_have_no_violation() -> None:
    """Those without an answer to their commit are in the log, all of it, or nothing."""
    assert check(TRANSACTIONS, {0: IN_ZERO, 1: IN_ONE}) == []


@pytest.mark.parametrize(
    ("zero", "one", "result"),
    [
        ([*IN_ZERO, (7, "aborted/0")], IN_ONE, ["aborted read"]),
        ([*IN_ZERO, (7, "open/0")], IN_ONE, ["aborted read"]),
        (IN_ZERO, IN_ONE[1:], ["torn commit"]),
        (IN_ZERO, IN_ONE[:1], ["torn commit"]),
        ([*IN_ZERO, (7, "none/0")], IN_ONE, ["torn commit"]),
        ([(5, "some/0")], IN_ONE[1:], ["aborted read", "aborted read", "lost commit"]),
        ([*IN_ZERO, (7, "some/0")], IN_ONE, ["doubled"]),
        (IN_ZERO, [*IN_ONE, (2, "some/0")], ["unsent"]),
        ([*IN_ZERO, (4, "committed/0")], IN_ONE, ["doubled", "reordered"]),
    ],
)
def test_transactions_that_are_not_all_or_nothing(
    zero: list[tuple[int, str]], one: list[tuple[int, str]], result: list[str]
) -> None:
    assert sorted(kinds(TRANSACTIONS, {0: sorted(zero), 1: sorted(one)})) == sorted(result)


def test_a_transaction_whose_values_are_in_another_order() -> None:
    log = {0: [(0, "committed/2"), (1, "committed/0"), (5, "some/0")], 1: IN_ONE}
    unread: list[Event] = [item for item in TRANSACTIONS if not isinstance(item, Seen)]
    assert kinds(unread, log) == ["reordered"]


@pytest.mark.parametrize(
    ("event", "result"),
    [
        (Seen("r", 0, 2, "aborted/0", 4.0), "aborted read"),
        (Seen("r", 0, 2, "none/0", 4.0), "aborted read"),
        (Seen("r", 0, 9, "some/0", 4.0), "aborted read"),
        (Ended("committed", committed=False, at=4.0), "two ends"),
    ],
)
def test_an_event_of_a_transaction_that_must_not_be(event: Event, result: str) -> None:
    assert result in kinds([*TRANSACTIONS, event], {0: IN_ZERO, 1: IN_ONE})


COPIES: list[Event] = [
    Put("copy", 0, 0, (0, 0, "p/0"), 1.0),
    Put("copy", 1, 1, (0, 1, "p/1"), 1.0),
    Put("again", 1, 0, (0, 1, "p/1"), 1.0),
    Put("early", 0, 0, (0, 2, "p/9"), 1.0),
]


@pytest.mark.parametrize(
    ("zero", "one", "result"),
    [
        (["copy/0"], ["copy/1"], []),
        (["copy/0"], ["again/0"], []),
        (["copy/0"], [], ["not copied"]),
        (["copy/0"], ["copy/1", "again/0"], ["copied twice"]),
        (["copy/0", "early/0"], ["copy/1"], ["aborted read"]),
    ],
)
def test_each_value_is_copied_once(zero: list[str], one: list[str], result: list[str]) -> None:
    log = {0: list(enumerate(zero)), 1: list(enumerate(one))}
    sources = {0: [(0, "p/0"), (1, "p/1")]}
    assert [check_copy.kind for check_copy in check_copies(COPIES, log, sources)] == result


LOCK, DELIVERIES_MAX = 5.0, 3


def came(member: str, offset: int, count: int, at: float) -> Acquisition:
    """Return that a record came to a member of the share group, at once."""
    return Acquisition("s", member, 0, offset, count, at, at)


def settle(member: str, offset: int, count: int, at: float, *, accept: bool = True) -> list[Event]:
    """Return that a member accepts or releases a record, which is answered soon."""
    what = ("s", member, 0, offset, count, accept)
    return [Settling(*what, at), Settled(*what, at + 0.1)]


SHARES: list[Event] = [
    # Accepted at once; released, and accepted by another; its lock ended, and it is accepted too late.
    came("a", 0, 1, 1.0),
    *settle("a", 0, 1, 2.0),
    came("a", 1, 1, 1.0),
    *settle("a", 1, 1, 2.0, accept=False),
    came("b", 1, 2, 2.1),
    *settle("b", 1, 2, 2.2),
    came("a", 3, 1, 1.0),
    came("b", 3, 2, 6.1),
    *settle("b", 3, 2, 6.2),
    *settle("a", 3, 1, 7.0),
    # The same, but it came to the other one twice.
    came("a", 7, 1, 1.0),
    came("b", 7, 2, 6.1),
    *settle("b", 7, 2, 6.2, accept=False),
    came("b", 7, 3, 6.4),
    *settle("b", 7, 3, 6.5),
    *settle("a", 7, 1, 7.0),
    # The answer was lost: it may be accepted, or come again at once.
    came("c", 4, 1, 1.0),
    Settling("s", "c", 0, 4, 1, accept=True, at=2.0),
    came("c", 5, 1, 1.0),
    Settling("s", "c", 0, 5, 1, accept=True, at=2.0),
    came("b", 5, 2, 2.1),
    *settle("b", 5, 2, 2.2),
    # Its member was killed, and the deliveries are used up.
    came("d", 6, 1, 1.0),
    Departed("d", 1.5),
    came("b", 6, 3, 1.6),
]
SHARED: Log = {0: [(offset, f"p/{offset}") for offset in (0, 1, 3, 4, 5, 6, 7)], 1: []}


def share_kinds(events: list[Event], log: Log) -> list[str]:
    return sorted(check_share.kind for check_share in check_shares(events, log, LOCK, DELIVERIES_MAX))


def test_shares_that_hold_have_no_violation() -> None:
    assert check_shares(SHARES, SHARED, LOCK, DELIVERIES_MAX) == []


def test_a_record_that_nobody_accepts_or_gets() -> None:
    log = {0: [*SHARED[0], (8, "p/8"), (9, "p/9")], 1: [(0, "p/10")]}
    released = [came("b", 8, 1, 8.0), *settle("b", 8, 1, 8.1, accept=False)]
    assert share_kinds([*SHARES, *released], log) == 3 * ["not accepted"]


@pytest.mark.parametrize(
    ("event", "result"),
    [
        # However late: a lock that ended before leaves no right to accept.
        (came("b", 0, 2, 60.0), ["accepted again"]),
        (came("b", 0, 2, 1.5), ["accepted again", "taken"]),
        (came("b", 0, 1, 60.0), ["same count"]),
        (came("a", 1, 1, 2.3), ["same count"]),
        (came("a", 1, 3, 60.0), ["accepted again"]),
        (came("b", 4, 2, 1.9), ["taken"]),
        (came("b", 4, 2, 2.1), []),
        (came("e", 6, 2, 1.55), ["taken"]),
    ],
)
def test_a_delivery_that_must_not_be(event: Event, result: list[str]) -> None:
    assert share_kinds([*SHARES, event], SHARED) == result


def test_an_acceptance_of_what_another_one_has_already() -> None:
    late = [came("a", 8, 1, 1.0), came("b", 8, 2, 6.1), *settle("a", 8, 1, 7.0), *settle("b", 8, 2, 8.0)]
    assert share_kinds([*SHARES, *late], SHARED) == ["accepted again"]
    # The fault that lost an acceptance came after that, and maybe long before the next delivery.
    again = check_shares([*SHARES, came("b", 0, 2, 60.0)], SHARED, LOCK, DELIVERIES_MAX)
    assert [item.at for item in again] == [2.1]
