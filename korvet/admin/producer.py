"""An idempotent producer: record batches to the leaders of their partitions, each appended once.

Knows Produce and InitProducerId; nothing of records, which come as batches without a producer. A batch whose answer was
lost is sent again with the same sequence, and the broker tells it from a new one (KIP-98). So there is one batch of a
partition on its way at a time.

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
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.types import Resource, TopicPartition, bad_partition, by_topic, for_each, settled
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
    """What a broker knows a producer by."""

    producer_id: int
    epoch: int


def new_identity(client: AdminClient) -> Identity:
    """Return an identity that nobody else has; raises AdminError."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_MS)

    def ask(deadline: Deadline) -> Identity:
        response = client.ask_any(request, InitProducerIdResponse, deadline)
        error = BrokerError.of(response.error_code)
        if error is not None:
            raise error
        return Identity(response.producer_id, response.producer_epoch)

    return client.question(ask)


def batch_bytes_max(client: AdminClient, topic: str) -> int | None:
    """Return how large a batch a topic takes, None where its brokers do not tell; raises AdminError."""
    resource = Resource.topic(topic)
    told = settled(client.configs.describe([resource], names=[_LIMIT]))[resource].get(_LIMIT)
    return None if told is None or told.value is None else int(told.value)


class IdempotentProducer:
    """Sends batches under one identity; for one thread.

    `sequences` are those that partitions go on with: others begin with 0. After an error of a partition nobody knows
    here whether its batch was appended, unless the broker has refused it: nothing more should be sent there.
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

    def send(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int | AdminError]:
        """Append a batch to each partition; returns its first offset there, or what kept it from being appended.

        A batch that was appended before has the offset that it got then, or -1 where the broker has forgotten it. It
        takes as long as all tries of a question may.
        """
        # The same bytes at each try: a batch that is on its way still is no other one.
        sealed = {
            key: with_producer(batch, *self.identity, self.sequences.get(key, 0))
            for key, batch in batches.items()
        }

        def ask(
            address: Address, keys: list[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, int | AdminError]:
            request = _request({key: sealed[key] for key in keys}, deadline)
            response = self._client.ask(address, request, ProduceResponse, deadline, _PRODUCE_VERSIONS)
            outcomes = for_each(address, keys, _outcomes(response))
            appended = (key for key, each in outcomes.items() if not isinstance(each, AdminError))
            self._leaders |= dict.fromkeys(appended, address)
            return outcomes

        outcomes = self._client.settle(batches, self._route, ask, refuse=bad_partition)
        for key, outcome in outcomes.items():
            if not isinstance(outcome, AdminError):
                count = BatchHeader._make(HEADER.unpack_from(batches[key])).record_count
                self.sequences[key] = (self.sequences.get(key, 0) + count) % SEQUENCES
        return outcomes

    def _route(
        self, keys: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Address | AdminError]:
        """Return the leaders, as they answered the last time: each is asked for once, and again after a failure."""
        known = {key: self._leaders.pop(key) for key in keys if key in self._leaders}
        unknown = [key for key in keys if key not in known]
        return known | (self._client.leaders(unknown, deadline) if unknown else {})


def _request(batches: Mapping[TopicPartition, bytes], deadline: Deadline) -> ProduceRequest:
    topics = [
        TopicProduceData(
            name=name,
            partition_data=[
                PartitionProduceData(index=each.partition, records=memoryview(batches[each])) for each in some
            ],
        )
        for name, some in by_topic(batches)
    ]
    return ProduceRequest(acks=ACKS_ALL, timeout_ms=deadline.broker_ms(), topic_data=topics)


def _outcomes(response: ProduceResponse) -> dict[TopicPartition, int | AdminError]:
    return {
        TopicPartition(topic.name, each.index): _error(each) or each.base_offset
        for topic in response.responses
        for each in topic.partition_responses
    }


def _error(response: PartitionProduceResponse) -> BrokerError | None:
    """Return why a batch was not appended, with what is wrong with its first record that spoilt it (KIP-467)."""
    messages = [response.error_message] + [
        each.batch_index_error_message for each in response.record_errors[:1]
    ]
    return BrokerError.of(response.error_code, ": ".join(filter(None, messages)))
