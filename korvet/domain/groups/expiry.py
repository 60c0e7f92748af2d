"""Committed offsets that are kept no longer, and groups that have nothing left.

Knows how long offsets are kept (Kafka's rules, offsets.retention.minutes); nothing of when anybody looks. Offsets of a
group that had members go when it has had none for so long, those of consumers without membership when they were
committed so long ago, and those of a topic that is gone at once. Offsets of a group that has members stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import KafkaError
from korvet.storage.group_removal import Forgotten, GroupRemoval, Held, Seen


class Expired(NamedTuple):
    """What went: offsets, and groups."""

    offsets: int
    groups: int


class OffsetExpiry:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, removal: GroupRemoval, retention_ms: int) -> None:
        self._removal = removal
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
        going = {each.place: each.row for each in held if self._is_over(each, seen, now_ms)}
        if not going and (held or not seen.is_empty):
            return Forgotten(done=True, offsets=0, dropped=False)
        return self._removal.forget(group, seen, going, drop=True)

    def _is_over(self, held: Held, seen: Seen, now_ms: int) -> bool:
        if not held.counts:
            return True
        if not seen.is_empty or held.ms is None:
            return False
        # Who had members may come back: the time counts from when the last one went, or committed.
        since_ms = int(seen.since or b"0") if seen.protocol_type and seen.since.isdigit() else 0
        return now_ms - max(held.ms, since_ms) >= self._retention_ms
