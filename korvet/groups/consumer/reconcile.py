"""The steps of a member from what it owns to its target (KIP-848): pure, one step for each heartbeat.

    stable       has its target of its epoch, and may take the next one
    unrevoked    is to revoke partitions; it keeps its epoch until it reports that it does not own them any more
    unreleased   has the epoch of its target, but some of its partitions are still those of other members

A partition belongs to one member at a time: it is another one's only when its owner has reported that it revoked it.
So a member never waits for all others, and a slow one delays only those that are to get its partitions.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from korvet.groups.consumer.types import NOTHING, STABLE, UNRELEASED, UNREVOKED, Owned, Progress

PARTITIONS_AT_ONCE = 1000
"""Partitions that a member gets or frees by one step, a millisecond of Redis: more take more steps."""


def wanted(member: Progress, target: Owned) -> Owned:
    return target - member.owned


def reconcile(
    member: Progress,
    target_epoch: int,
    target: Owned,
    taken: AbstractSet[tuple[str, int]],
    owned: Owned | None,
    unsubscribed: Owned | None,
) -> Progress:
    """Return the member after its next step.

    `target`: only subscribed topics; `taken`: the part of it that others own. `owned`: the partitions that it reports,
    None: unchanged. `unsubscribed`: partitions it owns in topics whose subscription has just ended, None: the
    subscription is unchanged.
    """
    after = _next(member, target_epoch, target, taken, owned, unsubscribed)
    freed = member.owned - after.owned
    if len(freed) <= PARTITIONS_AT_ONCE:
        return after
    revoking = after.revoking | frozenset(sorted(freed)[PARTITIONS_AT_ONCE:])
    return Progress(member.epoch, member.epoch, UNREVOKED, after.assigned & member.assigned, revoking)


def _next(
    member: Progress,
    target_epoch: int,
    target: Owned,
    taken: AbstractSet[tuple[str, int]],
    owned: Owned | None,
    unsubscribed: Owned | None,
) -> Progress:
    if member.phase == STABLE and member.epoch == target_epoch:
        return _without(member, unsubscribed, owned)
    if member.phase == UNREVOKED and _still_owns(owned, member.revoking):
        return _without(member, unsubscribed, owned)
    kept = member.assigned & target
    revoking = member.assigned - kept
    if revoking and _still_owns(owned, revoking):
        return Progress(member.epoch, member.epoch, UNREVOKED, kept, revoking)
    free = target - kept - taken
    if len(free) > PARTITIONS_AT_ONCE:
        free = frozenset(sorted(free)[:PARTITIONS_AT_ONCE])
    phase = UNRELEASED if kept | free != target else STABLE
    # Its client may know the epoch before alone, if the response to an earlier step was lost.
    previous = member.previous if member.epoch == target_epoch else member.epoch
    return Progress(target_epoch, previous, phase, kept | free, NOTHING)


def _still_owns(owned: Owned | None, revoking: Owned) -> bool:
    return owned is None or bool(owned & revoking)


def _without(member: Progress, unsubscribed: Owned | None, owned: Owned | None) -> Progress:
    """Return the member without what it is not subscribed to any more, which it has to revoke first."""
    dropped = member.assigned & (unsubscribed or NOTHING)
    if not dropped:
        return member
    assigned, revoking = member.assigned - dropped, member.revoking | dropped
    if _still_owns(owned, revoking):
        return Progress(member.epoch, member.epoch, UNREVOKED, assigned, revoking)
    return Progress(member.epoch, member.epoch, member.phase, assigned, member.revoking)
