"""The budget for bytes of requests: what it holds back, and that somebody always gets on."""

from __future__ import annotations

import contextlib

import gevent
import pytest

from korvet.server.budget import ByteBudget, OverBudgetError

SOON, LATE = 0.05, 30.0


def test_bytes_are_held_back_until_others_are_returned() -> None:
    budget = ByteBudget(100)
    first, second = budget.charge(LATE), budget.charge(LATE)
    first.add(80)
    waiting = gevent.spawn(second.add, 50)
    gevent.sleep(0)
    assert not waiting.dead
    first.close()
    waiting.get(timeout=LATE)


def test_what_does_not_become_free_in_time_is_over_budget() -> None:
    budget = ByteBudget(100)
    first, second = budget.charge(SOON), budget.charge(SOON)
    first.add(80)
    with pytest.raises(OverBudgetError, match="100 bytes"):
        second.add(50)
    with contextlib.closing(second), contextlib.closing(first):
        pass
    budget.charge(SOON).add(100)


def test_two_that_hold_half_each_do_not_wait_for_each_other() -> None:
    budget = ByteBudget(100)
    first, second = budget.charge(LATE), budget.charge(LATE)
    first.add(50)
    second.add(50)
    waiting = gevent.spawn(second.add, 40)
    first.add(40)  # the one that began first may finish
    gevent.sleep(0)
    assert not waiting.dead
    first.close()
    waiting.get(timeout=LATE)


def test_a_request_larger_than_the_budget_passes_alone() -> None:
    budget = ByteBudget(100)
    with contextlib.closing(budget.charge(SOON)) as large:
        large.add(60)
        large.add(60)
        with pytest.raises(OverBudgetError), contextlib.closing(budget.charge(SOON)) as other:
            other.add(1)
    budget.charge(SOON).add(100)


def test_what_was_taken_is_returned_whatever_happens() -> None:
    budget = ByteBudget(100)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), contextlib.closing(budget.charge(SOON)) as charge:
            charge.add(90)
            raise ZeroDivisionError
    budget.charge(SOON).add(10)
    with pytest.raises(OverBudgetError):
        budget.charge(SOON).add(91)


def test_a_greenlet_that_is_killed_while_it_waits_leaves_no_debt() -> None:
    budget = ByteBudget(100)

    def take() -> None:
        with contextlib.closing(budget.charge(LATE)) as charge:
            charge.add(60)
            charge.add(60)

    first = budget.charge(LATE)
    first.add(30)
    killed = gevent.spawn(take)
    gevent.sleep(0)
    killed.kill()
    first.close()
    budget.charge(SOON).add(100)
