"""InitProducerId (key 22), versions 0-5: an id for an idempotent or a transactional producer (KIP-98).

Without a transactional id every request gets a new id with epoch 0, also one that names the id it had (KIP-360): the
sequences of that producer start over. With one the producer keeps its id, gets another epoch, which fences the one
before it, and an open transaction is aborted first.

Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_transaction
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import CLUSTER, TOPIC, WRITE, by_handler, on_transactional_id
from korvet.log.producers import new_producer_id
from korvet.protocol.messages import init_producer_id as wire
from korvet.protocol.types import AclOperation
from korvet.security.authorizer import refusal
from korvet.transactions.types import ProducerIdentity

PRODUCER_FENCED_VERSION_FIRST = 4
NONE = -1


def handle(
    request: wire.InitProducerIdRequest, caller: Caller, services: Services
) -> wire.InitProducerIdResponse:
    asked = ProducerIdentity(request.producer_id, request.producer_epoch)
    if (asked.producer_id == NONE) != (asked.epoch == NONE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer names its id and its epoch, or neither")
    if request.transactional_id is None:
        # Who may write to some topic may do so idempotently (KIP-679).
        if not (
            caller.rights.allows_any(WRITE, TOPIC)
            or caller.rights.allows_cluster(AclOperation.IDEMPOTENT_WRITE)
        ):
            raise refusal(CLUSTER)
        return wire.InitProducerIdResponse(producer_id=new_producer_id(), producer_epoch=0)
    identity = services.transactions.init(request.transactional_id, request.transaction_timeout_ms, asked)
    return wire.InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


register(
    handle,
    refuse_transaction(wire.InitProducerIdResponse, PRODUCER_FENCED_VERSION_FIRST, producer_epoch=-1),
    rights=[on_transactional_id(), by_handler((AclOperation.IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC))],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
