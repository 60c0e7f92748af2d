"""The budget for bytes of requests: what it holds back, and that somebody always gets on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import gevent
import pytest
from gevent import socket

from korvet.config.settings import Settings
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.server.net.budget import FETCH_BYTES_MIN, Budgets, ByteBudget, Charge, OverBudgetError
from korvet.server.net.framing import SMALL_FRAME_BYTES, ConnectionLimits, FrameReader
from korvet.server.net.socket import Channel
from tests.support.proxy import until
from tests.support.topic_client import produce_request
from tests.support.wire_client import frame, request_frame

SOON, LATE = 0.05, 30.0
PRODUCE = request_frame(produce_request("topic"), 8)
METADATA = request_frame(MetadataRequest(topics=None), 8)


class Reading(NamedTuple):
    """A connection's reader, and the budgets it shares."""

    reader: FrameReader
    budgets: Budgets


@contextlib.contextmanager
def frames(budgets: Budgets | None = None) -> Iterator[tuple[Reading, Callable[[bytes], None]]]:
    """Give a reader and the way to send to it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shared = budgets or Budgets.of(500)
        yield (
            Reading(FrameReader(Channel(ours), ConnectionLimits.of(Settings()), shared), shared),
            theirs.sendall,
        )


@pytest.mark.parametrize(("held", "wanted", "more"), [((80, 0), 50, 0), ((50, 50), 40, 40)])
def test_bytes_are_held_back_until_others_are_returned_and_the_first_may_finish(
    held: tuple[int, int], wanted: int, more: int
) -> None:
    budget = ByteBudget(100)
    first, second = Charge(budget, LATE), Charge(budget, LATE)
    first.add(held[0])
    second.add(held[1])
    waiting = gevent.spawn(second.add, wanted)
    first.add(more)
    gevent.sleep(0)
    assert not waiting.dead
    first.close()
    waiting.get(timeout=LATE)


def test_what_does_not_become_free_in_time_is_over_budget() -> None:
    budget = ByteBudget(100)
    first, second = Charge(budget, SOON), Charge(budget, SOON)
    first.add(80)
    with pytest.raises(OverBudgetError, match="100 bytes"):
        second.add(50)
    with contextlib.closing(second), contextlib.closing(first):
        pass
    Charge(budget, SOON).add(100)


def test_a_request_larger_than_the_budget_passes_alone() -> None:
    budget = ByteBudget(100)
    with contextlib.closing(Charge(budget, SOON)) as large:
        large.add(60)
        large.add(60)
        with pytest.raises(OverBudgetError), contextlib.closing(Charge(budget, SOON)) as other:
            other.add(1)
    Charge(budget, SOON).add(100)


def test_what_was_taken_is_returned_whatever_happens() -> None:
    budget = ByteBudget(100)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), contextlib.closing(Charge(budget, SOON)) as charge:
            charge.add(90)
            raise ZeroDivisionError
    Charge(budget, SOON).add(10)
    with pytest.raises(OverBudgetError):
        Charge(budget, SOON).add(91)


def test_a_greenlet_that_is_killed_while_it_waits_leaves_no_debt() -> None:
    budget = ByteBudget(100)

    def take() -> None:
        with contextlib.closing(Charge(budget, LATE)) as charge:
            charge.add(60)
            charge.add(60)

    first = Charge(budget, LATE)
    first.add(30)
    killed = gevent.spawn(take)
    gevent.sleep(0)
    killed.kill()
    first.close()
    Charge(budget, SOON).add(100)


def test_a_request_is_decoded_only_while_something_is_free() -> None:
    with frames() as (first, send_first), frames(first.budgets) as (second, send_second):
        send_first(PRODUCE)
        held = first.reader.next()
        assert held is not None
        held.reserve_memory(1000)  # more than there was
        send_second(PRODUCE)
        waiting = gevent.spawn(second.reader.next)
        gevent.sleep(0)
        gevent.sleep(0)
        assert not waiting.dead
        send_first(PRODUCE)
        assert first.reader.next_at_once() is None  # it would wait for the one that is held
        with frames(first.budgets) as (third, send_third):
            send_third(METADATA)
            assert third.reader.next() is not None
        held.close()
        waited = waiting.get(timeout=LATE)
        assert waited is not None
        waited.close()


def test_what_is_decoded_and_needed_no_longer_is_free_again() -> None:
    budget = ByteBudget(100)
    first, second = Charge(budget, LATE), Charge(budget, LATE)
    first.reserve(500)
    waiting = gevent.spawn(second.add, 1)
    gevent.sleep(0)
    assert not waiting.dead
    first.reserve(-450)
    waiting.get(timeout=LATE)
    first.close()
    second.close()
    assert budget.free == 100


def test_a_fetch_may_take_a_part_of_what_is_free_and_always_something() -> None:
    budget = ByteBudget(1_000_000)
    first, second = Charge(budget, LATE), Charge(budget, LATE)
    assert first.room == 250_000
    first.reserve(600_000)
    assert second.room == 100_000
    first.reserve(400_000)
    second.reserve(second.room)
    assert second.room == FETCH_BYTES_MIN
    first.close()
    second.close()
    assert budget.free == 1_000_000


def test_what_clients_send_before_they_have_logged_in_is_taken_from_others_by_none() -> None:
    shared = Budgets.of(4 * SMALL_FRAME_BYTES)
    with frames(shared) as (first, send_first), frames(shared) as (second, send_second):
        token = frame(bytes(2 * SMALL_FRAME_BYTES))
        send_first(token[:-1])
        waiting = gevent.spawn(first.reader.next, len(token), raw=True)
        until(lambda: shared.logins.free <= shared.logins.bytes_max - SMALL_FRAME_BYTES)
        assert shared.received.free == shared.received.bytes_max
        produced = request_frame(produce_request("topic", bytes(2 * SMALL_FRAME_BYTES)), 8)
        gevent.spawn(send_second, produced)
        assert second.reader.next() is not None
        assert shared.received.free < shared.received.bytes_max
        waiting.kill()
    assert shared.logins.free == shared.logins.bytes_max
