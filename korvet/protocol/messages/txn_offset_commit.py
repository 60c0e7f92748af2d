"""TxnOffsetCommit (key 28), versions 0-5, flexible from 3. Offsets that count once a transaction commits (KIP-98).

Version 1 is the same as version 0. 2 adds the leader epoch (KIP-320). 3 says which member of the group commits
(KIP-447). 4 allows TRANSACTION_ABORTABLE, and 5 adds the group to the transaction by itself (KIP-890).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.parts import TopicErrors
from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import int16, int32, int64, string


class TxnOffsetCommitRequestPartition(Part, kw_only=True):
    """The offset of the next record to be read, the epoch of the last one that was, and the client's own note."""

    partition_index: int32
    committed_offset: int64
    committed_leader_epoch: Annotated[int32, since(2, ignorable=True)] = -1
    committed_metadata: string | None


class TxnOffsetCommitRequestTopic(Part, kw_only=True):
    name: string
    partitions: list[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitRequest(Message, kw_only=True):
    """Commits offsets in a transaction; generation -1 and no member id is a consumer without membership."""

    api = Api(key=28, versions=(0, 5), flexible=3)

    transactional_id: string
    group_id: string
    producer_id: int64
    producer_epoch: int16
    generation_id: Annotated[int32, since(3)] = -1
    member_id: Annotated[string, since(3)] = ""
    group_instance_id: Annotated[string | None, since(3)] = None
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response, kw_only=True):
    """The result for every partition of the request; there is no error of the whole."""

    topics: list[TopicErrors] = []
