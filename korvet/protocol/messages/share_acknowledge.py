"""ShareAcknowledge (key 79), versions 1-2, flexible from 0. A member of a share group says what became of records.

Version 1 is the first that stayed (KIP-932). 2 brought renewal of locks (KIP-1222).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.messages.produce import NodeEndpoint
from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage, since
from korvet.protocol.wire import boolean, int8, int16, int32, int64, string, uuid


class AcknowledgementBatch(Part, kw_only=True):
    """What became of a range of offsets: one type for all of them, or one for each."""

    first_offset: int64
    last_offset: int64
    acknowledge_types: list[int8]


class AcknowledgePartition(Part, kw_only=True):
    partition_index: int32
    acknowledgement_batches: list[AcknowledgementBatch]


class AcknowledgeTopic(Part, kw_only=True):
    topic_id: uuid
    partitions: list[AcknowledgePartition]


class ShareAcknowledgeRequest(Message, kw_only=True):
    api = Api(key=79, versions=(1, 2), flexible=0)

    group_id: string | None = None
    member_id: string | None
    share_session_epoch: int32
    is_renew_ack: Annotated[boolean, since(2)] = False
    topics: list[AcknowledgeTopic]


class LeaderIdAndEpoch(Part, kw_only=True):
    """Who leads the partition now; set with NOT_LEADER_OR_FOLLOWER only."""

    leader_id: int32 = 0
    leader_epoch: int32 = 0


class PartitionData(Part, kw_only=True):
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = None
    current_leader: LeaderIdAndEpoch


class ShareAcknowledgeTopicResponse(Part, kw_only=True):
    topic_id: uuid
    partitions: list[PartitionData]


class ShareAcknowledgeResponse(ResponseWithMessage, kw_only=True):
    """The result for every partition of the request; a renewed lock lasts so long."""

    acquisition_lock_timeout_ms: Annotated[int32, since(2, ignorable=True)] = 0
    responses: list[ShareAcknowledgeTopicResponse]
    node_endpoints: list[NodeEndpoint]
