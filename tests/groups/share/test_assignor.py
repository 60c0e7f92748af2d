"""korvet/groups/share/assignor.py: who gets which partitions, and how little moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.groups.consumer.assignors import AssignedMember
from korvet.groups.consumer.types import NOTHING, Owned
from korvet.groups.share.assignor import assign_simply


def members(count: int, *topics: str) -> list[AssignedMember]:
    return [AssignedMember(f"m{place:02}", "", frozenset(topics), NOTHING) for place in range(count)]


def again(them: list[AssignedMember], targets: dict[str, Owned]) -> list[AssignedMember]:
    """Return the members with what they got."""
    return [item._replace(target=targets.get(item.member_id, NOTHING)) for item in them]


def sharing(targets: dict[str, Owned]) -> Counter[tuple[str, int]]:
    """Return how many members have each partition."""
    return Counter(value for own in targets.values() for value in own)


@pytest.mark.parametrize(
    ("count", "partitions", "loads", "shares"),
    [
        (1, 4, [4], {1}),
        (3, 4, [2, 1, 1], {1}),
        (4, 4, [1, 1, 1, 1], {1}),
        # As many as it takes to give every member one: the others get a second one.
        (5, 4, [2, 2, 2, 1, 1], {2}),
        (8, 4, [1] * 8, {2}),
        (3, 1, [1, 1, 1], {3}),
        (7, 2, [2, 1, 1, 1, 1, 1, 1], {4}),
    ],
)
def test_each_member_has_a_partition_and_each_partition_as_many_members_as_that_takes(
    count: int, partitions: int, loads: list[int], shares: set[int]
) -> None:
    targets = assign_simply(members(count, "t"), {"t": partitions})
    assert sorted((len(target) for target in targets.values()), reverse=True) == loads
    assert set(sharing(targets).values()) == shares
    assert len(sharing(targets)) == partitions


def test_partitions_of_all_topics_count_together_if_all_subscribe_to_them() -> None:
    targets = assign_simply(members(3, "a", "b"), {"a": 1, "b": 2})
    assert set(sharing(targets).values()) == {1}
    assert sorted(map(len, targets.values())) == [1, 1, 1]


def test_topics_are_assigned_one_by_one_if_subscriptions_differ() -> None:
    one, two, three = (
        AssignedMember(name, "", frozenset(topics), NOTHING)
        for name, topics in (("m1", "a"), ("m2", "b"), ("m3", "ab"))
    )
    targets = assign_simply([one, two, three], {"a": 4, "b": 4})
    assert Counter(topic for topic, _ in targets["m3"]) == {"a": 2, "b": 2}
    assert (len(targets["m1"]), len(targets["m2"])) == (2, 2)


def test_nothing_moves_that_need_not() -> None:
    before = assign_simply(members(2, "t"), {"t": 4})
    them = again(members(3, "t"), before)
    after = assign_simply(them, {"t": 4})
    assert sum(len(before[name] - after[name]) for name in before) == 1
    assert assign_simply(again(them, after), {"t": 4}) == after
    left = again(them[:2], after)
    assert all(
        after[epoch_start.member_id] <= assign_simply(left, {"t": 4})[epoch_start.member_id]
        for epoch_start in left
    )


def test_what_is_no_partition_any_more_is_given_up() -> None:
    had = frozenset({("t", 0), ("t", 7), ("gone", 0)})
    them = [AssignedMember("m", "", frozenset({"t"}), had)]
    assert assign_simply(them, {"t": 1}) == {"m": frozenset({("t", 0)})}
    assert assign_simply(them, {}) == {"m": NOTHING}
    assert assign_simply([], {"t": 1}) == {}


TOPICS = {"a": 3, "b": 1, "c": 7}


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.sampled_from([*TOPICS, "gone"])),
            st.frozensets(st.tuples(st.sampled_from([*TOPICS, "gone"]), st.integers(0, 9))),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_partition_has_a_member_and_no_member_more_than_its_share(
    drawn: list[tuple[frozenset[str], Owned]],
) -> None:
    them = [AssignedMember(f"m{place:02}", "", *item) for place, item in enumerate(drawn)]
    targets = assign_simply(them, TOPICS)
    assert targets.keys() == {item.member_id for item in them}
    counts = sharing(targets)
    for topic, partitions in TOPICS.items():
        subscribers = [item.member_id for item in them if topic in item.topics]
        assert all((counts[topic, index] > 0) == bool(subscribers) for index in range(partitions))
    for item in them:
        assert {topic for topic, _ in targets[item.member_id]} <= item.topics & TOPICS.keys()
    assert all(index < TOPICS[topic] for topic, index in counts)
    if len({item.topics for item in them}) == 1 and counts:
        most = -(-len(them) // len(counts))
        assert max(counts.values()) <= most
        assert max(map(len, targets.values())) <= -(-most * len(counts) // len(them))
