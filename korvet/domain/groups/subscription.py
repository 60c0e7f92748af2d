"""Which topics the members of a group are subscribed to, as they say themselves.

Knows Kafka's consumer protocol (ConsumerProtocolSubscription): a version (int16), an array of topics, and what
assignors add. Nothing of what follows from it. Members of other protocol types say nothing of topics.
"""

from __future__ import annotations

import struct

from korvet.storage.group_types import Described

CONSUMER = "consumer"
"""The protocol type of consumers."""


def subscribed_topics(group: Described) -> set[str] | None:
    """Return the topics that any member of a group of consumers is subscribed to; None: nobody can tell."""
    subscribed: set[str] = set()
    for member in group.members:
        topics = subscription(member.metadata)
        if topics is None:
            return None
        subscribed |= topics
    return subscribed


def subscription(metadata: bytes) -> set[str] | None:
    """Return the topics that a consumer's metadata names; None where it is none of the consumer protocol's."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        at = struct.calcsize(">hi")
        topics = set()
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, at)
            at += struct.calcsize(">h")
            name = metadata[at : at + size]
            if size < 0 or len(name) != size:
                return None
            topics.add(name.decode())
            at += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics if version >= 0 <= count else None
