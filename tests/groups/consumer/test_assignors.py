"""The assignors of the consumer protocol: nobody gets what it is not subscribed to, and nothing moves that need not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from korvet import turns
from korvet.groups.consumer.assignors import ASSIGNORS, AssignedMember, assign_ranges, assign_uniformly
from korvet.groups.consumer.types import NOTHING, Owned


def member(name: str, *topics: str, target: Owned = NOTHING, instance: str = "") -> AssignedMember:
    return AssignedMember(name, instance, frozenset(topics), target)


def indexes(assigned: Mapping[str, Owned], name: str, topic: str = "t") -> list[int]:
    return sorted(index for item, index in assigned[name] if item == topic)


def test_ranges_are_contiguous_and_the_same_in_topics_of_the_same_size() -> None:
    members = [member(name, "t", "u") for name in ("c", "a", "b")]
    assigned = assign_ranges(members, {"t": 7, "u": 7})
    for topic in ("t", "u"):
        assert [indexes(assigned, name, topic) for name in "abc"] == [[0, 1, 2], [3, 4], [5, 6]]


def test_ranges_of_static_members_do_not_depend_on_their_ids() -> None:
    before = assign_ranges([member("m9", "t", instance="one"), member("m1", "t", instance="two")], {"t": 4})
    after = assign_ranges([member("m0", "t", instance="two"), member("m9", "t", instance="one")], {"t": 4})
    assert before["m9"] == after["m9"]


def test_ranges_are_those_of_a_topics_own_subscribers() -> None:
    assigned = assign_ranges([member("a", "t"), member("b", "t", "u")], {"t": 2, "u": 3})
    assert (indexes(assigned, "a"), indexes(assigned, "b")) == ([0], [1])
    assert indexes(assigned, "b", "u") == [0, 1, 2]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_nobody_and_nothing_can_be_assigned(name: str) -> None:
    assert ASSIGNORS[name]([], {"t": 3}) == {}
    assert ASSIGNORS[name]([member("a", "t")], {}) == {"a": NOTHING}
    assert ASSIGNORS[name]([member("a"), member("b", "t")], {"t": 1})["a"] == NOTHING


def test_uniform_moves_no_more_than_a_new_member_gets() -> None:
    members = [member(name, "t") for name in "abc"]
    first = assign_uniformly(members, {"t": 12})
    assert {len(item) for item in first.values()} == {4}
    more = [member(name, "t", target=first.get(name, NOTHING)) for name in "abcd"]
    second = assign_uniformly(more, {"t": 12})
    assert {len(item) for item in second.values()} == {3}
    assert all(second[name] < first[name] for name in "abc")


def test_uniform_gives_what_a_member_left_to_the_others_and_they_keep_theirs() -> None:
    first = assign_uniformly([member(name, "t") for name in "abc"], {"t": 10})
    second = assign_uniformly([member(name, "t", target=first[name]) for name in "ab"], {"t": 10})
    assert {len(item) for item in second.values()} == {5}
    assert all(second[name] > first[name] for name in "ab")


def test_a_target_that_two_had_or_that_is_gone_counts_once_or_not() -> None:
    both = frozenset({("t", 0), ("t", 9), ("gone", 0)})
    assigned = assign_uniformly([member("a", "t", target=both), member("b", "t", target=both)], {"t": 2})
    assert sorted(map(len, assigned.values())) == [1, 1]
    assert assigned["a"] | assigned["b"] == {("t", 0), ("t", 1)}


@pytest.mark.parametrize("seed", range(60))
def test_any_subscriptions_are_assigned_whole_and_evenly(seed: int) -> None:
    rng = random.Random(seed)
    topics = {f"t{number}": rng.randint(0, 9) for number in range(rng.randint(1, 6))}
    names = [f"m{number}" for number in range(rng.randint(1, 8))]
    targets: dict[str, Owned] = {}
    for _ in range(4):
        members = [
            member(
                name,
                *rng.sample(sorted(topics), rng.randint(0, len(topics))),
                target=targets.get(name, NOTHING),
            )
            for name in names
        ]
        for assignor in ASSIGNORS.values():
            assigned = assignor(members, topics)
            every = [item for owned in assigned.values() for item in owned]
            subscribed = frozenset[str]().union(*(item.topics for item in members))
            wanted = {(topic, index) for topic in subscribed for index in range(topics[topic])}
            assert sorted(every) == sorted(wanted)
            for item in members:
                assert {topic for topic, _ in assigned[item.member_id]} <= item.topics
        targets = assign_uniformly(members, topics)
        again = [item._replace(target=targets[item.member_id]) for item in members]
        assert assign_uniformly(again, topics) == targets, "what is even already does not move"
        for item in members:
            for topic, _ in targets[item.member_id]:
                others = [one for one in members if topic in one.topics]
                least = min(len(targets[one.member_id]) for one in others)
                assert len(targets[item.member_id]) - least < 2, "one more could move"
        names = [name for name in names if rng.random() < 0.8] + [f"n{rng.random()}"]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_others_have_their_turn_with_each_partition_and_member(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[float] = []
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(turns, "gevent", SimpleNamespace(sleep=had.append))
    topics = {f"t{number}": 100 for number in range(10)}
    members = [member(f"m{number:03}", *topics) for number in range(100)]
    ASSIGNORS[name](members, topics)
    assert len(had) >= 2 * 1000 // turns.CALLS_PER_LOOK
