"""Which topics the members of a group are subscribed to, by names and by regular expressions (KIP-848).

Expressions are matched when a target assignment is computed, and again when a worker learns that a topic has come, gone
or got partitions: if the topics are not those of the last assignment, by their digest, a new group epoch begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from korvet.groups.consumer.types import ConsumerMember
from korvet.groups.embedded_protocol import parse_subscription
from korvet.topics.pattern import compile_pattern
from korvet.topics.registry import Topic, TopicRegistry, id_text
from korvet.turns import in_turns

_EXPRESSIONS_MAX = 256
"""Compiled expressions of a worker, 32 KiB each at most."""

IsVisible = Callable[[str], bool]
"""Whether the member that asks may know of a topic: expressions match no other."""

matcher = lru_cache(_EXPRESSIONS_MAX)(compile_pattern)
"""Return what says whether all of a topic's name matches; raises KafkaError INVALID_REGULAR_EXPRESSION."""


class Selection(msgspec.Struct, frozen=True):
    """All names and expressions of a group's members, as JSON."""

    names: list[str]
    expressions: list[str]


def names_of(member: ConsumerMember) -> tuple[str, ...]:
    """Return the topics that a member names; one of the classic protocol does so in its metadata."""
    if not member.is_classic:
        return member.row.names
    _, metadata = member.protocols[0] if member.protocols else ("", b"")
    found = parse_subscription(metadata)
    return () if found is None else tuple(found.topics)


def subscribed_among(members: Iterable[ConsumerMember], topics: Iterable[str]) -> set[str]:
    """Return those of the topics that any of the members is subscribed to."""
    subscribed = [(set(names_of(each)), each.row.regex) for each in in_turns(members)]
    return {
        topic
        for topic in in_turns(topics)
        if any(topic in names or (regex and matcher(regex)(topic)) for names, regex in subscribed)
    }


class TopicSelector:
    """The topics of one worker as members select them; `refresh` of the registry is for the caller."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    def select(
        self, members: Iterable[ConsumerMember], is_visible: IsVisible
    ) -> tuple[Selection, dict[str, frozenset[str]]]:
        """Return all that members subscribe to, and the ids of the topics of each member."""
        by_subscription: dict[tuple[tuple[str, ...], str], frozenset[str]] = {}
        found = {}
        for member in in_turns(members):
            key = (names_of(member), member.row.regex)
            if key not in by_subscription:
                selected = self._select(key[0], [key[1]] if key[1] else [], is_visible)
                by_subscription[key] = frozenset(id_text(topic.id) for topic in selected)
            found[member.member_id] = by_subscription[key]
        names = sorted({name for names, _ in by_subscription for name in names})
        return Selection(names, sorted({each for _, each in by_subscription if each})), found

    def digest(self, selection: Selection, is_visible: IsVisible) -> str:
        """Return what differs if other topics are selected, or one of them is another one or has more partitions."""
        summed = hashlib.sha1(usedforsecurity=False)
        topics = {
            each.name: each for each in self._select(selection.names, selection.expressions, is_visible)
        }
        for name, topic in in_turns(sorted(topics.items())):
            summed.update(f"{name} {id_text(topic.id)} {len(topic.partitions)}\n".encode())
        return summed.hexdigest()

    def partitions(self, topic_ids: Iterable[str]) -> dict[str, int]:
        """Return how many partitions topics have, by their ids."""
        wanted = set(topic_ids)
        by_id = {id_text(each.id): len(each.partitions) for each in in_turns(self._topics.list_cached())}
        return {topic_id: by_id[topic_id] for topic_id in wanted if topic_id in by_id}

    def _select(self, names: Iterable[str], expressions: Iterable[str], is_visible: IsVisible) -> list[Topic]:
        found = [topic for name in names if (topic := self._topics.get_cached(name)) is not None]
        for each in expressions:
            matches = matcher(each)
            found += [
                topic
                for topic in in_turns(self._topics.list_cached())
                if matches(topic.name) and is_visible(topic.name)
            ]
        return found
