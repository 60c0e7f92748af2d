"""The budget for what is fetched: that somebody always gets on, and that all is returned."""

from __future__ import annotations

from korvet.server.net.budget import FETCH_BYTES_MIN, ByteBudget, Charge


def test_a_fetch_may_take_a_part_of_what_is_free_and_always_something() -> None:
    budget = ByteBudget(1_000_000)
    first, second = Charge(budget), Charge(budget)
    assert first.room == 250_000
    first.reserve(600_000)
    assert second.room == 100_000
    first.reserve(400_000)
    second.reserve(second.room)
    assert second.room == FETCH_BYTES_MIN
    first.reserve(-600_000)
    assert second.room == (600_000 - FETCH_BYTES_MIN) // 4
    first.close()
    second.close()
    assert budget.free == 1_000_000
