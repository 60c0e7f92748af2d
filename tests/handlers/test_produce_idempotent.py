"""Idempotent producers by bytes (KIP-98, KIP-360): each batch once and in order, whatever is sent again."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.handlers.formats import BOTH_FORMATS, ONLY_RECORD
from tests.support.batches import batch, headers_of, values
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


class Producer:
    """An idempotent producer of one topic that sends what the test says."""

    def __init__(self, client: Client, topic: str) -> None:
        client.create(topic)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        self.id = client.call(request, 0).producer_id
        self.client, self.topic = client, topic

    def send(self, sequence: int, *values: bytes, epoch: int = 0) -> tuple[ErrorCode, int]:
        records = batch(*(values or (b"v",)), producer_id=self.id, epoch=epoch, sequence=sequence)
        response = self.client.produce(self.topic, records)
        return ErrorCode(response.error_code), response.base_offset

    def log(self) -> list[bytes | None]:
        return values(self.client.fetch(self.topic).records)


@pytest.fixture
def producer(client: Client, topic: str) -> Producer:
    return Producer(client, topic)


def test_a_batch_sent_again_is_answered_with_its_first_offset_and_written_once(producer: Producer) -> None:
    sent = [producer.send(2 * n, b"%d" % n, b"%d'" % n) for n in range(5)]
    assert {code for code, _ in sent} == {ErrorCode.NONE}
    assert len({offset for _, offset in sent}) == 5
    assert [producer.send(2 * n, b"%d" % n, b"%d'" % n) for n in (0, 4, 2, 1, 3)] == [
        sent[n] for n in (0, 4, 2, 1, 3)
    ]
    assert len(producer.log()) == 10


def test_a_batch_out_of_its_turn_is_refused_by_its_name(producer: Producer) -> None:
    assert [producer.send(n)[0] for n in range(6)] == [ErrorCode.NONE] * 6
    assert producer.send(0) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert producer.send(7) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(0, epoch=1)[0] == ErrorCode.NONE
    assert producer.send(6, epoch=0) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert len(producer.log()) == 7


def test_partitions_count_apart(client: Client, topic: str) -> None:
    client.create(topic, 2)
    for partition in (0, 1):
        records = batch(b"v", producer_id=77, epoch=0, sequence=partition * 10)
        assert client.produce(topic, records, partition).error_code == ErrorCode.NONE


def test_a_retry_may_come_over_another_worker(two_clients: tuple[Client, Client], topic: str) -> None:
    here, there = two_clients
    producer = Producer(here, topic)
    sent = producer.send(0, b"once")
    producer.client = there
    assert producer.send(0, b"once") == sent
    assert producer.send(1, b"next")[0] == ErrorCode.NONE
    assert producer.log() == [b"once", b"next"]


@ONLY_RECORD
def test_batches_that_consumers_get_name_no_producer(producer: Producer) -> None:
    producer.send(0, b"a")
    producer.send(1, b"b")
    [header] = headers_of(producer.client.fetch(producer.topic).records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.partition_leader_epoch == producer.client.leader_epoch(producer.topic)
