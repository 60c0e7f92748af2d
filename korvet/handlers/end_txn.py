"""EndTxn (key 26), versions 0-5: commits or aborts the transaction of a producer (KIP-98).

It is answered when all markers are written, so the producer's next transaction need not wait. From version 5 on each
transaction has an epoch of its own, and the response has the next one (KIP-890).

Errors: INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST, INVALID_TXN_STATE, PRODUCER_FENCED.
"""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.handlers.common import refuse_transaction
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import on_transactional_id
from korvet.protocol.messages import end_txn as wire
from korvet.transactions.types import ProducerIdentity

PRODUCER_FENCED_VERSION_FIRST = 2
EPOCH_VERSION_FIRST = 5


def handle(request: wire.EndTxnRequest, caller: Caller, services: Services) -> wire.EndTxnResponse:
    identity = services.transactions.end(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        commit=request.committed,
        bumps_epoch=caller.version >= EPOCH_VERSION_FIRST,
    )
    return wire.EndTxnResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


register(
    handle,
    refuse_transaction(wire.EndTxnResponse, PRODUCER_FENCED_VERSION_FIRST),
    rights=[on_transactional_id()],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
