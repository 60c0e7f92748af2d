"""DescribeTransactions (key 65), version 0: the state of transactional ids, and the partitions of their transactions.

Any broker describes any id. Topics that the caller may not describe are left out (KIP-664).

Errors: INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND.
"""

from __future__ import annotations

from collections import defaultdict

from korvet.errors import KafkaError
from korvet.handlers.common import group_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, TOPIC, TRANSACTIONAL_ID, by_handler, on_names
from korvet.protocol.messages import describe_transactions as wire
from korvet.transactions.types import StoredTransaction


def handle(
    request: wire.DescribeTransactionsRequest, caller: Caller, services: Services
) -> wire.DescribeTransactionsResponse:
    """Describe each transactional id once, however often it is named."""
    names = list(dict.fromkeys(request.transactional_ids))
    states = [
        _refused(name, outcome) if isinstance(outcome, KafkaError) else _described(name, outcome, caller)
        for name, outcome in zip(names, services.transactions.describe(names), strict=True)
    ]
    return wire.DescribeTransactionsResponse(transaction_states=states)


def _described(name: str, transaction: StoredTransaction, caller: Caller) -> wire.TransactionState:
    topics = defaultdict[str, list[int]](list)
    for partition in transaction.partitions:
        topics[partition.at.topic].append(partition.at.partition)
    return wire.TransactionState(
        transactional_id=name,
        transaction_state=transaction.state,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.identity.producer_id,
        producer_epoch=transaction.identity.epoch,
        topics=[
            wire.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
            if caller.may(DESCRIBE, topic, log=False)
        ],
    )


def _refused(name: str, error: KafkaError) -> wire.TransactionState:
    return wire.TransactionState(transactional_id=name, error_code=group_error_code(error))


register(
    handle,
    lambda request, _caller, error: wire.DescribeTransactionsResponse(
        transaction_states=[_refused(name, error) for name in request.transactional_ids]
    ),
    rights=[
        on_names(TRANSACTIONAL_ID, DESCRIBE, "transactional_ids", "transaction_states"),
        by_handler((DESCRIBE, TOPIC)),
    ],
)
