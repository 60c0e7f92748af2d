"""Requests about transactions (KIP-664): list, describe and abort them. Reached as `AdminClient.transactions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from korvet.admin.cluster import Partitions, Producer
from korvet.admin.errors import AdminError, error_in
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import Outcomes, TopicPartition, errors_in, known, settled, topics_of
from korvet.protocol.messages import describe_transactions, list_transactions, write_txn_markers

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


class Transactions(Requests):
    """The requests about transactions."""

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
        that matches all of the id, UnsupportedError before Kafka 4.1. Raises AdminError: INVALID_REGULAR_EXPRESSION.

            >>> ongoing = admin.transactions.list(states=["Ongoing"])
        """
        request = list_transactions.ListTransactionsRequest(
            state_filters=[*states],
            producer_id_filters=[*producer_ids],
            duration_filter=-1 if older_than_ms is None else older_than_ms,
            transactional_id_pattern=id_pattern,
        )
        # Each broker lists those that it coordinates.
        transactions = {
            state.transactional_id: Transaction(
                state.transactional_id, state.producer_id, state.transaction_state
            )
            for response in self._client.call_all(request, list_transactions.ListTransactionsResponse)
            for state in response.transaction_states
        }
        return [transaction for _, transaction in sorted(transactions.items())]

    def describe(self, transactional_ids: Iterable[str]) -> Outcomes[str, TransactionDescription]:
        """Return each transactional id, or an error: TransactionalIdNotFoundError if there is none.

        >>> described = admin.transactions.describe(["orders-1"])
        """

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, TransactionDescription]:
            request = describe_transactions.DescribeTransactionsRequest(transactional_ids=[*keys])
            response = attempt.send(request, describe_transactions.DescribeTransactionsResponse)
            return {state.transactional_id: _description(state) for state in response.transaction_states}

        return self._client.for_each(transactional_ids, Route.TRANSACTION, ask)

    def abort(self, partition: TopicPartition, producer: Producer) -> None:
        """Abort the transaction that a producer has open in a partition, which only a hanging one should need.

        It writes a marker there, and no coordinator learns of it. `producer` is what `partitions.producers` says of it.
        Raises AdminError: InvalidProducerEpochError if the producer has another epoch by now.
        """

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, None]:
            marker = write_txn_markers.WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=False,
                topics=topics_of(write_txn_markers.WritableTxnMarkerTopic, keys),
                coordinator_epoch=producer.coordinator_epoch,
            )
            request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker])
            response = attempt.send(request, write_txn_markers.WriteTxnMarkersResponse)
            return errors_in(topic for result in response.markers for topic in result.topics)

        settled(self._client.for_each([partition], Route.LEADER, ask))

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
        ids = {suspect.producer.producer_id for suspect in suspects}
        named = [transaction.transactional_id for transaction in self.list(producer_ids=ids)]
        owned = {
            (described.producer_id, partition)
            for described in self.describe(named).values()
            if not isinstance(described, AdminError) and described.state in UNDECIDED
            for partition in described.partitions
        }
        return [suspect for suspect in suspects if (suspect.producer.producer_id, suspect.at) not in owned]


def _description(state: describe_transactions.TransactionState) -> TransactionDescription | AdminError:
    return error_in(state.error_code) or TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        start_ms=known(state.transaction_start_time_ms),
        partitions=[
            TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions
        ],
    )
