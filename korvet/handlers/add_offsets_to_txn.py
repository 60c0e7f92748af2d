"""AddOffsetsToTxn (key 25), versions 0-4: the transaction of a producer will commit offsets of a group (KIP-98).

A producer for which each transaction has an epoch of its own does not send it: TxnOffsetCommit does the same (KIP-890).
As in Kafka the empty name, of a group that can commit nothing, is no error.

Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST, PRODUCER_FENCED.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import transaction_error_code
from korvet.handlers.context import Caller, TransactionApi
from korvet.handlers.registry import register
from korvet.handlers.rights import READ, on_group, on_transactional_id
from korvet.protocol.messages import add_offsets_to_txn as wire

PRODUCER_FENCED_VERSION_FIRST = 2


def handle(
    request: wire.AddOffsetsToTxnRequest, _caller: Caller, api: TransactionApi
) -> wire.AddOffsetsToTxnResponse:
    """Add the group to the transaction."""
    api.coordinator.add_group(
        request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
    )
    return wire.AddOffsetsToTxnResponse()


def refuse(
    _request: wire.AddOffsetsToTxnRequest, caller: Caller, error: KafkaError
) -> wire.AddOffsetsToTxnResponse:
    """Answer with the error."""
    knows_fenced = caller.version >= PRODUCER_FENCED_VERSION_FIRST
    return wire.AddOffsetsToTxnResponse(error_code=transaction_error_code(error, knows_fenced=knows_fenced))


register(
    handle,
    refuse,
    rights=[on_transactional_id(), on_group(READ)],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
