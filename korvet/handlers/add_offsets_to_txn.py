"""AddOffsetsToTxn (key 25), versions 0-4: the transaction of a producer will commit offsets of a group (KIP-98).

A producer for which each transaction has an epoch of its own does not send it: TxnOffsetCommit does the same (KIP-890).
As in Kafka the empty name, of a group that can commit nothing, is no error.

Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST, PRODUCER_FENCED.
"""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.handlers.common import refuse_transaction
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_group, on_transactional_id
from korvet.protocol.messages import add_offsets_to_txn as wire
from korvet.transactions.types import ProducerIdentity

PRODUCER_FENCED_VERSION_FIRST = 2


def handle(
    request: wire.AddOffsetsToTxnRequest, _caller: Caller, services: Services
) -> wire.AddOffsetsToTxnResponse:
    by = ProducerIdentity(request.producer_id, request.producer_epoch)
    groups = [request.group_id] if request.group_id else []
    services.transactions.add(request.transactional_id, by, groups=groups)
    return wire.AddOffsetsToTxnResponse()


register(
    handle,
    refuse_transaction(wire.AddOffsetsToTxnResponse, PRODUCER_FENCED_VERSION_FIRST),
    rights=[on_transactional_id(), on_group(READ)],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
