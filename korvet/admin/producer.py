"""Idempotent and transactional producers: record batches to the leaders of their partitions, each appended once.

A batch whose response was lost is sent again with the same sequence, by which the broker recognizes it (KIP-98). So one
batch per partition is in flight at a time.

    >>> with AdminClient("127.0.0.1:9092") as client:
    ...     producer = IdempotentProducer(client, new_identity(client))
    ...     settled(producer.send({TopicPartition("orders", 0): batch}))
    {TopicPartition(topic='orders', partition=0): 0}

A transactional producer commits what it has sent together with the offsets of a group, by the second protocol of
transactions (KIP-890): brokers add partitions and groups to the transaction, and each transaction has its own epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from korvet.admin.client import AdminClient
from korvet.admin.connection import Address
from korvet.admin.errors import AdminError, BrokerError, error_in, raise_error_in
from korvet.admin.offsets import CommittedOffset, commit_parts
from korvet.admin.routing import Attempt, Route
from korvet.admin.types import Outcomes, Resource, TopicPartition, partitions_in, settled, topics_of
from korvet.errors import ErrorCode
from korvet.protocol.messages import end_txn, init_producer_id, produce, txn_offset_commit
from korvet.protocol.records.batch import SEQUENCES, BatchHeader, with_producer
from korvet.protocol.schema import Message
from korvet.protocol.types import ACKS_ALL

# Later versions name topics by id.
_PRODUCE_VERSIONS = (3, 12)
# Those of KIP-890.
_TRANSACTIONAL_PRODUCE_VERSIONS = (12, 12)
_TRANSACTIONAL_COMMIT_VERSIONS = (5, 5)
_END_VERSIONS = (5, 5)
_LIMIT = "max.message.bytes"

# What Kafka's own producers send where there are no transactions.
_NO_TRANSACTION_MS = 2**31 - 1


class Identity(NamedTuple):
    """The id and epoch of a producer."""

    producer_id: int
    epoch: int


def new_identity(client: AdminClient) -> Identity:
    """Return a new identity. Raises AdminError."""
    request = init_producer_id.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_MS
    )
    response = client.call(request, init_producer_id.InitProducerIdResponse)
    return Identity(response.producer_id, response.producer_epoch)


def batch_bytes_max(client: AdminClient, topic: str) -> int | None:
    """Return the largest batch that a topic accepts, None if its brokers do not say. Raises AdminError.

    They do not say it to all who may write: that takes the right DescribeConfigs.
    """
    resource = Resource.topic(topic)
    outcomes = client.configs.describe([resource], names=[_LIMIT])
    error = outcomes[resource]
    if isinstance(error, BrokerError) and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return None
    config = settled(outcomes)[resource].get(_LIMIT)
    return None if config is None or config.value is None else int(config.value)


class IdempotentProducer:
    """Sends batches under one identity; for one thread.

    `sequences` are the next ones of partitions; the others begin with 0. After an error of a partition it is not known
    whether its batch was appended, unless the broker refused it: send nothing more to that partition.
    """

    def __init__(
        self,
        client: AdminClient,
        identity: Identity,
        sequences: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.identity = identity
        self.sequences = dict(sequences or {})
        self.transactional_id: str | None = None
        self._client = client
        self._leaders: dict[TopicPartition, Address] = {}

    def send(self, batches: Mapping[TopicPartition, bytes]) -> Outcomes[TopicPartition, int]:
        """Append a batch to each partition. Returns its first offset there, or an error.

        A batch that was appended before has the offset that it got then, or -1 if the broker has forgotten it.
        """
        is_transactional = self.transactional_id is not None
        # The same bytes at each attempt: a copy that is still in flight must be recognized.
        parts = {
            key: produce.PartitionProduceData(
                index=key.partition,
                records=with_producer(
                    batch, *self.identity, self.sequences.get(key, 0), transactional=is_transactional
                ),
            )
            for key, batch in batches.items()
        }
        versions = _TRANSACTIONAL_PRODUCE_VERSIONS if is_transactional else _PRODUCE_VERSIONS

        def ask(attempt: Attempt, keys: list[TopicPartition]) -> Outcomes[TopicPartition, int]:
            request = produce.ProduceRequest(
                transactional_id=self.transactional_id,
                acks=ACKS_ALL,
                timeout_ms=attempt.timeout_ms,
                topic_data=topics_of(produce.TopicProduceData, keys, parts),
            )
            response = attempt.send(request, produce.ProduceResponse, versions)
            return {
                key: _error(result) or result.base_offset for key, result in partitions_in(response.responses)
            }

        outcomes = self._client.for_each(batches, Route.LEADER, ask, leaders=self._leaders)
        for key, outcome in outcomes.items():
            if not isinstance(outcome, AdminError):
                count = BatchHeader.read(batches[key]).record_count
                self.sequences[key] = (self.sequences.get(key, 0) + count) % SEQUENCES
        return outcomes


class TransactionalProducer(IdempotentProducer):
    """Sends batches that count once they are committed, all together or none; for one thread.

    After an error of `commit` the transaction may be committed or not, unless `abort` succeeds after it.
    """

    def __init__(self, client: AdminClient, transactional_id: str, timeout_ms: int) -> None:
        """Fence the producer that has had this id, and abort what it has left open. Raises AdminError.

        `timeout_ms` is for how long a transaction may be open.
        """
        super().__init__(client, Identity(-1, -1))
        self.transactional_id: str = transactional_id
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._renew(request, init_producer_id.InitProducerIdResponse)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit what was sent since the last commit, and offsets of a group with it. Raises AdminError."""
        parts = commit_parts(txn_offset_commit.TxnOffsetCommitRequestPartition, offsets)
        request = txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=topics_of(txn_offset_commit.TxnOffsetCommitRequestTopic, parts, parts),
        )

        def ask(attempt: Attempt, keys: list[str]) -> Outcomes[str, None]:
            answer = txn_offset_commit.TxnOffsetCommitResponse
            response = attempt.send(request, answer, _TRANSACTIONAL_COMMIT_VERSIONS)
            for _, result in partitions_in(response.topics):
                raise_error_in(result.error_code)
            return dict.fromkeys(keys)

        settled(self._client.for_each([group_id], Route.GROUP, ask))
        self._end(committed=True)

    def abort(self) -> None:
        """Abort what was sent since the last commit, if anything was. Raises AdminError."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        request = end_txn.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
        )
        self._renew(request, end_txn.EndTxnResponse, _END_VERSIONS)

    def _renew(
        self,
        request: Message,
        answer: type[init_producer_id.InitProducerIdResponse | end_txn.EndTxnResponse],
        versions: tuple[int, int] | None = None,
    ) -> None:
        """Send a request that ends a transaction, and take the identity of the next one."""
        response = self._client.call(request, answer, Route.TRANSACTION, self.transactional_id, versions)
        self.identity = Identity(response.producer_id, response.producer_epoch)
        self.sequences.clear()


def _error(response: produce.PartitionProduceResponse) -> BrokerError | None:
    """Return why a batch was not appended, with the error of its first bad record (KIP-467)."""
    messages = [response.error_message] + [
        error.batch_index_error_message for error in response.record_errors[:1]
    ]
    return error_in(response.error_code, ": ".join(filter(None, messages)))
