"""The parts that share groups have of partitions, in Redis: read and changed by the scripts under lua/share.

Each change is one script in the slot of its partition. Requests for several partitions go in one round trip. What is
stored and cannot be read is a KafkaError KAFKA_STORAGE_ERROR that names the key, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.share.types import (
    Acknowledged,
    Acknowledgement,
    Acquire,
    Acquired,
    Begin,
    SharePolicy,
    ShareOffsets,
)
from korvet.topics.types import Partition


class SharePartitions:
    """The parts of one namespace's share groups.

    What prevents one partition stands in its place: UNKNOWN_TOPIC_OR_PARTITION (of another topic id),
    KAFKA_STORAGE_ERROR, STALE_BROKER_EPOCH (the worker's lease has ended), StorageUnavailableError. With one Redis the
    last is raised.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def begin(self, asks: Sequence[Begin]) -> list[Acquired | KafkaError | None]:
        """Create what is not there, and return where each is to be read first, with no ranges.

        None: the group has no part of the partition, and no start was given. What is there keeps its position,
        whatever the start. A Redis group of the group's name that a plain worker has made is adopted with its position
        and what it has pending. A part that is a Redis group and is not to be one any more is converted.
        """
        raise NotImplementedError

    def acquire(self, asks: Sequence[Acquire]) -> list[Acquired | KafkaError | None]:
        """End the locks that are due, and give each member what is available of what was read for it.

        None: the group has no part of the partition (any more): it is to begin. If records were read in another leader
        epoch than the log has by now, nothing is acquired, and `read_next` is where to read again.
        """
        raise NotImplementedError

    def acknowledge(self, given: Sequence[Acknowledgement]) -> list[Acknowledged | KafkaError]:
        """Take what members say of records that they have acquired: all of a partition or none of it.

        INVALID_RECORD_STATE: of one of them the lock has ended, or it was never this member's. Records that have left
        the log meanwhile are passed over. A record that is released after its last delivery is archived. Who waits for
        records is notified of those that are released, on the partition's channel.
        """
        raise NotImplementedError

    def release(
        self, group: str, member: str, partitions: Sequence[Partition], policy: SharePolicy
    ) -> list[Acknowledged | KafkaError]:
        """Release all that a member has acquired; nothing is no error."""
        raise NotImplementedError

    def offsets(self, group: str, partitions: Sequence[Partition]) -> list[ShareOffsets | KafkaError | None]:
        """Return where the group is in each partition; None: it has no part of it."""
        raise NotImplementedError

    def alter(self, asks: Sequence[Begin]) -> list[KafkaError | None]:
        """Have the group begin at a start (not None), whatever it has in flight; creates what is not there."""
        raise NotImplementedError

    def delete(self, group: str, partitions: Sequence[Partition]) -> list[bool | KafkaError]:
        """Delete the group's parts, and its Redis groups; returns whether each was there."""
        raise NotImplementedError
