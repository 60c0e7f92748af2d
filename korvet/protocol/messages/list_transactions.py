"""ListTransactions (key 66), versions 0-2, flexible from 0. An administrator lists transactions (KIP-664).

Version 1 filters by how long a transaction is open (KIP-994), 2 by a pattern of its id (KIP-1152).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode, since
from korvet.protocol.wire import int64, string


class ListTransactionsRequest(Message, kw_only=True):
    """Asks for those that pass every filter; an empty list, a negative duration, an empty pattern and none pass all."""

    api = Api(key=66, versions=(0, 2), flexible=0)

    state_filters: list[string] = []
    producer_id_filters: list[int64] = []
    duration_filter: Annotated[int64, since(1)] = -1
    transactional_id_pattern: Annotated[string | None, since(2)] = None


class TransactionState(Part, kw_only=True):
    transactional_id: string
    producer_id: int64
    transaction_state: string


class ListTransactionsResponse(ResponseWithCode, kw_only=True):
    """The transactions, and the names among the filters that are no state."""

    unknown_state_filters: list[string] = []
    transaction_states: list[TransactionState] = []
