"""InitProducerId (key 22), versions 0-5: an id for an idempotent producer (KIP-98).

Without a transactional id every request gets a new id with epoch 0, also one that names the id it had (KIP-360): the
sequences of that producer start over. Transactions are not supported, with the error of FindCoordinator.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.producers import new_producer_id
from korvet.protocol.messages import init_producer_id as wire
from korvet.protocol.types import AclOperation, AclResourceType
from korvet.security.authorizer import refusal


def handle(request: wire.InitProducerIdRequest, caller: Caller, _api: LogApi) -> wire.InitProducerIdResponse:
    """Return a new producer id."""
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "transactions are not supported")
    # Who may write to some topic may do so idempotently (KIP-679).
    if not (
        caller.rights.allows_any(AclOperation.WRITE, AclResourceType.TOPIC)
        or caller.rights.allows_cluster(AclOperation.IDEMPOTENT_WRITE)
    ):
        raise refusal(AclResourceType.CLUSTER)
    return wire.InitProducerIdResponse(producer_id=new_producer_id(), producer_epoch=0)


def refuse(
    _request: wire.InitProducerIdRequest, _caller: Caller, error: KafkaError
) -> wire.InitProducerIdResponse:
    """Answer with the error."""
    return wire.InitProducerIdResponse(error_code=error.code, producer_epoch=-1)


register(wire.InitProducerIdRequest, LogApi, handle, refuse)
