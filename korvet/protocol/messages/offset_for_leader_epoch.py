"""OffsetForLeaderEpoch (key 23), versions 2-4, flexible from 4. Where the records of an epoch end.

A consumer compares the answer with its position and so finds out whether the log was truncated meanwhile (KIP-320).
Versions 0 and 1 are gone since Kafka 4.0. Version 3 adds the replica id (KIP-392), whose default -2 is a debugging
consumer.
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import int16, int32, int64, string


class OffsetForLeaderPartition(Part, kw_only=True):
    """A partition and the epoch to look up; current_leader_epoch fences, -1 does not."""

    partition: int32
    current_leader_epoch: int32 = -1
    leader_epoch: int32


class OffsetForLeaderTopic(Part, kw_only=True):
    topic: string
    partitions: list[OffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(Message, kw_only=True):
    api = Api(key=23, versions=(2, 4), flexible=4)

    replica_id: Annotated[int32, since(3, ignorable=True)] = -2
    topics: list[OffsetForLeaderTopic]


class EpochEndOffset(Part, kw_only=True):
    """The largest epoch not above the one asked for, and its end (exclusive); -1 if there is none."""

    error_code: int16 = 0
    partition: int32
    leader_epoch: int32 = -1
    end_offset: int64 = -1


class OffsetForLeaderTopicResult(Part, kw_only=True):
    topic: string
    partitions: list[EpochEndOffset]


class OffsetForLeaderEpochResponse(Response, kw_only=True):
    topics: list[OffsetForLeaderTopicResult] = []
