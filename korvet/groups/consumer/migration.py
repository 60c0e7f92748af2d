"""Groups that change their protocol while they have members (KIP-848, `group.consumer.migration.policy`).

A classic group of consumers becomes one of the consumer protocol when the first member of that joins it. Its members go
on by the classic protocol (groups/consumer/classic_members.py), and are replaced one by one. When the last member of
the consumer protocol has left, and only classic ones are there, it becomes a classic group again.
"""

from __future__ import annotations

import secrets

import msgspec

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, or_raise, refuse_first
from korvet.groups.consumer.store import Left, StableGroup, owned_in
from korvet.groups.consumer.types import NOTHING, GroupFields, Owned, text_of
from korvet.groups.embedded_protocol import parse_assignment, parse_subscription
from korvet.groups.store import GroupStore
from korvet.groups.types import CONSUMER, EMPTY, StoredGroup
from korvet.topics.registry import TopicRegistry, id_text

KAFKAS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Nothing is lost with the userData of their assignments, where librdkafka repeats that of the subscriptions."""

_ATTEMPTS_MAX = 5
"""Tries of an upgrade while the members of the classic group join and leave."""


class Migration:
    """Every method raises StorageUnavailableError if Redis is away."""

    def __init__(self, groups: GroupStore, topics: TopicRegistry, settings: Settings) -> None:
        self._classic = groups
        self._store = groups.consumers
        self._topics = topics
        policy = settings.group_consumer_migration_policy
        self._upgrades = policy in ("bidirectional", "upgrade")
        self._downgrades = policy in ("bidirectional", "downgrade")
        self._consumer_size_max = settings.group_consumer_max_size
        self._classic_size_max = settings.group_max_size

    def must_upgrade(self, fields: GroupFields) -> bool:
        return not fields.kind and fields.state not in ("", EMPTY)

    def upgrade(self, group: str, member_id: str, instance: str) -> None:
        """Make a classic group one of the consumer protocol, which this member joins then.

        Raises KafkaError GROUP_ID_NOT_FOUND if that cannot be, and GROUP_MAX_SIZE_REACHED.
        """
        token = secrets.token_hex(8)
        for _ in range(_ATTEMPTS_MAX):
            revision = self._store.revision(group)
            described = or_raise(*self._classic.describe([group]))
            if described.kind or described.state in (EMPTY, "Dead"):
                return
            self._check(group, described)
            has_place = any(
                member.member_id == member_id or (instance and member.instance == instance)
                for member in described.members
            )
            if len(described.members) == self._consumer_size_max and not has_place:
                message = f"group {group} has {len(described.members)} members already"
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
            fields = self._fields(group, described)
            if self._store.upgrade(group, token, revision, fields):
                return
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group} keeps changing")

    def is_classic_again(self, group: str, fields: GroupFields) -> bool:
        """Make a group of classic members alone a classic group, if that is allowed; returns whether it is one now."""
        if fields.kind and fields.size and fields.classic == fields.size and self._downgrades:
            return self._store.downgrade(group, self._classic_size_max)
        return not fields.kind

    def is_classic_as_it_was(self, group: str, stable: StableGroup) -> bool:
        """Make a stable group of classic members alone a classic one, if that is allowed, without a rebalance."""
        return self._downgrades and self._store.downgrade(group, self._classic_size_max, stable)

    def after_leaving(self, group: str, left: Left) -> None:
        """Do the same for a group that members have left."""
        if left.size and left.classic == left.size and self._downgrades:
            self._store.downgrade(group, self._classic_size_max)

    def _check(self, group: str, described: StoredGroup) -> None:
        refused = f"Cannot upgrade classic group {group} to consumer group because"
        is_too_large = len(described.members) > self._consumer_size_max
        refuse_first(
            ErrorCode.GROUP_ID_NOT_FOUND,
            (not self._upgrades, f"{refused} online upgrade is disabled."),
            (
                described.protocol_type != CONSUMER,
                f"{refused} the group does not use the consumer embedded protocol.",
            ),
            (is_too_large, f"{refused} the group size exceeds the consumer group maximum size."),
        )

    def _fields(self, group: str, described: StoredGroup) -> list[tuple[str, bytes]]:
        """Return what the members own, as rows of the group to be."""
        taken: set[tuple[str, int]] = set()
        fields: list[tuple[str, bytes]] = []
        self._topics.refresh()
        for member in described.members:
            assigned = self._assigned(group, described.protocol, member.assignment)
            if assigned is None or (member.metadata and parse_subscription(member.metadata) is None):
                message = (
                    f"Cannot upgrade classic group {group}: the embedded consumer protocol is malformed."
                )
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
            own = assigned - taken
            taken |= own
            owned = msgspec.json.encode(text_of(own))
            fields.append((f"c:{member.member_id}", b'{"assigned":' + owned + b',"revoking":{}}'))
            fields.append((f"t:{member.member_id}", owned))
            fields += [
                (f"o:{topic_id}:{index}", member.member_id.encode()) for topic_id, index in sorted(own)
            ]
        return fields

    def _assigned(self, group: str, assignor: str, stored: bytes) -> Owned | None:
        """Return what a classic member owns; None if that cannot be read.

        Raises KafkaError GROUP_ID_NOT_FOUND if its assignor gave it more than that.
        """
        if stored.startswith(b"{"):
            # What it owned before the group became a classic one: it has not synced since.
            try:
                return owned_in(stored)
            except msgspec.DecodeError:
                return None
        assignment = parse_assignment(stored)
        if assignment is not None and assignment.user_data and assignor not in KAFKAS_ASSIGNORS:
            message = (
                f"Cannot upgrade classic group {group} to consumer group because an unsupported custom assignor is in"
                " use: the userData of its assignments would be lost."
            )
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        return None if assignment is None else self._owned(assignment.partitions)

    def _owned(self, assignment: list[tuple[str, int]]) -> Owned:
        topics = {name: self._topics.get_cached(name) for name, _ in assignment}
        result = [
            (id_text(topic.id), index)
            for name, index in assignment
            if (topic := topics[name]) is not None and 0 <= index < len(topic.partitions)
        ]
        return frozenset(result) if result else NOTHING
