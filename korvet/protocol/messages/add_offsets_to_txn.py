"""AddOffsetsToTxn (key 25), versions 0-4, flexible from 3. A group's offsets join a transaction (KIP-98).

Version 1 is the same as version 0. 2 allows PRODUCER_FENCED (KIP-588) and 4 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, ResponseWithCode
from korvet.protocol.wire import int16, int64, string


class AddOffsetsToTxnRequest(Message, kw_only=True):
    api = Api(key=25, versions=(0, 4), flexible=3)

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    group_id: string


class AddOffsetsToTxnResponse(ResponseWithCode, kw_only=True):
    pass
