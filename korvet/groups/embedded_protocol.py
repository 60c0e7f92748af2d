"""What consumers of the classic protocol put into JoinGroup and SyncGroup: Kafka's ConsumerProtocol, versions 0-3.

A classic group passes it on unread. It is read where a member of the classic protocol is in a group of the consumer
protocol, and by those who ask which topics a group is subscribed to.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Annotated

from korvet.errors import ProtocolError
from korvet.protocol.compile import decode, encode
from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import bytestring, int32, string

_VERSION = struct.Struct(">h")
_VERSION_LAST = 3


class OwnedTopic(Part, kw_only=True):
    """Partitions of a topic."""

    topic: string
    partitions: list[int32]


class ClassicSubscription(Message, kw_only=True):
    """The metadata of a member, after its version."""

    api = Api(key=-1, versions=(0, _VERSION_LAST))

    topics: list[string]
    user_data: bytestring | None = None
    owned_partitions: Annotated[list[OwnedTopic], since(1)] = []  # noqa: RUF012 - each message gets a new list
    generation_id: Annotated[int32, since(2)] = -1
    rack_id: Annotated[string | None, since(3)] = None


class _TopicsAlone(Message, kw_only=True):
    """What every subscription begins with; some clients send nothing after it."""

    api = Api(key=-1, versions=(0, 0))

    topics: list[string]


class ClassicAssignment(Message, kw_only=True):
    """The assignment of a member, after its version."""

    api = Api(key=-1, versions=(0, _VERSION_LAST))

    assigned_partitions: list[OwnedTopic]
    user_data: bytestring | None = None

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return [
            (assigned_partition.topic, index)
            for assigned_partition in self.assigned_partitions
            for index in assigned_partition.partitions
        ]


def parse_subscription(metadata: bytes) -> ClassicSubscription | None:
    """Return the subscription of a member; None if its metadata is not of this protocol."""
    version = version_of(metadata)
    if version is None:
        return None
    with contextlib.suppress(ProtocolError):
        return decode(ClassicSubscription, version, metadata, _VERSION.size)
    with contextlib.suppress(ProtocolError):
        return ClassicSubscription(topics=decode(_TopicsAlone, 0, metadata, _VERSION.size).topics)
    return None


def parse_assignment(assignment: bytes) -> ClassicAssignment | None:
    """Return the assignment of a member; None if it is not of this protocol. No bytes are no partitions."""
    if not assignment:
        return ClassicAssignment(assigned_partitions=[])
    version = version_of(assignment)
    if version is None:
        return None
    try:
        return decode(ClassicAssignment, version, assignment, _VERSION.size)
    except ProtocolError:
        return None


def encode_assignment(version: int, partitions: dict[str, list[int]]) -> bytes:
    topics = [OwnedTopic(topic=name, partitions=item) for name, item in sorted(partitions.items())]
    message = ClassicAssignment(assigned_partitions=topics)
    return _VERSION.pack(version) + b"".join(encode(message, version))


def version_of(content: bytes) -> int | None:
    """Return the version that is to be read, the last known one for a later one; None if there is none."""
    if len(content) < _VERSION.size:
        return None
    version: int = _VERSION.unpack_from(content)[0]
    return None if version < 0 else min(version, _VERSION_LAST)
