"""The requests, by subject. A room is a list of functions, each of which asks a session in order."""

from __future__ import annotations

from tests.differential.rooms import (
    cluster,
    fetch,
    groups,
    modern_groups,
    produce,
    schema,
    security,
    topics,
    transactions,
)
from tests.differential.session import Session

ROOMS = {
    "produce": produce.ROOM,
    "fetch": fetch.ROOM,
    "topics": topics.ROOM,
    "groups": groups.ROOM,
    "modern_groups": modern_groups.ROOM,
    "transactions": transactions.ROOM,
    "security": security.ROOM,
    "cluster": cluster.ROOM,
    "schema": schema.ROOM,
}


def settle(session: Session) -> None:
    """Wait until the coordinators are there: Kafka creates their topics when they are first asked for."""
    for kind, key in ((0, "settle"), (1, "settle"), (2, "settle:AAAAAAAAAAAAAAAAAAAAAQ:0")):
        session.ask("FindCoordinator", 6, None, {"CoordinatorKeys": [key], "KeyType": kind})
    session.ask("InitProducerId", 4, None, {"TransactionalId": "settle", "TransactionTimeoutMs": 10_000})
    session.ask("OffsetFetch", 7, None, {"GroupId": "settle", "Topics": None})
