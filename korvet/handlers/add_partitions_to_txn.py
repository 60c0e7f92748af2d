"""AddPartitionsToTxn (key 24), versions 0-5: partitions join the transaction of a producer (KIP-98).

Clients send versions up to 3. From 4 on brokers of Kafka ask for many transactions at once, by their right on the
cluster, and some only verify that the partitions have joined (KIP-890). All partitions of a transaction join or none:
if one cannot, the others are OPERATION_NOT_ATTEMPTED.

Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST,
OPERATION_NOT_ATTEMPTED, PRODUCER_FENCED, TRANSACTION_ABORTABLE, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import group_error_code, transaction_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import (
    CLUSTER,
    CLUSTER_ACTION,
    THE_CLUSTER,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    RequestRule,
    Resource,
    by_handler,
)
from korvet.protocol.messages import add_partitions_to_txn as wire
from korvet.protocol.types import TopicPartition
from korvet.security.authorizer import refusal
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.transactions.types import ProducerIdentity
from korvet.turns import in_turns

PRODUCER_FENCED_VERSION_FIRST = 2
OF_BROKERS_VERSION_FIRST = 4

_Outcomes = Mapping[TopicPartition, KafkaError | None]


def handle(
    request: wire.AddPartitionsToTxnRequest, caller: Caller, services: Services
) -> wire.AddPartitionsToTxnResponse:
    """Add or verify the partitions of each transaction; the failure of one leaves the others unaffected."""
    transactions = _transactions(request, caller)
    return _response(transactions, [_add(asked, caller, services) for asked in transactions], caller)


def _refuse(
    request: wire.AddPartitionsToTxnRequest, caller: Caller, error: KafkaError
) -> wire.AddPartitionsToTxnResponse:
    """Answer with the error: the request of brokers as a whole, as Kafka does, else every partition."""
    if caller.version >= OF_BROKERS_VERSION_FIRST:
        return wire.AddPartitionsToTxnResponse(error_code=group_error_code(error))
    transactions = _transactions(request, caller)
    return _response(transactions, [dict.fromkeys(_named(asked), error) for asked in transactions], caller)


def _transactions(
    request: wire.AddPartitionsToTxnRequest, caller: Caller
) -> list[wire.AddPartitionsToTxnTransaction]:
    """Return what is asked for, which clients do for one transaction in fields of their own."""
    if caller.version >= OF_BROKERS_VERSION_FIRST:
        return request.transactions
    return [
        wire.AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def _named(transaction: wire.AddPartitionsToTxnTransaction) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions)


def _add(asked: wire.AddPartitionsToTxnTransaction, caller: Caller, services: Services) -> _Outcomes:
    named = list(dict.fromkeys(_named(asked)))
    partitions = dict(zip(named, _find(named, caller, services), strict=True))
    refused: dict[TopicPartition, KafkaError | None] = {
        name: error for name, error in partitions.items() if isinstance(error, KafkaError)
    }
    if refused:
        message = "other partitions of the request cannot join the transaction"
        not_attempted = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, message)
        return {name: refused.get(name, not_attempted) for name in in_turns(named)}
    try:
        services.transactions.add(
            asked.transactional_id,
            ProducerIdentity(asked.producer_id, asked.producer_epoch),
            [partition for partition in partitions.values() if isinstance(partition, Partition)],
            verify_only=asked.verify_only,
        )
    except KafkaError as error:
        return dict.fromkeys(named, error.without_frames())
    return dict.fromkeys(named)


def _find(
    named: Sequence[TopicPartition], caller: Caller, services: Services
) -> list[Partition | KafkaError]:
    """Return the partitions, or for each why it cannot be written to."""
    unwritable = set[str]()
    if caller.version < OF_BROKERS_VERSION_FIRST:
        topics = {partition.topic for partition in in_turns(named)}
        unwritable = {topic for topic in topics if not caller.may(WRITE, topic)}
    error = refusal(TOPIC)
    refs: list[PartitionRef[None] | KafkaError] = [
        error if topic in unwritable else PartitionRef(TopicRef(topic), index, None)
        for topic, index in in_turns(named)
    ]
    return services.topics.ask(refs, lambda _asked, _topic, partition: partition, list)


def _response(
    transactions: Sequence[wire.AddPartitionsToTxnTransaction], outcomes: Sequence[_Outcomes], caller: Caller
) -> wire.AddPartitionsToTxnResponse:
    results = [
        wire.AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=_topic_results(transaction, outcome, caller),
        )
        for transaction, outcome in zip(transactions, outcomes, strict=True)
    ]
    if caller.version >= OF_BROKERS_VERSION_FIRST:
        return wire.AddPartitionsToTxnResponse(results_by_transaction=results)
    return wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def _topic_results(
    transaction: wire.AddPartitionsToTxnTransaction, outcomes: _Outcomes, caller: Caller
) -> list[wire.AddPartitionsToTxnTopicResult]:
    return [
        wire.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                wire.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=_code(outcomes[TopicPartition(topic.name, index)], caller),
                )
                for index in topic.partitions
            ],
        )
        for topic in transaction.topics
    ]


def _code(error: KafkaError | None, caller: Caller) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    if error.code is ErrorCode.INVALID_TXN_STATE:
        # Of a verification alone, in every version (KIP-890).
        return ErrorCode.TRANSACTION_ABORTABLE
    return transaction_error_code(error, knows_fenced=caller.version >= PRODUCER_FENCED_VERSION_FIRST)


def _client_id(request: wire.AddPartitionsToTxnRequest) -> Resource | None:
    return None if request.transactions else (TRANSACTIONAL_ID, request.v3_and_below_transactional_id)


register(
    handle,
    _refuse,
    # Of brokers, which ask for several transactions, or of a client.
    rights=[
        RequestRule(CLUSTER_ACTION, (CLUSTER,), lambda asked: THE_CLUSTER if asked.transactions else None),
        RequestRule(WRITE, (TRANSACTIONAL_ID,), _client_id),
        by_handler((WRITE, TOPIC)),
    ],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
