"""Produce in transactions by bytes: what may be written, what is stored, and what administrators see and end."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.produce import ProduceRequest, ProduceResponse
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from korvet.protocol.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from korvet.protocol.records.control import control_batch
from tests.handlers.formats import BOTH_FORMATS
from tests.support.batches import batch, forged, headers_of, values
from tests.support.topic_client import Client, produce_request
from tests.support.wire_client import request_frame

pytestmark = BOTH_FORMATS

NO_ADDING, ADDING = 11, 12
"""Versions of Produce: the last in which a producer adds partitions itself, and the first in which it does not."""
REQUESTS = 8


class Producer:
    """A transactional producer, named as its topic."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.id, self.epoch = -1, -1

    def init(self) -> None:
        """Get an id and an epoch."""
        asked = InitProducerIdRequest(transactional_id=self.topic, transaction_timeout_ms=60_000)
        found = self.client.call(asked, 4)
        assert found.error_code == 0
        self.id, self.epoch = found.producer_id, found.producer_epoch

    def add(self, *partitions: int) -> None:
        """Add partitions."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.topic,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=list(partitions))],
        )
        [added] = self.client.call(request, 3).results_by_topic_v3_and_below
        assert {each.partition_error_code for each in added.results_by_partition} == {0}

    def end(self, *, committed: bool, version: int = 4) -> None:
        """End the transaction; from version 5 on with another epoch."""
        request = EndTxnRequest(
            transactional_id=self.topic,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        answer = self.client.call(request, version)
        assert answer.error_code == 0
        if version >= 5:
            assert (answer.producer_id, answer.producer_epoch) == (self.id, self.epoch + 1)
            self.epoch += 1

    def request(self, value: bytes, sequence: int, partition: int = 0) -> ProduceRequest:
        """Return a request of one record."""
        records = batch(value, producer_id=self.id, epoch=self.epoch, sequence=sequence, transactional=True)
        request = produce_request(self.topic, records, partition)
        request.transactional_id = self.topic
        return request

    def send(self, value: bytes, sequence: int, partition: int = 0, version: int = ADDING) -> Any:
        """Produce a record; returns the partition's response."""
        [answer] = self.client.call(self.request(value, sequence, partition), version).responses
        [response] = answer.partition_responses
        return response

    def pipelined(self, *requests: ProduceRequest, version: int) -> list[int]:
        """Send all requests in one piece; returns their error codes."""
        frames = [request_frame(each, version, number) for number, each in enumerate(requests)]
        self.client.send_bytes(b"".join(frames))
        answers = [self.client.receive(ProduceResponse, version, number) for number in range(len(requests))]
        return [each.responses[0].partition_responses[0].error_code for each in answers]


@pytest.fixture
def producer(client: Client, topic: str) -> Producer:
    """Give a producer that has its id, on a topic of two partitions."""
    client.create(topic, 2)
    made = Producer(client, topic)
    made.init()
    return made


def entries(stored: redis.Redis, topic: str, partition: int = 0) -> list[Any]:
    """Return the fields of all entries of a log."""
    found: Any = stored.xrange(f"korvet:{topic}:{partition}")
    return [fields for _, fields in found]


def state(stored: redis.Redis, topic: str) -> dict[bytes, bytes]:
    found: Any = stored.hgetall(f"{{korvet:{topic}:0}}:state")
    return {name: value for name, value in found.items() if name in {b"open", b"aborted"}}


def described(client: Client, topic: str) -> list[tuple[int, int, int]]:
    """Return id, epoch and first offset of the open transaction of a partition's producers."""
    topics = [TopicRequest(name=topic, partition_indexes=[0])]
    [answer] = client.call(DescribeProducersRequest(topics=topics), 0).topics
    [partition] = answer.partitions
    assert partition.error_code == 0
    return [
        (each.producer_id, each.producer_epoch, each.current_txn_start_offset)
        for each in partition.active_producers
    ]


def ended(
    client: Client,
    topic: str,
    producer_id: int,
    epoch: int,
    *,
    committed: bool = False,
    transaction_version: int = 0,
) -> list[int]:
    """Send WriteTxnMarkers for a partition that is there and for one that is not; returns their codes."""
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=[0, 77]),
            WritableTxnMarkerTopic(name="not there", partition_indexes=[0]),
        ],
        coordinator_epoch=0,
        transaction_version=transaction_version,
    )
    version = 2 if transaction_version else 1
    [answer] = client.call(WriteTxnMarkersRequest(markers=[marker]), version).markers
    assert answer.producer_id == producer_id
    return [each.error_code for topic in answer.topics for each in topic.partitions]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(("version", "ending"), [(NO_ADDING, 4), (ADDING, 5)])
def test_a_transaction_is_written_with_its_producer_and_its_end(
    producer: Producer, stored: redis.Redis, version: int, ending: int, *, committed: bool
) -> None:
    topic, epoch = producer.topic, producer.epoch
    if version == NO_ADDING:
        producer.add(0)
    first = producer.send(b"a", 0, version=version)
    assert first.error_code == ErrorCode.NONE
    assert producer.send(b"b", 1, version=version).base_offset > first.base_offset
    assert state(stored, topic).keys() == {b"open"}
    producer.end(committed=committed, version=ending)
    *records, end = entries(stored, topic)
    if b"batch" in end:
        [header] = headers_of(end[b"batch"])
        assert header.attributes == TRANSACTIONAL_BIT | CONTROL_BIT
        # What differs is the time.
        expected = control_batch(committed, producer.id, producer.epoch, header.max_timestamp)
        assert end[b"batch"] == expected
        written = [headers_of(each[b"batch"])[0] for each in records]
        assert {(each.producer_id, each.producer_epoch, each.attributes) for each in written} == {
            (producer.id, epoch, TRANSACTIONAL_BIT)
        }
    else:
        assert list(end) == [b"korvet.marker", b"korvet.producer", b"timestamp"]
        assert end[b"korvet.marker"] == (b"commit" if committed else b"abort")
        assert end[b"korvet.producer"] == f"{producer.id}:{producer.epoch}".encode()
        assert [list(each)[-1] for each in records] == [b"korvet.producer"] * 2
        assert {each[b"korvet.producer"] for each in records} == {f"{producer.id}:{epoch}".encode()}
    aborted: Any = stored.zrange(f"{{korvet:{topic}:0}}:aborted", 0, -1)
    of_this = f"{producer.id}:{first.base_offset}".encode()
    assert [each.rpartition(b":")[0] for each in aborted] == ([] if committed else [of_this])
    assert (b"aborted" in state(stored, topic)) == (not committed)
    assert not stored.exists(f"{{korvet:{topic}:0}}:open")
    assert entries(stored, topic, 1) == []
    following = 0 if ending == 5 else 2
    if version == NO_ADDING:
        producer.add(0)
    assert producer.send(b"c", following, version=version).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_a_partition_that_was_not_added_is_not_written_to(
    producer: Producer, stored: redis.Redis, version: int, code: ErrorCode
) -> None:
    assert producer.send(b"a", 0, version=version).error_code == code
    producer.add(1)
    assert producer.send(b"a", 0, version=version).error_code == code
    assert entries(stored, producer.topic) == []
    assert producer.send(b"a", 0, 1, version=version).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [NO_ADDING, ADDING])
def test_requests_that_open_a_transaction_stay_in_order(
    producer: Producer, stored: redis.Redis, version: int
) -> None:
    for number in range(3):
        if version == NO_ADDING:
            producer.add(0, 1)
        sequences = range(number * REQUESTS, (number + 1) * REQUESTS)
        requests = [
            producer.request(b"%d" % sequence, sequence, partition)
            for sequence in sequences
            for partition in (0, 1)
        ]
        assert producer.pipelined(*requests, version=version) == [0] * (2 * REQUESTS)
        producer.end(committed=True)
    for partition in (0, 1):
        found = entries(stored, producer.topic, partition)
        if b"batch" in found[0]:
            assert [headers_of(each[b"batch"])[0].base_sequence for each in found] == [
                -1 if at % (REQUESTS + 1) == REQUESTS else at - at // (REQUESTS + 1)
                for at in range(3 * (REQUESTS + 1))
            ]
        else:
            assert [each[b"value"] for each in found if b"value" in each] == [
                b"%d" % sequence for sequence in range(3 * REQUESTS)
            ]


def test_what_follows_a_refused_request_is_refused_until_that_has_come_again(
    producer: Producer, stored: redis.Redis
) -> None:
    requests = [producer.request(b"%d" % sequence, sequence) for sequence in range(4)]
    refused = ErrorCode.TRANSACTION_ABORTABLE
    assert producer.pipelined(*requests, version=NO_ADDING) == [refused] * 4
    producer.add(0)
    # A partition takes any sequence of a producer that it does not know.
    assert producer.pipelined(*requests[1:], version=NO_ADDING) == [refused] * 3
    assert entries(stored, producer.topic) == []
    assert producer.pipelined(*requests, version=NO_ADDING) == [ErrorCode.NONE] * 4
    assert len(entries(stored, producer.topic)) == 4


def test_a_new_epoch_need_not_wait_for_what_an_old_one_has_not_sent_again(producer: Producer) -> None:
    assert producer.send(b"a", 5, version=NO_ADDING).error_code == ErrorCode.TRANSACTION_ABORTABLE
    producer.init()
    assert producer.send(b"a", 9).error_code == ErrorCode.NONE


def test_a_transaction_needs_a_transactional_id(producer: Producer, stored: redis.Redis) -> None:
    request = producer.request(b"a", 0)
    request.transactional_id = None
    [code] = producer.pipelined(request, version=ADDING)
    assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert entries(stored, producer.topic) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL_BIT | CONTROL_BIT}, ErrorCode.INVALID_RECORD),
        ({"base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 5}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_batch_that_a_transaction_cannot_have_is_refused(
    producer: Producer, stored: redis.Redis, fields: dict[str, int], code: ErrorCode
) -> None:
    request = producer.request(b"a", 0)
    data = request.topic_data[0].partition_data[0]
    assert data.records is not None
    data.records = forged(bytes(data.records), **fields)
    assert producer.pipelined(request, version=ADDING) == [code]
    assert entries(stored, producer.topic) == []


def test_a_fenced_producer_writes_nothing(producer: Producer, stored: redis.Redis) -> None:
    assert producer.send(b"a", 0).error_code == ErrorCode.NONE
    old = Producer(producer.client, producer.topic)
    old.id, old.epoch = producer.id, producer.epoch
    producer.init()  # aborts the transaction
    assert state(stored, producer.topic).keys() == {b"aborted"}
    before = entries(stored, producer.topic)
    for partition in (0, 1):  # one that knows the producer, and one that does not
        for version in (3, NO_ADDING, ADDING):
            assert (
                old.send(b"b", 1, partition, version=version).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
            )
    assert entries(stored, producer.topic) == before
    assert producer.send(b"c", 0).error_code == ErrorCode.NONE


def test_records_without_a_transaction_come_beside_those_of_one(producer: Producer) -> None:
    client, topic = producer.client, producer.topic
    assert producer.send(b"a", 0).error_code == ErrorCode.NONE
    plain = produce_request(topic, batch(b"b"))
    plain.transactional_id = topic
    assert producer.pipelined(plain, version=ADDING) == [ErrorCode.NONE]
    records = batch(b"c", producer_id=producer.id, epoch=producer.epoch, sequence=1)
    assert client.produce(topic, records).error_code == ErrorCode.INVALID_TXN_STATE
    assert values(client.fetch(topic).records) == [b"a", b"b"]


def test_a_marker_needs_no_key_where_records_do(client: Client, topic: str, stored: redis.Redis) -> None:
    client.create(topic, cleanup_policy="compact")
    producer = Producer(client, topic)
    producer.init()
    assert producer.send(b"without a key", 0).error_code == ErrorCode.INVALID_RECORD
    producer.add(0)
    producer.end(committed=True)
    assert len(entries(stored, topic)) == 1


@pytest.mark.parametrize("transaction_version", [1, 2])
def test_a_marker_of_the_second_protocol_needs_a_later_epoch(
    producer: Producer, transaction_version: int
) -> None:
    assert producer.send(b"a", 0).error_code == ErrorCode.NONE

    def answer(epoch: int) -> int:
        return ended(
            producer.client, producer.topic, producer.id, epoch, transaction_version=transaction_version
        )[0]

    refused = ErrorCode.INVALID_PRODUCER_EPOCH if transaction_version == 2 else ErrorCode.NONE
    assert answer(producer.epoch) == refused
    for _ in range(2):
        assert answer(producer.epoch + 1) == ErrorCode.NONE
    assert described(producer.client, producer.topic)[0][2] == -1


def test_an_administrator_sees_and_aborts_what_is_open(
    producer: Producer, two_clients: tuple[Client, Client], stored: redis.Redis
) -> None:
    topic = producer.topic
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert ended(producer.client, topic, producer.id, producer.epoch) == [ErrorCode.NONE, *unknown]
    assert entries(stored, topic) == []
    first = producer.send(b"a", 0).base_offset
    for client in two_clients:
        assert described(client, topic) == [(producer.id, producer.epoch, first)]
    older = ended(producer.client, topic, producer.id, producer.epoch - 1)
    assert older == [ErrorCode.INVALID_PRODUCER_EPOCH, *unknown]
    for client in two_clients:  # the second time nothing is open
        assert ended(client, topic, producer.id, producer.epoch) == [ErrorCode.NONE, *unknown]
        assert described(client, topic) == [(producer.id, producer.epoch, -1)]
    assert len(entries(stored, topic)) == 2
    assert state(stored, topic).keys() == {b"aborted"}
    # The coordinator does not know, but what is over does not go on.
    assert producer.send(b"b", 1).error_code == ErrorCode.INVALID_TXN_STATE
    producer.end(committed=True)
    assert producer.send(b"b", 1).error_code == ErrorCode.NONE
