"""An idempotent producer: record batches to the leaders of their partitions, each appended once.

A batch whose response was lost is sent again with the same sequence, by which the broker recognizes it (KIP-98). So one
batch per partition is in flight at a time.

    >>> with AdminClient("127.0.0.1:9092") as client:
    ...     producer = IdempotentProducer(client, new_identity(client))
    ...     settled(producer.send({TopicPartition("orders", 0): batch}))
    {TopicPartition(topic='orders', partition=0): 0}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from korvet.admin.client import AdminClient
from korvet.admin.connection import Address, Deadline
from korvet.admin.errors import AdminError, BrokerError, error_in, raise_error_in
from korvet.admin.routing import Attempt, Routes
from korvet.admin.types import Outcomes, Resource, TopicPartition, by_topic, settled
from korvet.errors import ErrorCode
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.records.batch import HEADER, SEQUENCES, BatchHeader, with_producer
from korvet.protocol.types import ACKS_ALL

# Later versions name topics by id.
_PRODUCE_VERSIONS = (3, 12)
_LIMIT = "max.message.bytes"

# What Kafka's own producers send where there are no transactions.
_NO_TRANSACTION_MS = 2**31 - 1


class Identity(NamedTuple):
    """The id and epoch of a producer."""

    producer_id: int
    epoch: int


def new_identity(client: AdminClient) -> Identity:
    """Return a new identity. Raises AdminError."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_MS)

    def attempt(deadline: Deadline) -> Identity:
        response = client.send_any(request, InitProducerIdResponse, deadline)
        raise_error_in(response.error_code)
        return Identity(response.producer_id, response.producer_epoch)

    return client.retry(attempt)


def batch_bytes_max(client: AdminClient, topic: str) -> int | None:
    """Return the largest batch that a topic accepts, None if its brokers do not say. Raises AdminError.

    They do not say it to all who may write: that takes the right DescribeConfigs.
    """
    resource = Resource.topic(topic)
    found = client.configs.describe([resource], names=[_LIMIT])
    error = found[resource]
    if isinstance(error, BrokerError) and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return None
    config = settled(found)[resource].get(_LIMIT)
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
        self._client = client
        self._leaders: dict[TopicPartition, Address] = {}

    def send(self, batches: Mapping[TopicPartition, bytes]) -> Outcomes[TopicPartition, int]:
        """Append a batch to each partition. Returns its first offset there, or an error.

        A batch that was appended before has the offset that it got then, or -1 if the broker has forgotten it.
        """
        # The same bytes at each attempt: a copy that is still in flight must be recognized.
        sealed = {
            key: with_producer(batch, *self.identity, self.sequences.get(key, 0))
            for key, batch in batches.items()
        }

        def ask(attempt: Attempt, keys: list[TopicPartition]) -> Outcomes[TopicPartition, int]:
            request = _request({key: sealed[key] for key in keys}, attempt.timeout_ms)
            response = attempt.send(request, ProduceResponse, _PRODUCE_VERSIONS)
            outcomes: Outcomes[TopicPartition, int] = {
                TopicPartition(topic.name, each.index): _error(each) or each.base_offset
                for topic in response.responses
                for each in topic.partition_responses
            }
            appended = (key for key in keys if not isinstance(outcomes.get(key), AdminError | None))
            self._leaders |= dict.fromkeys(appended, attempt.address)
            return outcomes

        outcomes = self._client.for_each(batches, self._route, ask)
        for key, outcome in outcomes.items():
            if not isinstance(outcome, AdminError):
                count = BatchHeader._make(HEADER.unpack_from(batches[key])).record_count
                self.sequences[key] = (self.sequences.get(key, 0) + count) % SEQUENCES
        return outcomes

    def _route(self, keys: list[TopicPartition], deadline: Deadline) -> Routes[TopicPartition]:
        """Route to the leaders that accepted the last batches; look up the others, and all after a failure."""
        known: dict[TopicPartition, Address | AdminError] = {
            key: self._leaders.pop(key) for key in keys if key in self._leaders
        }
        unknown = [key for key in keys if key not in known]
        return known | dict(self._client.to_leaders(unknown, deadline)) if unknown else known


def _request(batches: Mapping[TopicPartition, bytes], timeout_ms: int) -> ProduceRequest:
    def part(key: TopicPartition) -> PartitionProduceData:
        return PartitionProduceData(index=key.partition, records=memoryview(batches[key]))

    topics = [TopicProduceData(name=name, partition_data=some) for name, some in by_topic(batches, part)]
    return ProduceRequest(acks=ACKS_ALL, timeout_ms=timeout_ms, topic_data=topics)


def _error(response: PartitionProduceResponse) -> BrokerError | None:
    """Return why a batch was not appended, with the error of its first bad record (KIP-467)."""
    messages = [response.error_message] + [
        each.batch_index_error_message for each in response.record_errors[:1]
    ]
    return error_in(response.error_code, ": ".join(filter(None, messages)))
