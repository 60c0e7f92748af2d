"""TxnOffsetCommit (key 28), versions 0-5: offsets of a group that count once the producer's transaction is committed.

Before version 5 the group must be in the transaction already, by AddOffsetsToTxn; from then on it is added here
(KIP-890). The rules are OffsetCommit's, but a producer that names no member may
do so while the group has members (KIP-447).

Errors: CONCURRENT_TRANSACTIONS, FENCED_INSTANCE_ID, GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, INVALID_GROUP_ID,
INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST, INVALID_TXN_STATE, OFFSET_METADATA_TOO_LARGE,
TRANSACTION_ABORTABLE, UNKNOWN_MEMBER_ID, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Committer, OffsetToCommit, ProducerTransaction
from korvet.groups.types import instance_text
from korvet.handlers.common import group_error_code, require_group_id, topic_errors, transaction_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_group, on_topics, on_transactional_id
from korvet.protocol.messages import txn_offset_commit as wire
from korvet.topics.types import PartitionRef, TopicRef
from korvet.transactions.types import ProducerIdentity

ABORTABLE_VERSION_FIRST = 4
ADDS_GROUP_VERSION_FIRST = 5


def handle(
    request: wire.TxnOffsetCommitRequest, caller: Caller, services: Services
) -> wire.TxnOffsetCommitResponse:
    """Keep the offset of each partition for the end of the transaction.

    If no partition is known, neither group nor transaction is looked at, as in Kafka.
    """
    offsets = [
        PartitionRef(
            TopicRef(topic.name),
            partition.partition_index,
            OffsetToCommit(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
            ),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    if not any(_exists(offset, services) for offset in offsets):
        return _response(request, repeat(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    require_group_id(request.group_id)
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    number = services.transactions.add(
        request.transactional_id,
        producer,
        groups=[request.group_id],
        verify_only=caller.version < ADDS_GROUP_VERSION_FIRST,
    )
    by = Committer(
        request.group_id, request.generation_id, request.member_id, instance_text(request.group_instance_id)
    )
    transaction = ProducerTransaction(*producer, number)
    outcomes = services.groups.committed.commit(by, offsets, caller.not_after_ms, transaction)
    return _response(request, map(group_error_code, outcomes))


def _exists(offset: PartitionRef[OffsetToCommit], services: Services) -> bool:
    try:
        services.topics.partition(offset.topic, offset.partition)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return False
    return True


def _refuse(
    request: wire.TxnOffsetCommitRequest, caller: Caller, error: KafkaError
) -> wire.TxnOffsetCommitResponse:
    # Producers abort the transaction at both, and go on; they know no PRODUCER_FENCED here.
    code = transaction_error_code(error, knows_fenced=False)
    if code is ErrorCode.STALE_MEMBER_EPOCH:
        code = ErrorCode.ILLEGAL_GENERATION
    elif code is ErrorCode.INVALID_TXN_STATE and caller.version >= ABORTABLE_VERSION_FIRST:
        code = ErrorCode.TRANSACTION_ABORTABLE
    return _response(request, repeat(code))


def _response(
    request: wire.TxnOffsetCommitRequest, codes: Iterator[ErrorCode]
) -> wire.TxnOffsetCommitResponse:
    partitions = (
        (topic.name, (partition.partition_index for partition in topic.partitions))
        for topic in request.topics
    )
    return wire.TxnOffsetCommitResponse(topics=topic_errors(partitions, codes))


register(
    handle,
    _refuse,
    rights=[on_transactional_id(), on_group(READ), on_topics(READ)],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
