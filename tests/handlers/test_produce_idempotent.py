"""Idempotent producers by bytes (KIP-98, KIP-360): each batch once and in order, whatever is sent again."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.handlers.formats import BOTH_FORMATS, ONLY_RECORD
from tests.support.batches import batch, headers_of, values
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS

SEQUENCE_LAST = 2**31 - 1


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


def test_the_sixth_oldest_batch_is_a_duplicate_without_an_offset(producer: Producer) -> None:
    for n in range(6):
        assert producer.send(n)[0] == ErrorCode.NONE
    assert producer.send(0) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert producer.send(1)[0] == ErrorCode.NONE
    assert len(producer.log()) == 6


def test_a_gap_is_out_of_order(producer: Producer) -> None:
    assert producer.send(0)[0] == ErrorCode.NONE
    assert producer.send(2) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(1)[0] == ErrorCode.NONE
    assert producer.send(2)[0] == ErrorCode.NONE


def test_half_a_batch_again_is_out_of_order(producer: Producer) -> None:
    assert producer.send(0, b"a", b"b")[0] == ErrorCode.NONE
    assert producer.send(1, b"b", b"c")[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.log() == [b"a", b"b"]


def test_an_old_epoch_is_fenced_and_a_new_one_begins_with_sequence_0(producer: Producer) -> None:
    assert producer.send(0, epoch=1)[0] == ErrorCode.NONE
    assert producer.send(1, epoch=0) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert producer.send(1, epoch=2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, epoch=2)[0] == ErrorCode.NONE
    assert producer.send(1, epoch=1)[0] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_begin_anywhere(producer: Producer) -> None:
    assert producer.send(1000, epoch=7)[0] == ErrorCode.NONE
    assert producer.send(1001, epoch=7)[0] == ErrorCode.NONE


def test_sequences_wrap_from_the_largest_to_0(producer: Producer) -> None:
    assert producer.send(SEQUENCE_LAST - 1)[0] == ErrorCode.NONE
    wrapping = producer.send(SEQUENCE_LAST, b"last", b"zero", b"one")
    assert wrapping[0] == ErrorCode.NONE
    assert producer.send(SEQUENCE_LAST, b"last", b"zero", b"one") == wrapping
    assert producer.send(3)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(2)[0] == ErrorCode.NONE
    assert producer.log() == [b"v", b"last", b"zero", b"one", b"v"]


def test_sequences_wrap_between_two_batches(producer: Producer) -> None:
    assert producer.send(SEQUENCE_LAST)[0] == ErrorCode.NONE
    assert producer.send(1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0)[0] == ErrorCode.NONE


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
    assert header.partition_leader_epoch == 0
