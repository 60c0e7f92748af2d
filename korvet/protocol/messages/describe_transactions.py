"""DescribeTransactions (key 65), versions 0-0, flexible from 0. An administrator asks about transactions (KIP-664)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import int16, int32, int64, string


class DescribeTransactionsRequest(Message, kw_only=True):
    api = Api(key=65, versions=(0, 0), flexible=0)

    transactional_ids: list[string]


class TopicData(Part, kw_only=True):
    topic: string
    partitions: list[int32]


class TransactionState(Part, kw_only=True):
    """A transactional id and its transaction; the start is -1 if none is open. Topics are those without a marker."""

    error_code: int16 = 0
    transactional_id: string
    transaction_state: string = ""
    transaction_timeout_ms: int32 = 0
    transaction_start_time_ms: int64 = 0
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Response, kw_only=True):
    transaction_states: list[TransactionState] = []
