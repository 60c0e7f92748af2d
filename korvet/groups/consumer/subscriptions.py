"""Which topics the members of a group are subscribed to, by names and by regular expressions (KIP-848).

What an expression matches is stored with the target assignment, since it depends on the rights of the member that asks.
It is matched when it is new, and again when a worker that learns of other topics hears of a member that has it. If the
topics are not those of the last assignment, by their digest, a new group epoch begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
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
    """All names of a group's members, and the topics that their expressions match, as JSON."""

    names: list[str]
    expressions: dict[str, list[str]]


def names_of(member: ConsumerMember) -> tuple[str, ...]:
    """Return the topics that a member names; one of the classic protocol does so in its metadata."""
    if not member.is_classic:
        return member.row.names
    _, metadata = member.protocols[0] if member.protocols else ("", b"")
    result = parse_subscription(metadata)
    return () if result is None else tuple(result.topics)


def subscribed_among(members: Iterable[ConsumerMember], topics: Iterable[str]) -> set[str]:
    subscribed = [(set(names_of(member)), member.row.regex) for member in in_turns(members)]
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
        self, members: Iterable[ConsumerMember], matched: Mapping[str, list[str]]
    ) -> tuple[Selection, dict[str, frozenset[str]]]:
        """Return all subscriptions, and the topic ids of each member, matches of its expression included."""
        by_subscription: dict[tuple[tuple[str, ...], str], frozenset[str]] = {}
        result = {}
        for member in in_turns(members):
            key = (names_of(member), member.row.regex)
            if key not in by_subscription:
                selected = self._existing([*key[0], *matched.get(key[1], ())])
                by_subscription[key] = frozenset(id_text(topic.id) for topic in selected)
            result[member.member_id] = by_subscription[key]
        names = sorted({name for names, _ in by_subscription for name in names})
        return Selection(names, {item: matched[item] for _, item in by_subscription if item}), result

    def match(self, expression: str, is_visible: IsVisible) -> list[str]:
        matches = matcher(expression)
        topics = in_turns(self._topics.list_cached())
        return sorted(topic.name for topic in topics if matches(topic.name) and is_visible(topic.name))

    def digest(self, selection: Selection) -> str:
        """Return what differs if other topics are selected, or one of them is another one or has more partitions."""
        summed = hashlib.sha1(usedforsecurity=False)
        names = {
            *selection.names,
            *(name for expression in selection.expressions.values() for name in expression),
        }
        topics = {item.name: item for item in self._existing(names)}
        for name, topic in in_turns(sorted(topics.items())):
            summed.update(f"{name} {id_text(topic.id)} {len(topic.partitions)}\n".encode())
        return summed.hexdigest()

    def partitions(self, topic_ids: Iterable[str]) -> dict[str, int]:
        """Return how many partitions topics have, by their ids."""
        wanted = set(topic_ids)
        by_id = {id_text(item.id): len(item.partitions) for item in in_turns(self._topics.list_cached())}
        return {topic_id: by_id[topic_id] for topic_id in wanted if topic_id in by_id}

    def _existing(self, names: Iterable[str]) -> list[Topic]:
        return [topic for name in in_turns(names) if (topic := self._topics.get_cached(name)) is not None]
