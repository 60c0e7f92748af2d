"""The assignor `simple` of share groups (KIP-932): from subscriptions and the last target to the next one. Pure.

Several members may have a partition. Each partition goes to as many members as it takes to give every member at least
one: ceil(members / partitions). The members have as many partitions as each other, give or take one, and keep what they
had as far as that allows. Where members are subscribed to different topics each topic is assigned by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from korvet.groups.consumer.assignors import AssignedMember, Assignor
from korvet.groups.consumer.types import Owned
from korvet.turns import in_turns


def assign_simply(members: Sequence[AssignedMember], topics: Mapping[str, int]) -> dict[str, Owned]:
    assigned: dict[str, set[tuple[str, int]]] = {member.member_id: set() for member in members}
    subscribed = sorted(frozenset[str]().union(*(member.topics for member in members)) & topics.keys())
    is_same = len({member.topics for member in members}) == 1
    for topic_ids in [subscribed] if is_same else [[item] for item in subscribed]:
        partitions = [(topic_id, index) for topic_id in topic_ids for index in range(topics[topic_id])]
        if partitions:
            subscribers = [member for member in members if topic_ids[0] in member.topics]
            _spread(subscribers, partitions, assigned)
    return {member_id: frozenset(item) for member_id, item in assigned.items()}


def _spread(
    members: Sequence[AssignedMember],
    partitions: Sequence[tuple[str, int]],
    assigned: Mapping[str, set[tuple[str, int]]],
) -> None:
    """Add to `assigned` what each of the members is to have of the partitions."""
    sharing = -(-len(members) // len(partitions))
    least, extra = divmod(sharing * len(partitions), len(members))
    holders: dict[tuple[str, int], set[str]] = {item: set() for item in partitions}
    had = {member.member_id: sorted(member.target & holders.keys()) for member in in_turns(members)}
    # Who had the most may have one more: so fewer move.
    by_load = sorted(had, key=lambda member_id: (-len(had[member_id]), member_id))
    lacking = {member_id: least + (place < extra) for place, member_id in enumerate(by_load)}

    def give(partition: tuple[str, int], member_id: str) -> None:
        holders[partition].add(member_id)
        assigned[member_id].add(partition)
        lacking[member_id] -= 1
        if not lacking[member_id]:
            del lacking[member_id]

    # Who had the fewest keeps first: the others have more to give up.
    for member_id in reversed(by_load):
        for partition in in_turns(had[member_id]):
            if member_id in lacking and len(holders[partition]) < sharing:
                give(partition, member_id)
    for partition in in_turns(partitions):
        while len(holders[partition]) < sharing:
            member_id = next((item for item in lacking if item not in holders[partition]), "")
            if not member_id:
                break  # all that could take it have it: others have one more
            give(partition, member_id)


ASSIGNORS: Mapping[str, Assignor] = {"simple": assign_simply}
"""By the names that `group.share.assignors` has for them."""
