"""AddPartitionsToTxn (key 24), versions 0-5, flexible from 3. Partitions join a transaction (KIP-98).

Version 1 is the same as version 0. 2 allows PRODUCER_FENCED (KIP-588). Clients send versions up to 3. From 4 on brokers
send many transactions at once, and may only ask whether partitions have joined. 5 allows TRANSACTION_ABORTABLE
(KIP-890).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import boolean, int16, int32, int64, string


class AddPartitionsToTxnTopic(Part, kw_only=True):
    name: string
    partitions: list[int32]


class AddPartitionsToTxnTransaction(Part, kw_only=True):
    """One transaction of a broker's request; verify_only: say whether it has the partitions, and add none."""

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    verify_only: boolean = False
    topics: list[AddPartitionsToTxnTopic]


class AddPartitionsToTxnRequest(Message, kw_only=True):
    """Adds partitions: of `transactions` from version 4 on, of a client's only transaction before."""

    api = Api(key=24, versions=(0, 5), flexible=3)

    transactions: Annotated[list[AddPartitionsToTxnTransaction], since(4)] = []
    v3_and_below_transactional_id: Annotated[string, since(0, until=3)] = ""
    v3_and_below_producer_id: Annotated[int64, since(0, until=3)] = 0
    v3_and_below_producer_epoch: Annotated[int16, since(0, until=3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], since(0, until=3)] = []


class AddPartitionsToTxnPartitionResult(Part, kw_only=True):
    partition_index: int32
    partition_error_code: int16


class AddPartitionsToTxnTopicResult(Part, kw_only=True):
    name: string
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResult(Part, kw_only=True):
    transactional_id: string
    topic_results: list[AddPartitionsToTxnTopicResult]


class AddPartitionsToTxnResponse(Response, kw_only=True):
    """The result for every partition; error_code is that of the request as a whole."""

    error_code: Annotated[int16, since(4, ignorable=True)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], since(4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], since(0, until=3)] = []
