"""FindCoordinator (key 10), versions 0-6: which broker keeps a group. Any can, so it is advice that spreads the load.

Version 4 asks for many keys and answers for each (KIP-699). Transactions and share groups are not supported: their
keys get INVALID_REQUEST, which ends such a client at once, with the reason, instead of leaving it to retry.
"""

from __future__ import annotations

from collections.abc import Callable

from korvet.domain.cluster import BrokerAddress
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.handler import Broker, Caller
from korvet.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

REQUEST = FindCoordinatorRequest
BATCH_VERSION_FIRST = 4
GROUP = 0
UNSUPPORTED = {1: "transactions are not supported", 2: "share groups are not supported"}
NOWHERE = BrokerAddress(-1, "", -1)


def handle(request: FindCoordinatorRequest, caller: Caller, broker: Broker) -> FindCoordinatorResponse:
    """Answer each key with a live broker, always the same one as long as that lives."""
    if request.key_type != GROUP:
        message = UNSUPPORTED.get(request.key_type, f"coordinator type {request.key_type} is unknown")
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return _response(request, caller, ErrorCode.NONE, None, broker.cluster.look().coordinator)


def refuse(request: FindCoordinatorRequest, caller: Caller, error: KafkaError) -> FindCoordinatorResponse:
    """Answer every key with the error."""
    return _response(request, caller, error.code, error.message or None, lambda _key: NOWHERE)


def _response(
    request: FindCoordinatorRequest,
    caller: Caller,
    code: ErrorCode,
    message: str | None,
    address_of: Callable[[str], BrokerAddress],
) -> FindCoordinatorResponse:
    if caller.version < BATCH_VERSION_FIRST:
        address = address_of(request.key)
        return FindCoordinatorResponse(
            error_code=code,
            error_message=message,
            node_id=address.broker_id,
            host=address.host,
            port=address.port,
        )
    coordinators = []
    for key in request.coordinator_keys:
        address = address_of(key)
        coordinators.append(
            Coordinator(
                key=key,
                node_id=address.broker_id,
                host=address.host,
                port=address.port,
                error_code=code,
                error_message=message,
            )
        )
    return FindCoordinatorResponse(coordinators=coordinators)
