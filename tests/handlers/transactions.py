"""Requests of a transactional producer, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from korvet.protocol.messages.describe_transactions import DescribeTransactionsRequest
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.support.topic_client import Client

TIMEOUT_MS = 60_000


class Producer:
    """A producer with a transactional id, over one connection."""

    def __init__(self, client: Client, transactional_id: str) -> None:
        self.client, self.name = client, transactional_id
        answer = client.call(
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS), 5
        )
        assert answer.error_code == ErrorCode.NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        """Add partitions of a topic; returns the code of each."""
        return self.add_all([(topic, partitions)], version=version)

    def add_all(
        self,
        topics: Sequence[tuple[str, Sequence[int]]],
        *,
        version: int = 3,
        verify_only: bool = False,
    ) -> list[int]:
        """Add partitions of topics as a client, or from version 4 on as a broker; returns the code of each."""
        asked = [AddPartitionsToTxnTopic(name=name, partitions=list(indexes)) for name, indexes in topics]
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=asked,
            )
            results = self.client.call(request, version).results_by_topic_v3_and_below
        else:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                verify_only=verify_only,
                topics=asked,
            )
            answer = self.client.call(AddPartitionsToTxnRequest(transactions=[transaction]), version)
            assert answer.error_code == ErrorCode.NONE
            [result] = answer.results_by_transaction
            assert result.transactional_id == self.name
            results = result.topic_results
        assert [each.name for each in results] == [name for name, _ in topics]
        return [each.partition_error_code for topic in results for each in topic.results_by_partition]

    def add_group(self, group: str, version: int = 4) -> int:
        """Add a group; returns the code."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        code: int = self.client.call(request, version).error_code
        return code

    def end(self, *, committed: bool, version: int = 4) -> Any:
        """End the transaction; returns the response."""
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return self.client.call(request, version)

    def described(self) -> Any:
        """Return what DescribeTransactions says about the id."""
        [state] = self.client.call(
            DescribeTransactionsRequest(transactional_ids=[self.name]), 0
        ).transaction_states
        return state
