"""InitProducerId (key 22), versions 0-5, flexible from 2. The id that makes appends idempotent.

A null transactional id asks for an idempotent producer only (KIP-98). Version 3 sends the id and epoch that the
producer has, to have its epoch raised (KIP-360). 4 allows PRODUCER_FENCED (KIP-588) and 5 TRANSACTION_ABORTABLE
(KIP-890). Version 6 (KIP-939) is not stable in Apache Kafka and not served here.
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, ResponseWithCode, since
from korvet.protocol.wire import int16, int32, int64, string


class InitProducerIdRequest(Message, kw_only=True):
    api = Api(key=22, versions=(0, 5), flexible=2)

    transactional_id: string | None
    transaction_timeout_ms: int32
    producer_id: Annotated[int64, since(3)] = -1
    producer_epoch: Annotated[int16, since(3)] = -1


class InitProducerIdResponse(ResponseWithCode, kw_only=True):
    """The id and epoch to use; the id is -1 beside an error."""

    producer_id: int64 = -1
    producer_epoch: int16
