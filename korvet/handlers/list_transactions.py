"""ListTransactions (key 66), versions 0-2: lists the transactional ids that this broker coordinates (KIP-664).

Clients ask all brokers and show all answers, so a broker lists only ids for which FindCoordinator names it. A
caller gets the ids it may describe, and no error. Version 1 asks for transactions older than a duration
(KIP-994); an id without a transaction counts as old, as in Kafka. Version 2 asks for ids that match a regular
expression (KIP-1152).

Errors: INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, TRANSACTIONAL_ID, by_handler
from korvet.protocol.messages import list_transactions as wire
from korvet.topics.pattern import compile_pattern
from korvet.transactions.types import OTHER_STATES, STATES, TransactionFilter


def handle(
    request: wire.ListTransactionsRequest, caller: Caller, services: Services
) -> wire.ListTransactionsResponse:
    live = services.cluster.refresh()

    def is_coordinated(transactional_id: str) -> bool:
        return live.coordinator(transactional_id) == services.cluster.this.broker_id

    pattern = request.transactional_id_pattern
    wanted = TransactionFilter(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
        compile_pattern(pattern) if pattern else None,
    )
    return wire.ListTransactionsResponse(
        unknown_state_filters=[
            state for state in request.state_filters if state not in (*STATES, *OTHER_STATES)
        ],
        transaction_states=[
            wire.TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state,
            )
            for transaction in services.transactions.list(wanted)
            if is_coordinated(transaction.transactional_id)
            and caller.rights.allows(DESCRIBE, TRANSACTIONAL_ID, transaction.transactional_id, log=False)
        ],
    )


register(
    handle,
    refuse_whole(wire.ListTransactionsResponse, of_group=True),
    rights=[by_handler((DESCRIBE, TRANSACTIONAL_ID))],
)
