"""loadtest/locust/shapes.py: how many users a shape has when."""

from __future__ import annotations

import pytest

from loadtest.locust.shapes import SHAPES, users_at

SECONDS, USERS = 100.0, 20


def course(shape: str) -> list[int]:
    """Return the users of a shape at each tenth of a run."""
    users = [users_at(shape, SECONDS * tenth / 10, SECONDS, USERS) for tenth in range(10)]
    return [user for user in users if user is not None]


def test_steady_has_all_users_all_the_time() -> None:
    assert course("steady") == [20] * 10


def test_a_ramp_adds_a_tenth_of_the_users_at_a_time() -> None:
    assert course("ramp") == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]


def test_a_spike_has_all_users_in_the_middle_fifth_only() -> None:
    assert course("spike") == [5, 5, 5, 5, 20, 20, 5, 5, 5, 5]


def test_users_of_a_soak_go_and_come_again_every_five_minutes() -> None:
    hour = 3600.0
    assert [users_at("soak", minute * 60.0, hour, USERS) for minute in (0, 4, 5, 9, 10, 16)] == [
        *(20, 20, 16),
        *(16, 20, 16),
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_ends_with_its_run_and_always_has_a_user(shape: str) -> None:
    assert users_at(shape, SECONDS, SECONDS, USERS) is None
    assert users_at(shape, SECONDS - 0.001, SECONDS, 1) == 1
    assert users_at(shape, 0.0, SECONDS, 1) == 1
