"""The order in which an upgrade replaces brokers."""

from __future__ import annotations

from tests.jepsen.upgrade import HERE, LATER, Build, steps

_ROUNDS = 3 * ["forward"] + 3 * ["back"]


def names(older: Build, newer: Build) -> list[str]:
    return [name for name, _ in steps(older, newer)]


def test_the_level_is_refused_before_the_last_broker_and_raised_after_it() -> None:
    last = ["forward", "forward", "refuse-level", "forward", "set-level", "refuse-older"]
    assert names(HERE, LATER) == _ROUNDS + last


def test_no_level_is_raised_between_builds_of_one_format() -> None:
    assert names(HERE._replace(program=("older",)), HERE) == _ROUNDS + 3 * ["forward"]
