"""FindCoordinator (key 10), versions 0-6: the broker that coordinates a group or the transactions of an id.

Any can; it spreads the load. Version 4 asks for many keys and answers for each (KIP-699). The members of a share group
ask for the group. The coordinators of the state that it has in a partition, of which brokers of Kafka ask, are none
here: who asks is to fail at once, with the reason.

Errors: INVALID_REQUEST.
"""

from __future__ import annotations

from korvet.cluster.brokers import ReachableBrokers
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_fields
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import (
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    GROUP,
    THE_CLUSTER,
    TRANSACTIONAL_ID,
    ItemRule,
    RequestRule,
    Resource,
)
from korvet.protocol.messages import find_coordinator as wire
from korvet.protocol.types import CoordinatorType

BATCH_VERSION_FIRST = 4


def handle(
    request: wire.FindCoordinatorRequest, caller: Caller, services: Services
) -> wire.FindCoordinatorResponse:
    """Answer each key with a live broker, the same one as long as it lives, at its address on the caller's listener."""
    if request.key_type not in (CoordinatorType.GROUP, CoordinatorType.TRANSACTION):
        is_share = request.key_type == CoordinatorType.SHARE
        message = "share-group state has no coordinators" if is_share else "the coordinator type is unknown"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    live = services.cluster.refresh().on(caller.session.listener)
    return _response([_found(key, live) for key in _keys(request, caller)], caller)


def _keys(request: wire.FindCoordinatorRequest, caller: Caller) -> list[str]:
    return request.coordinator_keys if caller.version >= BATCH_VERSION_FIRST else [request.key]


def _found(key: str, live: ReachableBrokers) -> wire.Coordinator:
    try:
        address = live.coordinator(key)
    except KafkaError as error:
        return _none(key, error)
    return wire.Coordinator(
        key=key, node_id=address.broker_id, host=address.host, port=address.port, error_message=None
    )


def _none(key: str, error: KafkaError) -> wire.Coordinator:
    return wire.Coordinator(key=key, node_id=-1, host="", port=-1, **error_fields(error))


def _response(result: list[wire.Coordinator], caller: Caller) -> wire.FindCoordinatorResponse:
    if caller.version >= BATCH_VERSION_FIRST:
        return wire.FindCoordinatorResponse(coordinators=result)
    [one] = result
    return wire.FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinated(request: wire.FindCoordinatorRequest, key: str, _topics: object = None) -> Resource | None:
    match request.key_type:
        case CoordinatorType.GROUP:
            return GROUP, key
        case CoordinatorType.TRANSACTION:
            return TRANSACTIONAL_ID, key
    return None


register(
    handle,
    lambda request, caller, error: _response([_none(key, error) for key in _keys(request, caller)], caller),
    rights=[
        RequestRule(
            CLUSTER_ACTION,
            (CLUSTER,),
            lambda request: THE_CLUSTER if request.key_type == CoordinatorType.SHARE else None,
        ),
        RequestRule(
            DESCRIBE,
            (GROUP, TRANSACTIONAL_ID),
            lambda request: None if request.coordinator_keys else _coordinated(request, request.key),
        ),
        ItemRule(DESCRIBE, (GROUP, TRANSACTIONAL_ID), "coordinator_keys", "coordinators", _coordinated),
    ],
)
