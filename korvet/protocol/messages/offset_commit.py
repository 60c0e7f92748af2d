"""OffsetCommit (key 8), versions 2-10, flexible from 8. A consumer commits its position.

Version 5 drops the retention time. 6 adds the leader epoch (KIP-320). 7 knows static members (KIP-345). From 9 on the
group may be one of KIP-848, and an unknown group has an error code of its own. 10 names topics by id (KIP-848).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.parts import PartitionError
from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import ZERO_UUID, int32, int64, string, uuid


class OffsetCommitRequestPartition(Part, kw_only=True):
    """The offset of the next record to be read, the epoch of the last one that was, and the client's own note."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: Annotated[int32, since(6, ignorable=True)] = -1
    committed_metadata: string | None


class OffsetCommitRequestTopic(Part, kw_only=True):
    name: Annotated[string, since(0, until=9, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition]


class OffsetCommitRequest(Message, kw_only=True):
    """Commits offsets for a group; generation -1 and no member id is a consumer without membership."""

    api = Api(key=8, versions=(2, 10), flexible=8)

    group_id: string
    generation_id_or_member_epoch: int32 = -1
    member_id: string = ""
    group_instance_id: Annotated[string | None, since(7)] = None
    retention_time_ms: Annotated[int64, since(2, until=4, ignorable=True)] = -1
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponseTopic(Part, kw_only=True):
    name: Annotated[string, since(0, until=9, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    partitions: list[PartitionError]


class OffsetCommitResponse(Message, kw_only=True):
    """The result for every partition of the request; there is no error of the whole."""

    throttle_time_ms: Annotated[int32, since(3, ignorable=True)] = 0
    topics: list[OffsetCommitResponseTopic] = []
