"""What Metadata tells of a cluster: its brokers, and the partitions of topics with their leaders.

The id of a topic, which no other topic ever has, not even one of the same name (KIP-516).

Outcomes of questions about many things at once: for each the answer, or the error that kept it from being told.

Settings as a cluster tells them, what they belong to, and what can be done to them.

Names that no broker can be asked about, and the outcome for them: it would close the connection and tell nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, TypeVar

import msgspec

from korvet.admin.connection import Address
from korvet.admin.errors import (
    AdminError,
    BadAnswerError,
    BrokerError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidTopicError,
    error_of,
)
from korvet.errors import ErrorCode
from korvet.protocol.messages.metadata import MetadataResponse

# Part of this module's names: applications get them from here.
from korvet.protocol.types import ConfigSource as ConfigSource  # noqa: PLC0414
from korvet.protocol.types import ConfigType as ConfigType  # noqa: PLC0414
from korvet.protocol.types import ResourceType as ResourceType  # noqa: PLC0414
from korvet.protocol.types import TopicPartition as TopicPartition  # noqa: PLC0414
from korvet.protocol.wire import STRING_BYTES_MAX, ZERO_UUID

TIME_CODED_FROM = 2**48
"""A log that ends here or later has offsets made of times: all since 2004 are above, and no log of records that are
counted from 0 is so long."""


class Topology(msgspec.Struct, frozen=True):
    """A cluster at one moment. `failed` are the topics that could not be told, each with the reason.

    `controller` is the broker that takes changes; None where there is none now.
    """

    brokers: dict[int, Address]
    partitions: dict[str, list[int]]
    leaders: dict[TopicPartition, Address]
    failed: dict[str, BrokerError]
    controller: int | None = None
    cluster_id: str | None = None

    def leader(self, wanted: TopicPartition) -> Address | BrokerError:
        """Return the leader of a partition, or why there is none now."""
        if wanted.topic in self.failed:
            return self.failed[wanted.topic]
        if wanted.partition not in self.partitions.get(wanted.topic, ()):
            return error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {wanted}")
        leader = self.leaders.get(wanted)
        return leader or error_of(ErrorCode.LEADER_NOT_AVAILABLE, f"{wanted} has no leader")


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    """Yield topics by name, each with those partitions that are its own."""
    for topic, some in groupby(sorted(partitions), key=lambda each: each.topic):
        yield topic, list(some)


def topology_of(response: MetadataResponse) -> Topology:
    """Read a response of any version."""
    brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
    partitions: dict[str, list[int]] = {}
    leaders: dict[TopicPartition, Address] = {}
    failed: dict[str, BrokerError] = {}
    for topic in response.topics:
        name = topic.name or ""
        error = BrokerError.of(topic.error_code, f"topic {name}")
        if error is not None:
            failed[name] = error
            continue
        partitions[name] = sorted(each.partition_index for each in topic.partitions)
        for each in topic.partitions:
            if each.leader_id in brokers:
                leaders[TopicPartition(name, each.partition_index)] = brokers[each.leader_id]
    controller = response.controller_id if response.controller_id in brokers else None
    return Topology(brokers, partitions, leaders, failed, controller, response.cluster_id)


_BYTES = 16


class TopicId(msgspec.Struct, frozen=True):
    """An id, as 16 bytes. `str()` is what Kafka's tools print: base64 in the alphabet of URLs, 22 letters.

    >>> str(TopicId(bytes(range(16))))
    'AAECAwQFBgcICQoLDA0ODw'
    """

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != _BYTES or self.value == ZERO_UUID:
            raise ValueError(f"a topic's id is {_BYTES} bytes, not all of them zero: {self.value!r}")

    def __repr__(self) -> str:
        return f"TopicId.of({str(self)!r})"

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.value).rstrip(b"=").decode()

    @classmethod
    def of(cls, text: str) -> TopicId:
        """Read what Kafka's tools print; raises ValueError.

        >>> TopicId.of("AAECAwQFBgcICQoLDA0ODw") == TopicId(bytes(range(16)))
        True
        """
        try:
            found = cls(base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True))
        except (UnicodeEncodeError, binascii.Error, ValueError):
            found = None
        # Only one text is an id's own: what decodes to the same bytes is a slip of somebody's.
        if found is None or str(found) != text:
            raise ValueError(f"{text!r} is no topic's id: 22 letters, as kafka-topics prints it")
        return found


def topic_id_of(data: bytes) -> TopicId | None:
    """Return the id in an answer; None where the broker told none."""
    return None if data == ZERO_UUID else TopicId(data)


K = TypeVar("K")
T = TypeVar("T")


def settled(outcomes: Mapping[K, T | AdminError]) -> dict[K, T]:
    """Return the outcomes where none is an error; raises the first one that is."""
    values: dict[K, T] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, AdminError):
            raise outcome
        values[key] = outcome
    return values


def for_each(
    address: Address, asked: Iterable[K], found: Mapping[K, T | AdminError]
) -> dict[K, T | AdminError]:
    """Return an outcome for everything that a broker was asked about, and for nothing else."""
    unanswered = BadAnswerError(f"{address} leaves out what it was asked about")
    return {key: found.get(key, unanswered) for key in asked}


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
        """Return one broker, with what is set for it alone."""
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def cluster(cls) -> Resource:
        """Return what is set for all brokers, where one has nothing of its own."""
        return cls(ResourceType.BROKER, "")

    @classmethod
    def group(cls, group_id: str) -> Resource:
        """Return a group."""
        return cls(ResourceType.GROUP, group_id)


class ConfigSynonym(msgspec.Struct, frozen=True):
    """A place where the value of a setting may come from, by the name that it has there."""

    name: str
    value: str | None
    source: ConfigSource


class Config(msgspec.Struct, frozen=True):
    """A setting. `value` is None where it is sensitive.

    `synonyms` are where a value is given, the one that counts first; `documentation` and they only where they were
    asked for.
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None
    synonyms: list[ConfigSynonym] = []

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source is ConfigSource.DEFAULT


class Set(msgspec.Struct, frozen=True):
    """Gives a setting this value."""

    value: str


class Delete(msgspec.Struct, frozen=True):
    """Lets a setting go back to what counts without it."""


class Append(msgspec.Struct, frozen=True):
    """Adds to a setting that is a list; several with commas between. What is in it already stays once."""

    value: str


class Subtract(msgspec.Struct, frozen=True):
    """Takes from a setting that is a list; several with commas between."""

    value: str


Change = Set | Delete | Append | Subtract


def changed(value: str | None, change: Change) -> str | None:
    """Return what a value comes to by a change; None where it is deleted, or is not there."""
    if isinstance(change, Set):
        return change.value
    if isinstance(change, Delete):
        return None
    present = _words(value or "")
    if isinstance(change, Append):
        return ",".join(dict.fromkeys([*present, *_words(change.value)]))
    return ",".join(word for word in present if word not in _words(change.value))


def source_of(number: int) -> ConfigSource:
    """Return a source as it came over the wire; UNKNOWN for one that a later Kafka has."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def type_of(number: int) -> ConfigType:
    """Return a type as it came over the wire; UNKNOWN for one that a later Kafka has."""
    try:
        return ConfigType(number)
    except ValueError:
        return ConfigType.UNKNOWN


def _words(value: str) -> list[str]:
    return [word for each in value.split(",") if (word := each.strip())]


_RULE = f"a name is UTF-8 of {STRING_BYTES_MAX} bytes or fewer"


def bad_group(group_id: str) -> AdminError | None:
    """Return the outcome for a group that nobody can be asked about."""
    return None if _can_be_sent(group_id) else InvalidGroupIdError(ErrorCode.INVALID_GROUP_ID, _RULE)


def bad_topic(topic: str | TopicId) -> AdminError | None:
    """Return the same for a topic."""
    known = isinstance(topic, TopicId) or _can_be_sent(topic)
    return None if known else InvalidTopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, _RULE)


def bad_partition(partition: TopicPartition) -> AdminError | None:
    """Return the same for a partition."""
    return bad_topic(partition.topic)


def bad_resource(resource: Resource) -> AdminError | None:
    """Return the same for what has settings."""
    known = _can_be_sent(resource.name)
    return None if known else InvalidRequestError(ErrorCode.INVALID_REQUEST, _RULE)


def _can_be_sent(name: str) -> bool:
    try:
        return len(name.encode()) <= STRING_BYTES_MAX
    except UnicodeEncodeError:  # the command line had bytes that are no UTF-8
        return False
