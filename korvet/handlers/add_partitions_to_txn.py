"""AddPartitionsToTxn (key 24), versions 0-5: partitions join the transaction of a producer (KIP-98).

Clients send versions up to 3. From 4 on brokers of Kafka ask for many transactions at once, by their right on the
cluster, and some only verify that the partitions have joined (KIP-890). All partitions of a transaction join or none:
if one cannot, the others are OPERATION_NOT_ATTEMPTED.

Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST,
OPERATION_NOT_ATTEMPTED, PRODUCER_FENCED, TRANSACTION_ABORTABLE, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import group_error_code, transaction_error_code
from korvet.handlers.context import Caller, TransactionApi
from korvet.handlers.registry import register
from korvet.handlers.rights import (
    CLUSTER,
    CLUSTER_ACTION,
    THE_CLUSTER,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    RequestRule,
    by_handler,
)
from korvet.protocol.messages import add_partitions_to_txn as wire
from korvet.protocol.types import TopicPartition
from korvet.security.authorizer import refusal
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

PRODUCER_FENCED_VERSION_FIRST = 2
OF_BROKERS_VERSION_FIRST = 4

_Outcomes = Mapping[TopicPartition, KafkaError | None]


def handle(
    request: wire.AddPartitionsToTxnRequest, caller: Caller, api: TransactionApi
) -> wire.AddPartitionsToTxnResponse:
    """Add or verify the partitions of each transaction; the failure of one leaves the others unaffected."""
    return _response(request, caller, lambda each: _added(each, caller, api))


def refuse(
    request: wire.AddPartitionsToTxnRequest, caller: Caller, error: KafkaError
) -> wire.AddPartitionsToTxnResponse:
    """Answer with the error: the request of brokers as a whole, as Kafka does, else every partition."""
    if caller.version >= OF_BROKERS_VERSION_FIRST:
        return wire.AddPartitionsToTxnResponse(error_code=group_error_code(error))
    return _response(request, caller, lambda each: dict.fromkeys(_places(each), error))


def _transactions(
    request: wire.AddPartitionsToTxnRequest, caller: Caller
) -> Sequence[wire.AddPartitionsToTxnTransaction]:
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


def _places(asked: wire.AddPartitionsToTxnTransaction) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions)


def _added(asked: wire.AddPartitionsToTxnTransaction, caller: Caller, api: TransactionApi) -> _Outcomes:
    places = list(dict.fromkeys(_places(asked)))
    found = dict(zip(places, _partitions(places, caller, api), strict=True))
    refused: dict[TopicPartition, KafkaError | None] = {
        place: each for place, each in found.items() if isinstance(each, KafkaError)
    }
    if refused:
        message = "other partitions of the request cannot join the transaction"
        not_attempted = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, message)
        return {place: refused.get(place, not_attempted) for place in in_turns(places)}
    try:
        api.coordinator.add_partitions(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            [each for each in found.values() if isinstance(each, Partition)],
            verify_only=asked.verify_only,
        )
    except KafkaError as error:
        return dict.fromkeys(places, error.without_frames())
    return dict.fromkeys(places)


def _partitions(
    places: Sequence[TopicPartition], caller: Caller, api: TransactionApi
) -> list[Partition | KafkaError]:
    """Return the partitions, or for each why it cannot be written to."""
    if caller.version < OF_BROKERS_VERSION_FIRST:
        may_write = {
            topic: caller.rights.allows(WRITE, TOPIC, topic)
            for topic in {place.topic for place in in_turns(places)}
        }
    else:
        may_write = {}
    refusal_of_topic = refusal(TOPIC)
    refs: list[PartitionRef[None] | KafkaError] = [
        PartitionRef(TopicRef(place.topic), place.partition, None)
        if may_write.get(place.topic, True)
        else refusal_of_topic
        for place in in_turns(places)
    ]
    return api.topics.ask(refs, lambda _asked, _topic, partition: partition, list)


def _response(
    request: wire.AddPartitionsToTxnRequest,
    caller: Caller,
    outcomes_of: Callable[[wire.AddPartitionsToTxnTransaction], _Outcomes],
) -> wire.AddPartitionsToTxnResponse:
    results = []
    for asked in _transactions(request, caller):
        outcomes = outcomes_of(asked)
        topics = [
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
            for topic in asked.topics
        ]
        results.append(
            wire.AddPartitionsToTxnResult(transactional_id=asked.transactional_id, topic_results=topics)
        )
    if caller.version >= OF_BROKERS_VERSION_FIRST:
        return wire.AddPartitionsToTxnResponse(results_by_transaction=results)
    return wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def _code(error: KafkaError | None, caller: Caller) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    if error.code is ErrorCode.INVALID_TXN_STATE:
        # Of a verification alone, in every version (KIP-890).
        return ErrorCode.TRANSACTION_ABORTABLE
    return transaction_error_code(error, knows_fenced=caller.version >= PRODUCER_FENCED_VERSION_FIRST)


register(
    handle,
    refuse,
    rights=[
        RequestRule(
            CLUSTER_ACTION, (CLUSTER,), lambda request: THE_CLUSTER if request.transactions else None
        ),
        RequestRule(
            WRITE,
            (TRANSACTIONAL_ID,),
            lambda request: (
                None if request.transactions else (TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
            ),
        ),
        by_handler((WRITE, TOPIC)),
    ],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
