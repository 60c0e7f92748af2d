"""The assignors of the consumer protocol (KIP-848): from subscriptions and the last target to the next one. Pure.

    range     every topic by itself, in contiguous ranges to its members in the order of their instance or member ids:
              a member has the same partitions of all topics with the same number of them
    uniform   as even as subscriptions allow, and no partition moves that need not

Long loops give turns: a thousand members with ten thousand partitions take some tenths of a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from korvet.groups.consumer.types import Owned
from korvet.turns import in_turns


class AssignedMember(NamedTuple):
    """A member: ids of the topics that it is subscribed to, and what it was to have so far."""

    member_id: str
    instance: str
    topics: frozenset[str]
    target: Owned


Assignor: TypeAlias = Callable[[Sequence[AssignedMember], Mapping[str, int]], dict[str, Owned]]
"""Returns a target for each member, from all members and the number of partitions of each topic by its id."""

_Partition: TypeAlias = tuple[str, int]

_UNEVEN = 2
"""How many partitions more than another a member has when one should move: with one less both would change places."""


def assign_ranges(members: Sequence[AssignedMember], topics: Mapping[str, int]) -> dict[str, Owned]:
    # Static members first: their places stay when they restart.
    ordered = sorted(members, key=lambda item: (not item.instance, item.instance or item.member_id))
    assigned: dict[str, list[_Partition]] = {item.member_id: [] for item in members}
    for topic_id, count in sorted(topics.items()):
        subscribers = [item for item in in_turns(ordered) if topic_id in item.topics]
        begin = 0
        for place, member in enumerate(in_turns(subscribers)):
            end = begin + count // len(subscribers) + (place < count % len(subscribers))
            assigned[member.member_id] += [(topic_id, index) for index in range(begin, end)]
            begin = end
    return {member_id: frozenset(item) for member_id, item in in_turns(assigned.items())}


def assign_uniformly(members: Sequence[AssignedMember], topics: Mapping[str, int]) -> dict[str, Owned]:
    """Assign as many partitions to each member as to any other, as far as subscriptions allow."""
    subscribed = frozenset[str]().union(*(member.topics for member in members))
    topics = {topic_id: count for topic_id, count in topics.items() if topic_id in subscribed}
    assigned, free = _kept(members, topics)
    if len({member.topics for member in members}) <= 1:
        _fill_quotas(assigned, free)
    else:
        subscribers = {
            topic_id: [member.member_id for member in in_turns(members) if topic_id in member.topics]
            for topic_id in topics
        }
        _hand_out(assigned, free, subscribers)
        _balance(assigned, subscribers, topics)
    return {member_id: frozenset(item) for member_id, item in in_turns(assigned.items())}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""By the names that members and `group.consumer.assignors` have for them."""


def _kept(
    members: Sequence[AssignedMember], topics: Mapping[str, int]
) -> tuple[dict[str, set[_Partition]], list[_Partition]]:
    """Return for each member what it had and can keep, and the partitions that nobody has."""
    taken: set[_Partition] = set()
    assigned: dict[str, set[_Partition]] = {}
    for member in in_turns(members):
        own = {
            (topic_id, index)
            for topic_id, index in in_turns(member.target)
            if topic_id in member.topics and index < topics.get(topic_id, 0)
        } - taken
        taken |= own
        assigned[member.member_id] = own
    every = ((topic_id, index) for topic_id, count in sorted(topics.items()) for index in range(count))
    return assigned, [item for item in in_turns(every) if item not in taken]


def _fill_quotas(assigned: dict[str, set[_Partition]], free: list[_Partition]) -> None:
    """Give all members with the same subscription the same number of partitions, one more to some."""
    if not assigned:
        return
    total = len(free) + sum(map(len, assigned.values()))
    least, extra = divmod(total, len(assigned))
    # Who has the most keeps one more: so fewer move.
    by_load = sorted(assigned, key=lambda member_id: (-len(assigned[member_id]), member_id))
    quotas = {member_id: least + (place < extra) for place, member_id in enumerate(by_load)}
    for member_id, quota in in_turns(quotas.items()):
        own = assigned[member_id]
        if len(own) > quota:
            surplus = sorted(own)[quota:]
            own.difference_update(surplus)
            free += surplus
    free.sort(reverse=True)
    for member_id in in_turns(sorted(assigned)):
        own = assigned[member_id]
        for _ in in_turns(range(quotas[member_id] - len(own))):
            own.add(free.pop())


def _hand_out(
    assigned: dict[str, set[_Partition]], free: list[_Partition], subscribers: Mapping[str, Sequence[str]]
) -> None:
    """Give each partition that nobody has to the least loaded of its subscribers, those with few subscribers first."""
    free.sort(key=lambda item: (len(subscribers[item[0]]), item))
    heaps: dict[str, list[tuple[int, str]]] = {}
    for partition in in_turns(free):
        topic_id = partition[0]
        heap = heaps.get(topic_id)
        if heap is None:
            heap = heaps[topic_id] = [(len(assigned[item]), item) for item in subscribers[topic_id]]
            heapq.heapify(heap)
        load, member_id = heap[0]
        # It may have got partitions of other topics since.
        while load != len(assigned[member_id]):
            heapq.heapreplace(heap, (len(assigned[member_id]), member_id))
            load, member_id = heap[0]
        assigned[member_id].add(partition)
        heapq.heapreplace(heap, (load + 1, member_id))


def _balance(
    assigned: dict[str, set[_Partition]],
    subscribers: Mapping[str, Sequence[str]],
    topics: Mapping[str, int],
) -> None:
    """Move partitions from members to subscribers of their topics that have at least two less, until there is none.

    Each move makes the sum of the squares of the loads smaller, so it ends.
    """
    owner = {item: member_id for member_id, own in assigned.items() for item in in_turns(own)}
    moved = True
    while moved:
        moved = False
        for topic_id in sorted(subscribers):
            partitions = [(topic_id, index) for index in in_turns(range(topics[topic_id]))]
            heap = [(len(assigned[item]), item) for item in in_turns(subscribers[topic_id])]
            heapq.heapify(heap)
            # From the most loaded first.
            held = [item for item in in_turns(partitions) if item in owner]
            for partition in in_turns(sorted(held, key=lambda item: -len(assigned[owner[item]]))):
                while heap[0][0] != len(assigned[heap[0][1]]):
                    heapq.heapreplace(heap, (len(assigned[heap[0][1]]), heap[0][1]))
                load, least = heap[0]
                if len(assigned[owner[partition]]) - load >= _UNEVEN:
                    assigned[owner[partition]].discard(partition)
                    assigned[least].add(partition)
                    owner[partition] = least
                    heapq.heapreplace(heap, (load + 1, least))
                    moved = True
