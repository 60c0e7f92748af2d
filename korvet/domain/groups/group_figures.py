"""Consumer groups themselves, for whoever watches them: how many members each has, and how often it was rebalanced.

Knows what the figures mean and how those of many groups become few; nothing of how they are taken (group_reader.py),
nor of the form in which they are published.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from korvet.domain.groups.lag_figures import OTHER

STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty")
"""Kafka's names for the states of a group that exists."""


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One group, or several together: then it is named OTHER and `generation` is None.

    `members` are those that have joined; the generation is one more after each rebalance.
    """

    group: str
    members: int
    generation: int | None


def condensed(figures: Sequence[GroupFigures], series_max: int) -> list[GroupFigures]:
    """Return at most `series_max` figures, those of the groups with the most members, and one for the rest."""
    if len(figures) <= series_max:
        return list(figures)
    ordered = sorted(figures, key=lambda one: (-one.members, one.group))
    kept, rest = ordered[:series_max], ordered[series_max:]
    members = sum(one.members for one in rest)
    return [*kept, GroupFigures(group=OTHER, members=members, generation=None)]
