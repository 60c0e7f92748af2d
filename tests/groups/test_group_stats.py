"""Figures of groups: how those of many become few."""

from __future__ import annotations

from korvet.telemetry.snapshot import GroupStats, summed_groups


def of(group: str, members: int, generation: int | None = 3) -> GroupStats:
    return GroupStats(group=group, members=members, generation=generation)


def test_more_groups_than_wanted_are_summed_and_the_largest_stay() -> None:
    groups = [of("a", 0), of("b", 5), of("c", 2), of("d", 2)]
    assert summed_groups(groups, 4) == groups
    assert summed_groups(groups, 2) == [of("b", 5), of("c", 2), of("(other)", 2, None)]
    assert summed_groups(groups, 0) == [of("(other)", 9, None)]
    assert summed_groups([], 0) == []
