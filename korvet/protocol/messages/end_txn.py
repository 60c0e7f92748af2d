"""EndTxn (key 26), versions 0-5, flexible from 3. A producer commits or aborts its transaction (KIP-98).

Version 1 is the same as version 0. 2 allows PRODUCER_FENCED (KIP-588) and 4 TRANSACTION_ABORTABLE (KIP-890). 5 raises
the producer's epoch with every transaction and answers what to use for the next one (KIP-890).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, ResponseWithCode, since
from korvet.protocol.wire import boolean, int16, int64, string


class EndTxnRequest(Message, kw_only=True):
    """Ends a transaction: committed, or aborted if that is false."""

    api = Api(key=26, versions=(0, 5), flexible=3)

    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    committed: boolean


class EndTxnResponse(ResponseWithCode, kw_only=True):
    """The id and epoch of the next transaction; -1 beside an error."""

    producer_id: Annotated[int64, since(5, ignorable=True)] = -1
    producer_epoch: Annotated[int16, since(5, ignorable=True)] = -1
