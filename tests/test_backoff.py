"""Pauses between attempts: how they grow, when they start again, and how far they differ."""

from __future__ import annotations

from korvet.backoff import Backoff


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(0.0) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    for _ in range(10_000):
        assert backoff.delay_s(0.0) == 10.0


def test_a_life_that_was_long_enough_starts_again_without_a_wait() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_s(0.0)
    assert backoff.delay_s(60.0) == 0.0
    assert backoff.delay_s(0.0) == 0.1


def test_how_long_is_long_enough_depends_on_the_child() -> None:
    backoff = Backoff(lived_s=60.0)
    assert [backoff.delay_s(5.0) for _ in range(3)] == [0.1, 0.2, 0.4]
    assert backoff.delay_s(60.0) == 0.0


def test_pauses_differ_by_the_jitter() -> None:
    backoff = Backoff(first_s=1.0, max_s=1.0, jitter=0.25)
    pauses = [backoff.next_s() for _ in range(200)]
    assert 0.75 <= min(pauses) < 0.9
    assert 1.1 < max(pauses) <= 1.25


def test_a_reset_starts_again_with_the_shortest_pause() -> None:
    backoff = Backoff(first_s=0.05, max_s=1.0)
    assert [backoff.next_s() for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.05
