"""Requests about transactions (KIP-664): list, describe and abort them. Reached as `AdminClient.transactions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from korvet.admin.cluster import Partitions, Producer
from korvet.admin.connection import Deadline
from korvet.admin.errors import AdminError, error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient
from korvet.admin.types import Outcomes, TopicPartition, known, settled
from korvet.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from korvet.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from korvet.protocol.types import CoordinatorType

TIMEOUT_MS_MAX = 900_000
"""The default of transaction.max.timeout.ms: what is open for longer may have no coordinator that ends it."""

UNDECIDED = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""The states of a transaction that is open."""


class Transaction(msgspec.Struct, frozen=True):
    """A transactional id in a list."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id: its producer, and the partitions of the transaction that is open, begun at `start_ms`."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: list[TopicPartition]


class HangingTransaction(msgspec.Struct, frozen=True):
    """A transaction that is open in a partition, and that no coordinator will end; `producer` is its producer there."""

    at: TopicPartition
    producer: Producer


class Transactions:
    """The requests about transactions."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[Transaction]:
        """Return the transactional ids of all brokers, by name; only those that pass the filters, if given.

        `older_than_ms`: whose transaction has been open for longer; `id_pattern`: a regular expression in RE2's syntax
        that matches all of the id. Raises AdminError: UnsupportedError if a broker is too old (Kafka 3.0, for
        `older_than_ms` 3.7, for `id_pattern` 4.1), INVALID_REGULAR_EXPRESSION.

            >>> ongoing = admin.transactions.list(states=["Ongoing"])
        """
        request = ListTransactionsRequest(
            state_filters=[*states],
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if older_than_ms is None else older_than_ms,
            transactional_id_pattern=id_pattern,
        )

        def attempt(deadline: Deadline) -> dict[str, Transaction]:
            # Each broker lists those that it coordinates.
            found: dict[str, Transaction] = {}
            for address in self._client.topology_now((), deadline).brokers.values():
                response = Attempt(self._client, address, deadline).send(request, ListTransactionsResponse)
                raise_error_in(response.error_code)
                for each in response.transaction_states:
                    name = each.transactional_id
                    found[name] = Transaction(name, each.producer_id, each.transaction_state)
            return found

        return [each for _, each in sorted(self._client.retry(attempt).items())]

    def describe(self, transactional_ids: Iterable[str]) -> Outcomes[str, TransactionDescription]:
        """Return each transactional id, or an error: TransactionalIdNotFoundError if there is none.

        >>> described = admin.transactions.describe(["orders-1"])
        """

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, TransactionDescription]:
            request = DescribeTransactionsRequest(transactional_ids=[*keys])
            response = attempt.send(request, DescribeTransactionsResponse)
            return {each.transactional_id: _description(each) for each in response.transaction_states}

        route = partial(self._client.to_coordinators, kind=CoordinatorType.TRANSACTION)
        return self._client.for_each(transactional_ids, route, ask)

    def abort(self, at: TopicPartition, producer: Producer) -> None:
        """Abort the transaction that a producer has open in a partition, which only a hanging one should need.

        It writes a marker there, and no coordinator learns of it. `producer` is what `partitions.producers` says of it.
        Raises AdminError: InvalidProducerEpochError if the producer has another epoch by now.
        """

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, None]:
            marker = WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=False,
                topics=[
                    WritableTxnMarkerTopic(name=key.topic, partition_indexes=[key.partition]) for key in keys
                ],
                coordinator_epoch=producer.coordinator_epoch,
            )
            response = attempt.send(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
            return {
                TopicPartition(topic.name, each.partition_index): error_in(each.error_code)
                for result in response.markers
                for topic in result.topics
                for each in topic.partitions
            }

        settled(self._client.for_each([at], self._client.to_leaders, ask))

    def find_hanging(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int = TIMEOUT_MS_MAX
    ) -> Sequence[HangingTransaction]:
        """Return what has been open in these partitions for longer, and belongs to no transaction of a coordinator.

        Raises AdminError.

            >>> admin.transactions.find_hanging([TopicPartition("orders", 0)])
            []
        """
        before_ms = time.time() * 1000 - older_than_ms
        suspects = [
            HangingTransaction(at, producer)
            for at, producers in settled(Partitions(self._client).producers(partitions)).items()
            for producer in producers
            if producer.transaction_start is not None and producer.last_timestamp < before_ms
        ]
        if not suspects:
            return []
        ids = {each.producer.producer_id for each in suspects}
        named = [each.transactional_id for each in self.list(producer_ids=ids)]
        owned = {
            (each.producer_id, at)
            for each in self.describe(named).values()
            if not isinstance(each, AdminError) and each.state in UNDECIDED
            for at in each.partitions
        }
        return [each for each in suspects if (each.producer.producer_id, each.at) not in owned]


def _description(found: TransactionState) -> TransactionDescription | AdminError:
    error = error_in(found.error_code)
    if error is not None:
        return error
    return TransactionDescription(
        transactional_id=found.transactional_id,
        state=found.transaction_state,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        start_ms=known(found.transaction_start_time_ms),
        partitions=[TopicPartition(each.topic, index) for each in found.topics for index in each.partitions],
    )
