"""Committed offsets that are kept no longer, and groups that have nothing left.

Knows how long offsets are kept (Kafka's rules, offsets.retention.minutes); nothing of when anybody looks. Offsets of a
group that had members go when it has had none for so long, those of consumers without membership when they were
committed so long ago, and so do those of topics that no member of a stable group of consumers is subscribed to. Where
a client has said itself for how long (OffsetCommit 2 to 4), that counts from its commit on. Those of a topic that is
gone go at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import KafkaError
from korvet.groups.listing import Forgotten, GroupRemoval, Held, Seen
from korvet.groups.membership import CONSUMER, subscribed_topics
from korvet.groups.store import GroupStore

STABLE = b"Stable"


class Expired(NamedTuple):
    """What went: offsets, and groups."""

    offsets: int
    groups: int


class OffsetExpiry:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, removal: GroupRemoval, groups: GroupStore, retention_ms: int) -> None:
        self._removal = removal
        self._groups = groups
        self._retention_ms = retention_ms

    def expire(self, groups: Sequence[str]) -> tuple[Expired, list[KafkaError]]:
        """Forget what these groups have that is kept no longer; returns also what is wrong with groups.

        A group that changes meanwhile is left alone until the next time.
        """
        now_ms, looks = self._removal.look_now(groups)
        offsets = dropped = 0
        errors = []
        for group, seen in zip(groups, looks, strict=True):
            try:
                forgotten = self._expire(group, seen, now_ms)
            except KafkaError as error:
                errors.append(error)
            else:
                offsets += forgotten.offsets
                dropped += forgotten.dropped
        return Expired(offsets, dropped), errors

    def _expire(self, group: str, seen: Seen | KafkaError, now_ms: int) -> Forgotten:
        if isinstance(seen, KafkaError):
            raise seen
        held = self._removal.held(group)
        if seen.is_empty:
            # Who had members may come back: the time counts from when the last one went, or committed.
            kept_since_ms = int(seen.since) if seen.protocol_type and seen.since.isdigit() else 0
            old = [each for each in held if self._is_old(each, kept_since_ms, now_ms)]
        else:
            old = self._not_subscribed(group, seen, [each for each in held if self._is_old(each, 0, now_ms)])
        going = {each.place: each.row for each in [*old, *(each for each in held if not each.counts)]}
        if not going and (held or not seen.is_empty):
            return Forgotten(done=True, offsets=0, dropped=False)
        return self._removal.forget(group, seen, going, drop=True)

    def _is_old(self, held: Held, kept_since_ms: int, now_ms: int) -> bool:
        if held.ms is None:
            return False
        if held.retention_ms is not None:
            return now_ms - held.ms >= held.retention_ms
        return now_ms - max(held.ms, kept_since_ms) >= self._retention_ms

    def _not_subscribed(self, group: str, seen: Seen, held: list[Held]) -> list[Held]:
        """Return those that no member is subscribed to; none where that is not known, or about to change."""
        if not held or (seen.state, seen.protocol_type) != (STABLE, CONSUMER.encode()):
            return []
        [described] = self._groups.describe([group])
        if isinstance(described, KafkaError):
            raise described
        topics = subscribed_topics(described)
        return [] if topics is None else [each for each in held if each.place.topic not in topics]
