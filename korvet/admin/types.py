"""What the parts of the admin client share: topic ids, resources, topologies, outcomes, checks of names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, TypeVar

import msgspec

from korvet.admin.connection import Address
from korvet.admin.errors import AdminError, BrokerError, broker_error, error_in
from korvet.errors import ErrorCode
from korvet.protocol.messages.metadata import MetadataResponse
from korvet.protocol.types import ConfigSource, ConfigType, ResourceType, TopicPartition
from korvet.protocol.wire import STRING_BYTES_MAX, ZERO_UUID

__all__ = [
    "TIME_CODED_FROM",
    "ConfigSource",
    "ConfigType",
    "Resource",
    "ResourceType",
    "TopicId",
    "TopicPartition",
    "Topology",
    "by_topic",
    "settled",
]
TIME_CODED_FROM = 2**48
"""A log that ends here or later has offsets made of times: all since 2004 are above, and no log of records that
counts from 0 is that long."""


K = TypeVar("K")
T = TypeVar("T")

_TOPIC_ID_BYTES = 16
_NAME_RULE = f"a name is UTF-8 of {STRING_BYTES_MAX} bytes or fewer"


class TopicId(msgspec.Struct, frozen=True):
    """The id of a topic, as 16 bytes. No other topic ever has it, not even one of the same name (KIP-516).

    `str()` is what Kafka's tools print: base64 in the alphabet of URLs, 22 letters.

        >>> str(TopicId(bytes(range(16))))
        'AAECAwQFBgcICQoLDA0ODw'
    """

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != _TOPIC_ID_BYTES or self.value == ZERO_UUID:
            raise ValueError(f"a topic id is {_TOPIC_ID_BYTES} bytes, not all of them zero: {self.value!r}")

    def __repr__(self) -> str:
        return f"TopicId.of({str(self)!r})"

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.value).rstrip(b"=").decode()

    @classmethod
    def of(cls, text: str) -> TopicId:
        """Read what Kafka's tools print. Raises ValueError.

        >>> TopicId.of("AAECAwQFBgcICQoLDA0ODw") == TopicId(bytes(range(16)))
        True
        """
        try:
            found = cls(base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True))
        except (UnicodeEncodeError, binascii.Error, ValueError):
            found = None
        # Another text that decodes to the same bytes is a slip.
        if found is None or str(found) != text:
            raise ValueError(f"{text!r} is not a topic id: 22 letters, as kafka-topics prints it")
        return found


def topic_id_in(data: bytes) -> TopicId | None:
    """Return the id in a response; None if the broker is too old to have ids."""
    return None if data == ZERO_UUID else TopicId(data)


class Resource(NamedTuple):
    """Something that has settings: a topic by its name, a broker by its id."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', '-')} {self.name or 'default'}"

    @classmethod
    def topic(cls, name: str) -> Resource:
        """Return a topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> Resource:
        """Return one broker."""
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def cluster(cls) -> Resource:
        """Return all brokers: their common values, for each broker without a value of its own."""
        return cls(ResourceType.BROKER, "")

    @classmethod
    def group(cls, group_id: str) -> Resource:
        """Return a group."""
        return cls(ResourceType.GROUP, group_id)


class Topology(msgspec.Struct, frozen=True):
    """A cluster at one moment: its brokers, partitions and leaders, and the error of each topic in `failed`.

    `controller` is the broker that takes changes, None if there is none now.
    """

    brokers: dict[int, Address]
    partitions: dict[str, list[int]]
    leaders: dict[TopicPartition, Address]
    failed: dict[str, BrokerError]
    controller: int | None = None
    cluster_id: str | None = None

    @classmethod
    def of(cls, response: MetadataResponse) -> Topology:
        """Read a response of any version."""
        brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        partitions: dict[str, list[int]] = {}
        leaders: dict[TopicPartition, Address] = {}
        failed: dict[str, BrokerError] = {}
        for topic in response.topics:
            name = topic.name or ""
            error = error_in(topic.error_code, f"topic {name}")
            if error is not None:
                failed[name] = error
                continue
            partitions[name] = sorted(each.partition_index for each in topic.partitions)
            for each in topic.partitions:
                if each.leader_id in brokers:
                    leaders[TopicPartition(name, each.partition_index)] = brokers[each.leader_id]
        controller = response.controller_id if response.controller_id in brokers else None
        return cls(brokers, partitions, leaders, failed, controller, response.cluster_id)

    def leader(self, partition: TopicPartition) -> Address | BrokerError:
        """Return the leader of a partition, or why there is none now."""
        if partition.topic in self.failed:
            return self.failed[partition.topic]
        if partition.partition not in self.partitions.get(partition.topic, ()):
            return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} does not exist")
        leader = self.leaders.get(partition)
        return leader or broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    """Yield topics by name, each with its partitions."""
    for topic, some in groupby(sorted(partitions), key=lambda each: each.topic):
        yield topic, list(some)


def settled(outcomes: Mapping[K, T | AdminError]) -> dict[K, T]:
    """Return the outcomes if none is an error; raises the first error."""
    values: dict[K, T] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, AdminError):
            raise outcome
        values[key] = outcome
    return values


# A broker would close the connection on a name that it cannot read. These return the outcome for such a name, or None.


def group_name_error(group_id: str) -> AdminError | None:
    """Return the error of a group id that cannot be sent."""
    return None if _can_be_sent(group_id) else broker_error(ErrorCode.INVALID_GROUP_ID, _NAME_RULE)


def topic_name_error(topic: str | TopicId) -> AdminError | None:
    """Return the error of a topic name that cannot be sent."""
    valid = isinstance(topic, TopicId) or _can_be_sent(topic)
    return None if valid else broker_error(ErrorCode.INVALID_TOPIC_EXCEPTION, _NAME_RULE)


def partition_name_error(partition: TopicPartition) -> AdminError | None:
    """Return the same for the topic of a partition."""
    return topic_name_error(partition.topic)


def resource_name_error(resource: Resource) -> AdminError | None:
    """Return the error of a resource whose name cannot be sent."""
    return None if _can_be_sent(resource.name) else broker_error(ErrorCode.INVALID_REQUEST, _NAME_RULE)


def _can_be_sent(name: str) -> bool:
    try:
        return len(name.encode()) <= STRING_BYTES_MAX
    except UnicodeEncodeError:  # the command line had bytes that are not UTF-8
        return False
