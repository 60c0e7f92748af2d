"""ShareFetch (key 78), versions 1-2, flexible from 0. A member of a share group acquires records.

Version 1 is the first that stayed (KIP-932). 2 brought acquire modes (KIP-1206) and renewal of locks (KIP-1222).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol import wire
from korvet.protocol.messages.produce import NodeEndpoint
from korvet.protocol.messages.share_acknowledge import AcknowledgeTopic, LeaderIdAndEpoch
from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage, since
from korvet.protocol.wire import boolean, int8, int16, int32, int64, string, uuid

UNLIMITED_BYTES = 0x7FFFFFFF
"""max_bytes of a request that limits nothing."""


class ForgottenTopic(Part, kw_only=True):
    """Partitions that leave the session."""

    topic_id: uuid
    partitions: list[int32]


class ShareFetchRequest(Message, kw_only=True):
    """Acknowledges what is named, then acquires of all partitions of the session."""

    api = Api(key=78, versions=(1, 2), flexible=0)

    group_id: string | None = None
    member_id: string | None
    share_session_epoch: int32
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = UNLIMITED_BYTES
    max_records: int32
    batch_size: int32
    share_acquire_mode: Annotated[int8, since(2, ignorable=True)] = 0
    is_renew_ack: Annotated[boolean, since(2)] = False
    topics: list[AcknowledgeTopic]
    forgotten_topics_data: list[ForgottenTopic]


class AcquiredRecords(Part, kw_only=True):
    """A range of offsets that the member has acquired, and how often each was delivered, this time included."""

    first_offset: int64
    last_offset: int64
    delivery_count: int16


class PartitionData(Part, kw_only=True):
    """What was read of one partition, what of it is acquired, and how its acknowledgements went."""

    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = None
    acknowledge_error_code: int16 = 0
    acknowledge_error_message: string | None = None
    current_leader: LeaderIdAndEpoch
    records: wire.record_pieces
    acquired_records: list[AcquiredRecords]


class ShareFetchableTopicResponse(Part, kw_only=True):
    topic_id: uuid
    partitions: list[PartitionData]


class ShareFetchResponse(ResponseWithMessage, kw_only=True):
    """Partitions with records, errors or results of acknowledgements; the lock of what is acquired lasts so long."""

    acquisition_lock_timeout_ms: int32 = 0
    responses: list[ShareFetchableTopicResponse]
    node_endpoints: list[NodeEndpoint]
