"""ListOffsets (key 2), versions 1-11, flexible from 6. The offset that belongs to a timestamp.

Negative timestamps ask for an offset by its role: -1 the end, -2 the start, -3 the largest timestamp (version 7,
KIP-734), -4 the local log start (8, KIP-405), -5 the last tiered offset (9, KIP-1005), -6 the earliest offset that is
not tiered yet (11, KIP-1023). Version 0 answered several offsets and is gone since Kafka 4.0. 2 knows transactions
(KIP-98). 4 fences by leader epoch (KIP-320). 10 says how long a remote answer may take (KIP-1075).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import int8, int16, int32, int64, string


class ListOffsetsPartition(Part, kw_only=True):
    """A partition and the timestamp (types.SpecialTimestamp for the negative ones) to look up."""

    partition_index: int32
    current_leader_epoch: Annotated[int32, since(4, ignorable=True)] = -1
    timestamp: int64


class ListOffsetsTopic(Part, kw_only=True):
    name: string
    partitions: list[ListOffsetsPartition]


class ListOffsetsRequest(Message, kw_only=True):
    """Asks for one offset of each partition; the replica id of a consumer is -1."""

    api = Api(key=2, versions=(1, 11), flexible=6)

    replica_id: int32
    isolation_level: Annotated[int8, since(2)] = 0
    topics: list[ListOffsetsTopic]
    timeout_ms: Annotated[int32, since(10, ignorable=True)] = 0


class ListOffsetsPartitionResponse(Part, kw_only=True):
    """The first record at or after the timestamp; offset and timestamp are -1 if there is none."""

    partition_index: int32
    error_code: int16 = 0
    timestamp: int64 = -1
    offset: int64 = -1
    # Not ignorable upstream: in versions below 4 it has to stay -1.
    leader_epoch: Annotated[int32, since(4)] = -1


class ListOffsetsTopicResponse(Part, kw_only=True):
    name: string
    partitions: list[ListOffsetsPartitionResponse]


class ListOffsetsResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(2, ignorable=True)] = 0
    topics: list[ListOffsetsTopicResponse] = []
