"""InitProducerId (key 22), versions 0-5: an id for an idempotent producer (KIP-98).

Without a transactional id every request gets a new id with epoch 0, also one that names the id it had (KIP-360): the
sequences of that producer start over. Transactions are not supported.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.protocol.messages import init_producer_id as wire


def handle(request: wire.InitProducerIdRequest, _caller: Caller, api: LogApi) -> wire.InitProducerIdResponse:
    """Return a new producer id."""
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "transactions are not supported")
    return wire.InitProducerIdResponse(producer_id=api.producer_ids.take(), producer_epoch=0)


def refuse(
    _request: wire.InitProducerIdRequest, _caller: Caller, error: KafkaError
) -> wire.InitProducerIdResponse:
    """Answer with the error; COORDINATOR_LOAD_IN_PROGRESS, as Kafka's broker answers, is the code that producers retry.

    A code that makes it look for its coordinator would not do: without a transactional id it has none, and Java's
    producer fails at the attempt.
    """
    code = error.code
    if code is ErrorCode.KAFKA_STORAGE_ERROR:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return wire.InitProducerIdResponse(error_code=code, producer_epoch=-1)


register(wire.InitProducerIdRequest, LogApi, handle, refuse)
