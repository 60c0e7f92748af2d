"""Groups as administrators see them: listed page by page, described, deleted, and their offsets deleted.

Also which topics the members of a group are subscribed to, as they say themselves in Kafka's consumer protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError, or_raise
from korvet.groups.consumer.store import ConsumerStore, GroupMembers
from korvet.groups.consumer.subscriptions import subscribed_among
from korvet.groups.consumer.types import ConsumerMember, GroupFields, Owned, text_of
from korvet.groups.embedded_protocol import parse_subscription
from korvet.groups.offsets import ANY_ROW, GroupVersion, OffsetStore
from korvet.groups.store import GroupStore
from korvet.groups.types import CONSUMER, DEAD, EMPTY, SHARE, STREAMS, UNKNOWN, StoredGroup
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import listed, parsed
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import TopicRef

CLASSIC = "classic"
"""The type of a group of the classic protocol; of the others it is CONSUMER, and SHARE."""

DEFAULT_ASSIGNORS = {CONSUMER: "uniform", SHARE: "simple"}
"""What a group is said to use that has no assignment yet."""

_PAGE = 500
"""Groups of one round trip: a millisecond of Redis."""

_TRIES_MAX = 5
"""Tries to delete offsets while the group changes under it."""


class ListedGroup(NamedTuple):
    """A group: `state` and `kind` (its type) are Kafka's names, `protocol_type` is empty if it never had members."""

    group: str
    state: str
    protocol_type: str
    kind: str = CLASSIC


class DescribedConsumerGroup(NamedTuple):
    """A group of the consumer protocol, or a share group; `names` are those of all topics, by their ids."""

    fields: GroupFields
    assignor: str
    members: list[ConsumerMember]
    names: Mapping[str, str]

    def by_name(self, owned: Owned) -> dict[str, list[int]]:
        """Return partitions by the names of their topics; those of a deleted topic are left out."""
        return {
            self.names[topic_id]: indexes
            for topic_id, indexes in text_of(owned).items()
            if topic_id in self.names
        }


class GroupSummary(NamedTuple):
    """A group in numbers: `members` have joined. `kind` is its type."""

    group: str
    state: str
    generation: int
    members: int
    kind: str = CLASSIC


class GroupList:
    """The list of all groups of one namespace. A name in it that is not a group any more is left out."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def names(self) -> Iterator[list[str]]:
        """Yield the names of all groups in pages, each small enough for one round trip about all of its groups.

        A group that comes or goes meanwhile may be missing, one that stays is there. Raises KafkaError
        KAFKA_STORAGE_ERROR, StorageUnavailableError.
        """
        for page in self._redis.scan_sorted_set(self._keys.groups, _PAGE):
            yield [decode_group_id(_text(name)) for name in page]

    def summaries(self, names: Sequence[str]) -> list[GroupSummary | KafkaError]:
        """Return those groups that exist, all in one round trip; KAFKA_STORAGE_ERROR names a damaged one."""
        keys = [self._keys.group_state(name) for name in names]
        replies = self._redis.pipeline(
            [("HMGET", key, "state", "generation", "size", "type") for key in keys]
        )

        results = [
            parsed(key, "a field", reply, partial(_summary, name))
            for name, key, reply in zip(names, keys, replies, strict=True)
        ]
        return [result for result in results if result is not None]

    def all_groups(self) -> list[ListedGroup]:
        """Return all groups by name, those whose node of a cluster is away in the state UNKNOWN.

        Raises KafkaError KAFKA_STORAGE_ERROR, StorageUnavailableError.
        """
        groups: list[ListedGroup] = []
        for names in self.names():
            keys = [self._keys.group_state(name) for name in names]
            replies = self._redis.pipeline([("HMGET", key, "state", "protocol_type", "type") for key in keys])
            for name, key, reply in zip(names, keys, replies, strict=True):
                if isinstance(reply, StorageUnavailableError):
                    groups.append(ListedGroup(name, UNKNOWN, ""))
                    continue
                state, protocol_type, kind = cast("list[bytes | None]", listed(key, reply))
                if state is not None:
                    kind_text = CLASSIC if kind is None else _text(kind)
                    groups.append(ListedGroup(name, _text(state), _text(protocol_type or b""), kind_text))
        return sorted(groups)


def _summary(group: str, fields: Sequence[bytes | None]) -> GroupSummary | None:
    state, generation, members, kind = fields
    if state is None:
        return None
    # A group with nothing but committed offsets never had members.
    return GroupSummary(
        group, _text(state), int(generation or 0), int(members or 0), _text(kind) if kind else CLASSIC
    )


class GroupAdmin:
    """What administrators may do. Every method raises StorageUnavailableError if Redis is away."""

    def __init__(
        self, groups: GroupStore, names: GroupList, offsets: OffsetStore, topics: TopicRegistry
    ) -> None:
        self._groups = groups
        self._names = names
        self._offsets = offsets
        self._topics = topics

    def describe(self, groups: Sequence[str]) -> list[StoredGroup | KafkaError]:
        """Return each group as it is now, or KAFKA_STORAGE_ERROR; Dead is one that does not exist."""
        return self._groups.describe(groups)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """Return the groups in one of the states and of one of the types, in any case; none named is all of them.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        wanted = {state.lower() for state in states}
        kinds = {kind.lower() for kind in types}
        return [
            group
            for group in self._names.all_groups()
            if (not wanted or group.state.lower() in wanted) and (not kinds or group.kind in kinds)
        ]

    def describe_consumer_groups(self, groups: Sequence[str]) -> list[DescribedConsumerGroup | KafkaError]:
        """Return each group of the consumer protocol as it is now, or its error; GROUP_ID_NOT_FOUND for any other.

        INVALID_GROUP_ID for an empty name.
        """
        return self._described(groups, self._groups.consumers)

    def describe_share_groups(self, groups: Sequence[str]) -> list[DescribedConsumerGroup | KafkaError]:
        """Return each share group as it is now, or its error; see `describe_consumer_groups`."""
        return self._described(groups, self._groups.shares)

    def _described(
        self, groups: Sequence[str], store: ConsumerStore
    ) -> list[DescribedConsumerGroup | KafkaError]:
        stored = store.describe(groups)
        if any(isinstance(outcome, GroupMembers) for outcome in stored):
            # After the members were read: each topic that they have is known.
            self._topics.refresh()
        names = {topic_id: name for name, topic_id in self._topics.ids.items()}
        default = DEFAULT_ASSIGNORS[store.kind]
        return [
            outcome
            if isinstance(outcome, KafkaError)
            else DescribedConsumerGroup(
                outcome.fields, outcome.fields.assignor or default, outcome.members, names
            )
            for outcome in stored
        ]

    def is_empty_share_group(self, group: str) -> bool:
        """Whether it is a share group without members: what it has of partitions is to be deleted before it."""
        fields = self._groups.shares.fields(group)
        if fields.kind == SHARE and fields.size:
            self._groups.advance(group)  # as in `delete`
            fields = self._groups.shares.fields(group)
        return fields.kind == SHARE and not fields.size

    def delete(self, group: str) -> None:
        """Delete a group; raises KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, KAFKA_STORAGE_ERROR."""
        try:
            self._offsets.delete_group(group)
        except KafkaError as error:
            if error.code is not ErrorCode.NON_EMPTY_GROUP:
                raise
            # The sessions of its members may have ended since the keeper came, once a second.
            self._groups.advance(group)
            self._offsets.delete_group(group)

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> list[KafkaError | None]:
        """Delete committed offsets; returns for each partition what prevented it.

        These are UNKNOWN_TOPIC_OR_PARTITION and GROUP_SUBSCRIBED_TO_TOPIC. Raises KafkaError for all of them:
        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members that are no consumers), KAFKA_STORAGE_ERROR.
        """
        for _ in range(_TRIES_MAX):
            version = or_raise(*self._offsets.versions([group]))
            described = or_raise(*self._groups.describe([group]))
            subscribed: set[str] | None
            if described.kind == SHARE:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.")
            if described.kind == STREAMS:
                topology = self._groups.streams.common(group).topology
                subscribed = set() if topology is None or described.state == EMPTY else topology.topics
            elif described.kind:
                members = self._groups.consumers.all_members(group)
                subscribed = subscribed_among(members, {partition.topic for partition in partitions})
            else:
                subscribed = _subscribed(group, version, described)
            errors = {partition: self._refusal(group, partition, subscribed) for partition in partitions}
            rows: Mapping[TopicPartition, bytes] = {
                item: ANY_ROW for item, error in errors.items() if error is None
            }
            if self._offsets.delete(group, version, rows, delete_empty_group=False).done:
                return [errors[partition] for partition in partitions]
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} keeps changing")

    def _refusal(
        self, group: str, partition: TopicPartition, subscribed: set[str] | None
    ) -> KafkaError | None:
        try:
            self._topics.partition(TopicRef(partition.topic), partition.partition)
        except KafkaError as error:
            return error.without_frames()
        if subscribed is None or partition.topic in subscribed:
            message = f"group {group} is subscribed to {partition.topic}"
            return KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, message)
        return None


def _subscribed(group: str, version: GroupVersion, described: StoredGroup) -> set[str] | None:
    """Return the topics that the members are subscribed to; None if that is unknown, so it may be any."""
    if described.state == DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
    if version.is_empty:
        return set()
    if described.protocol_type != CONSUMER:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} is {described.state}")
    return subscribed_topics(described)


def subscribed_topics(group: StoredGroup) -> set[str] | None:
    """Return the topics that any member of a group of consumers is subscribed to; None if one cannot be read."""
    subscribed: set[str] = set()
    for member in group.members:
        result = parse_subscription(member.metadata)
        if result is None:
            return None
        subscribed.update(result.topics)
    return subscribed


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")
