"""The steps of members towards their targets: every order of steps ends there, and no partition ever has two owners."""

from __future__ import annotations

import random

import pytest

from korvet.groups.consumer.reconcile import reconcile, wanted
from korvet.groups.consumer.types import NOTHING, STABLE, UNRELEASED, UNREVOKED, Owned, Progress


def parts(*indexes: int, topic: str = "t") -> Owned:
    return frozenset((topic, index) for index in indexes)


def test_a_member_with_its_target_stays_as_it_is() -> None:
    member = Progress(3, 2, STABLE, parts(1))
    assert reconcile(member, 3, parts(1), NOTHING, None, None) is member
    assert reconcile(member, 4, parts(1), NOTHING, None, None) == Progress(4, 3, STABLE, parts(1))


def test_what_is_free_is_assigned_at_once() -> None:
    assert reconcile(Progress(), 1, parts(1, 2), NOTHING, NOTHING, None) == Progress(
        1, 0, STABLE, parts(1, 2)
    )


def test_what_others_own_is_waited_for() -> None:
    member = reconcile(Progress(), 1, parts(1, 2), parts(2), NOTHING, None)
    assert member == Progress(1, 0, UNRELEASED, parts(1))
    assert reconcile(member, 1, parts(1, 2), parts(2), None, None).phase == UNRELEASED
    assert reconcile(member, 1, parts(1, 2), NOTHING, None, None) == Progress(1, 0, STABLE, parts(1, 2))


def test_very_many_partitions_are_assigned_by_several_steps() -> None:
    target = parts(*range(5000))
    member = Progress()
    for steps, count in enumerate((1000, 2000, 3000, 4000, 5000), 1):
        member = reconcile(member, 1, target, NOTHING, NOTHING, None)
        assert (len(member.assigned), member.previous) == (count, 0)
        assert member.phase == (STABLE if steps == 5 else UNRELEASED)


def test_very_many_partitions_are_freed_by_several_steps() -> None:
    member = Progress(1, 0, STABLE, parts(*range(2500)))
    member = reconcile(member, 2, parts(0, 3000), NOTHING, None, None)
    assert member == Progress(1, 1, UNREVOKED, parts(0), parts(*range(1, 2500)))
    for count in (1499, 499):
        member = reconcile(member, 2, parts(0, 3000), NOTHING, parts(0), None)
        assert (member.phase, member.assigned, len(member.revoking)) == (UNREVOKED, parts(0), count)
    assert reconcile(member, 2, parts(0, 3000), NOTHING, parts(0), None) == Progress(
        2, 1, STABLE, parts(0, 3000)
    )


@pytest.mark.parametrize("owned", [None, parts(1, 2), parts(2)])
def test_a_member_revokes_before_it_gets_a_new_epoch(owned: Owned | None) -> None:
    member = Progress(1, 0, STABLE, parts(1, 2))
    revoking = reconcile(member, 2, parts(1, 3), NOTHING, owned, None)
    assert revoking == Progress(1, 1, UNREVOKED, parts(1), parts(2))
    assert reconcile(revoking, 3, parts(1, 3), NOTHING, owned, None) == revoking
    done = reconcile(revoking, 3, parts(1, 3), NOTHING, parts(1), None)
    assert done == Progress(3, 1, STABLE, parts(1, 3))


def test_what_was_revoked_already_needs_no_step_of_its_own() -> None:
    member = Progress(1, 0, STABLE, parts(1, 2))
    assert reconcile(member, 2, parts(1), NOTHING, parts(1), None) == Progress(2, 1, STABLE, parts(1))


def test_a_partition_that_is_being_revoked_may_be_assigned_again() -> None:
    member = Progress(1, 1, UNREVOKED, parts(1), parts(2, 3))
    assert wanted(member, parts(1, 2)) == NOTHING
    assert reconcile(member, 3, parts(1, 2), NOTHING, parts(1), None) == Progress(3, 1, STABLE, parts(1, 2))


def test_topics_that_a_member_left_are_revoked_without_a_new_target() -> None:
    member = Progress(1, 0, STABLE, parts(1) | parts(1, topic="u"))
    gone = parts(1, topic="u")
    revoking = reconcile(member, 1, member.assigned, NOTHING, None, gone)
    assert revoking == Progress(1, 1, UNREVOKED, parts(1), gone)
    assert reconcile(member, 1, member.assigned, NOTHING, parts(1), gone) == Progress(1, 1, STABLE, parts(1))
    both = Progress(1, 1, UNREVOKED, parts(1, 2), parts(3))
    assert reconcile(both, 2, parts(1), NOTHING, None, parts(2)) == Progress(
        1, 1, UNREVOKED, parts(1), parts(2, 3)
    )


@pytest.mark.parametrize("seed", range(40))
def test_members_in_any_order_reach_their_targets_and_share_no_partition(seed: int) -> None:
    rng = random.Random(seed)
    members = {name: Progress() for name in "abcd"}
    reported: dict[str, Owned] = dict.fromkeys(members, NOTHING)
    epoch = 0
    targets: dict[str, Owned] = {}
    for _ in range(5):
        epoch += 1
        owners = [rng.choice([*members, None]) for _ in range(12)]
        targets = {name: parts(*(at for at, owner in enumerate(owners) if owner == name)) for name in members}
        for steps in range(400):
            name = rng.choice(sorted(members))
            taken = frozenset[tuple[str, int]]().union(
                *(item.owned for other, item in members.items() if other != name)
            )
            if rng.random() < 0.7:  # a client takes a while to act on an answer
                reported[name] = members[name].assigned
            owned = rng.choice([None, reported[name]])
            members[name] = reconcile(members[name], epoch, targets[name], taken, owned, None)
            every = [item for member in members.values() for item in member.owned]
            assert len(every) == len(set(every))
            if steps > 20 and rng.random() < 0.02:
                break  # the next target comes before all have this one
    for name in sorted(members) * 10:
        taken = frozenset[tuple[str, int]]().union(
            *(item.owned for other, item in members.items() if other != name)
        )
        owned = members[name].assigned
        members[name] = reconcile(members[name], epoch, targets[name], taken, owned, None)
    assert members == {
        name: Progress(epoch, members[name].previous, STABLE, targets[name]) for name in members
    }
