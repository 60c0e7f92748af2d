"""The bytes in which the consumers of a group are told what they read: the protocol type `consumer`, versions 0 and up.

Brokers pass these bytes without reading them, so they hold whatever a client put there. Later versions add fields
behind those read here.
"""

from __future__ import annotations

import struct

from korvet.admin.topology import TopicPartition

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


def partitions_of(assignment: bytes) -> list[TopicPartition] | None:
    """Return the partitions of an assignment, sorted; None where the bytes are no consumer's assignment.

    A member that has none gets no bytes at all from some clients: that is the empty assignment.
    """
    if not assignment:
        return []
    try:
        return sorted(_read(assignment))
    except (struct.error, ValueError):
        return None


def _read(data: bytes) -> list[TopicPartition]:
    """Read version, then the topics with their partitions; a number of the peer's sizes no allocation."""
    (version,) = _SHORT.unpack_from(data)
    (topics,) = _INT.unpack_from(data, _SHORT.size)
    if version < 0 or topics < 0:
        raise ValueError("negative version or length")
    position = _SHORT.size + _INT.size
    found = []
    for _ in range(topics):
        (length,) = _SHORT.unpack_from(data, position)
        position += _SHORT.size
        if length < 0 or position + length > len(data):
            raise ValueError("a topic's name reaches behind the bytes")
        topic = data[position : position + length].decode()
        position += length
        (count,) = _INT.unpack_from(data, position)
        position += _INT.size
        if count < 0 or position + count * _INT.size > len(data):
            raise ValueError("partitions reach behind the bytes")
        partitions = struct.unpack_from(f">{count}i", data, position)
        position += count * _INT.size
        found += [TopicPartition(topic, each) for each in partitions]
    return found
