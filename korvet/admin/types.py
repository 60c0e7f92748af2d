"""What the parts of the admin client share: topic ids, resources, topologies, records, outcomes, checks of names."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from korvet.admin.connection import Address
from korvet.admin.errors import AdminError, BrokerError, broker_error, error_in
from korvet.errors import ErrorCode
from korvet.protocol.messages.metadata import MetadataResponse
from korvet.protocol.records.record import Header
from korvet.protocol.schema import Part
from korvet.protocol.types import ConfigSource, ConfigType, ResourceType, TopicPartition
from korvet.protocol.wire import STRING_BYTES_MAX, ZERO_UUID

__all__ = ["ConfigSource", "ConfigType", "ResourceType", "TopicPartition"]  # from here for applications
TIME_CODED_FROM = 2**48
"""A log that ends here or later has offsets made of times: all since 2004 are above, and no log of records that
counts from 0 is that long."""

K = TypeVar("K")
T = TypeVar("T")
Q = TypeVar("Q", bound=Part)
E = TypeVar("E", bound=IntEnum)
Outcomes = dict[K, T | AdminError]
"""What became of each key: the value, or the error of its failure."""

_TOPIC_ID_BYTES = 16


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
            topic_id = cls(base64.urlsafe_b64decode(f"{text}=="))
        except ValueError:
            topic_id = None
        # Another text that decodes to the same bytes is a slip.
        if topic_id is None or str(topic_id) != text:
            raise ValueError(f"{text!r} is not a topic id: 22 letters, as kafka-topics prints it")
        return topic_id


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
        brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        partitions: dict[str, list[int]] = {}
        leaders: dict[TopicPartition, Address] = {}
        failed: dict[str, BrokerError] = {}
        for topic in response.topics:
            name = topic.name or ""
            error = error_in(topic.error_code, subject=f"topic {name}")
            if error is not None:
                failed[name] = error
                continue
            partitions[name] = sorted(partition.partition_index for partition in topic.partitions)
            for partition in topic.partitions:
                if partition.leader_id in brokers:
                    leaders[TopicPartition(name, partition.partition_index)] = brokers[partition.leader_id]
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


def topics_of(
    kind: type[Q],
    partitions: Iterable[TopicPartition],
    parts: Mapping[TopicPartition, object] | None = None,
) -> list[Q]:
    """Return the topics of a request, by name, each with its partitions in order: these parts of it, or their indexes.

    `kind` is a topic of the request: its first field is the name, and its last field the partitions, as in all of them.
    """
    name, *_, members = kind.__struct_fields__
    return [
        kind(**{name: topic, members: [parts[key] if parts else key.partition for key in group]})
        for topic, group in groupby(sorted(set(partitions)), key=lambda partition: partition.topic)
    ]


def partitions_in(topics: Iterable[Part]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the partitions in a response.

    Its topics begin with their names and end with their partitions, and a partition begins with its index, as in all.
    """
    for topic in topics:
        name, *_, partitions = msgspec.structs.astuple(topic)
        for partition in partitions:
            yield TopicPartition(name, getattr(partition, partition.__struct_fields__[0])), partition


def errors_in(topics: Iterable[Part]) -> Outcomes[TopicPartition, None]:
    """Return None or an error for each partition in a response."""
    return {
        key: error_in(partition.error_code, getattr(partition, "error_message", None))
        for key, partition in partitions_in(topics)
    }


class LogRecord(msgspec.Struct, frozen=True):
    """A record in its log. `timestamp` is in ms since 1970, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class LogSlice(msgspec.Struct, frozen=True):
    """A slice of a log: its records, by offset; none if there is none at or after the offset asked for.

    `next_offset` is where the next slice begins. `start` and `end` are those of the log, -1 if not known.
    """

    records: list[LogRecord]
    next_offset: int
    start: int
    end: int


def known(number: int) -> int | None:
    """Return a number in a response; None for -1, which stands for none."""
    return None if number == -1 else number


def enum_in(kind: type[E], number: int) -> E:
    """Return the member in a response; UNKNOWN for one of a later Kafka."""
    try:
        return kind(number)
    except ValueError:
        return kind["UNKNOWN"]


def settled(outcomes: Mapping[K, T | AdminError]) -> dict[K, T]:
    """Return the outcomes if none is an error; raises the first error."""
    values: dict[K, T] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, AdminError):
            raise outcome
        values[key] = outcome
    return values


def name_error(key: object, *, is_group: bool = False) -> AdminError | None:
    """Return the outcome for a key with a name that a broker would close the connection on.

    None for a name of a topic, partition, resource or group that can be sent, and for ids.
    """
    name = key.topic if isinstance(key, TopicPartition) else key.name if isinstance(key, Resource) else key
    try:
        if not isinstance(name, str) or len(name.encode()) <= STRING_BYTES_MAX:
            return None
    except UnicodeEncodeError:  # the command line had bytes that are not UTF-8
        pass
    code = ErrorCode.INVALID_GROUP_ID if is_group else ErrorCode.INVALID_TOPIC_EXCEPTION
    code = ErrorCode.INVALID_REQUEST if isinstance(key, Resource) else code
    return broker_error(code, f"a name is UTF-8 of {STRING_BYTES_MAX} bytes or fewer")


class QuotaFilter(msgspec.Struct, frozen=True):
    """A part of a filter: entities that have this type, with the name, None for the default, or with any name."""

    type: str
    name: str | None = None
    any_name: bool = False

    @property
    def match_type(self) -> int:
        """Its number on the wire: 0 for a name, 1 for the default, 2 for any."""
        if self.any_name:
            return 2
        return 1 if self.name is None else 0
