"""Produce by bytes: what is appended, what is refused and with which code."""

from __future__ import annotations

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.handlers.formats import BOTH_FORMATS, ONLY_BATCH, ONLY_RECORD
from tests.support.batches import (
    CODECS,
    NONE,
    TIMESTAMP,
    ZSTD,
    Record,
    batch,
    forged,
    raw,
    read,
    values,
)
from tests.support.topic_client import Client, produce_request
from tests.support.wire_client import ClosedByBrokerError, frame, header

pytestmark = BOTH_FORMATS

UNKNOWN_ID = bytes(range(16))
TRANSACTIONAL = 0x10


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_by_name_appends(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    first = client.produce(topic, batch(b"a", b"b"), version=version)
    assert (first.error_code, first.log_append_time_ms, first.error_message) == (0, -1, None)
    assert first.log_start_offset == (first.base_offset if version >= 5 else -1)
    second = client.produce(topic, batch(b"c"), version=version)
    assert second.base_offset >= first.base_offset + 2
    assert second.log_start_offset == first.log_start_offset
    assert [(each.offset, each.value) for each in read(client.fetch(topic).records)] == [
        (first.base_offset, b"a"),
        (first.base_offset + 1, b"b"),
        (second.base_offset, b"c"),
    ]


def test_version_13_names_the_topic_by_its_id(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    request = produce_request("", topic_id=topic_id)
    [answer] = client.call(request, 13).responses
    assert (answer.topic_id, answer.partition_responses[0].error_code) == (topic_id, ErrorCode.NONE)
    assert values(client.fetch(topic).records) == [b"value"]


def test_an_unknown_id_is_unknown_topic_id_and_an_unknown_partition_of_a_known_one_is_not(
    client: Client, topic: str
) -> None:
    topic_id = client.create(topic)
    assert client.produce("", topic_id=UNKNOWN_ID, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    response = client.produce("", None, 1, topic_id=topic_id, version=13)
    assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [3, 8, 12])
def test_unknown_topics_and_partitions_are_answered_and_the_others_appended(
    client: Client, topic: str, version: int
) -> None:
    client.create(topic)
    good = [PartitionProduceData(index=index, records=batch()) for index in (0, 1, -1)]
    topics = [
        TopicProduceData(name=name, partition_data=good if name == topic else good[:1])
        for name in ("no-such-topic", topic)
    ]
    answer = client.call(ProduceRequest(acks=1, timeout_ms=0, topic_data=topics), version)
    codes = [
        (each.name, one.index, one.error_code, one.base_offset >= 0)
        for each in answer.responses
        for one in each.partition_responses
    ]
    assert codes == [
        ("no-such-topic", 0, 3, False),
        (topic, 0, 0, True),
        (topic, 1, 3, False),
        (topic, -1, 3, False),
    ]


def test_produce_creates_no_topic(client: Client, topic: str, stored: redis.Redis) -> None:
    assert client.produce(topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not stored.hexists("korvet:topics", topic)


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_come_back_exactly(client: Client, topic: str, codec: int) -> None:
    client.create(topic)
    sent = [
        Record(b"plain", b"key", 5),
        Record(None, None, TIMESTAMP),
        Record(b"", b"", TIMESTAMP + 1),
        Record(bytes(range(256)) * 100, bytes(range(256)), 0),
        Record(b"h", None, TIMESTAMP, (("a", b"1"), ("a", b"2"), ("b", None), ("", b""), ("a", None))),
        Record(b"t", None, -1),
    ]
    response = client.produce(topic, batch(*sent, codec=codec))
    assert response.error_code == ErrorCode.NONE
    got = read(client.fetch(topic).records)
    assert got == [each._replace(offset=response.base_offset + n) for n, each in enumerate(sent)]


def test_zstd_needs_version_7(client: Client, topic: str) -> None:
    client.create(topic)
    records = batch(b"x" * 500, codec=ZSTD)
    code = client.produce(topic, records, version=6).error_code
    assert code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, records, version=7).error_code == ErrorCode.NONE


GOOD = batch(b"one", b"two")


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (forged(GOOD, crc=1), ErrorCode.CORRUPT_MESSAGE),
        (raw(b"", count=0), ErrorCode.INVALID_RECORD),
        (forged(GOOD, attributes=TRANSACTIONAL), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_batch_that_is_wrong_is_refused_and_writes_nothing(
    client: Client, topic: str, stored: redis.Redis, records: bytes, code: ErrorCode
) -> None:
    client.create(topic)
    response = client.produce(topic, records)
    assert (ErrorCode(response.error_code), response.base_offset) == (code, -1)
    assert response.error_message
    assert not stored.exists(f"korvet:{topic}:0")
    assert client.produce(topic, GOOD).error_code == ErrorCode.NONE


@ONLY_BATCH
@pytest.mark.parametrize(
    ("codec", "code"), [(NONE, ErrorCode.CORRUPT_MESSAGE), (ZSTD, ErrorCode.MESSAGE_TOO_LARGE)]
)
def test_a_batch_kept_as_it_came_claims_no_more_records_than_it_may_hold(
    client: Client, topic: str, codec: int, code: ErrorCode
) -> None:
    client.create(topic)
    good = batch(b"one", b"two", codec=codec)
    response = client.produce(topic, forged(good, record_count=2**31 - 1, last_offset_delta=2**31 - 2))
    assert (ErrorCode(response.error_code), response.base_offset) == (code, -1)
    assert client.produce(topic, good).base_offset == 0


@ONLY_RECORD
def test_records_that_cannot_be_read_are_refused_and_write_nothing(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic)
    assert client.produce(topic, raw(b"\xff" * 50)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert not stored.exists(f"korvet:{topic}:0")


def test_a_record_written_by_hand_is_accepted(client: Client, topic: str) -> None:
    client.create(topic)
    assert client.produce(topic, raw(b"\x0e\0\0\0\x01\x02v\0")).error_code == ErrorCode.NONE
    assert values(client.fetch(topic).records) == [b"v"]


def test_null_records_are_an_invalid_record(client: Client, topic: str) -> None:
    client.create(topic)
    data = PartitionProduceData(index=0, records=None)
    request = ProduceRequest(
        acks=1, timeout_ms=0, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    [answer] = client.call(request, 8).responses
    assert answer.partition_responses[0].error_code == ErrorCode.INVALID_RECORD


def test_max_message_bytes_is_the_topics_and_counts_what_was_sent(client: Client, topic: str) -> None:
    exact = batch(b"x" * 1000)
    client.create(topic, max_message_bytes=str(len(exact)))
    assert client.produce(topic, exact).error_code == ErrorCode.NONE
    refused = client.produce(topic, larger := batch(b"x" * 1001))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert refused.error_message == f"a batch of {len(larger)} bytes exceeds max.message.bytes = {len(exact)}"
    # Compressed it fits: the limit is on the batch as it was sent.
    assert client.produce(topic, batch(b"x" * 100_000, codec=1)).error_code == ErrorCode.NONE


def test_the_default_limit_is_kafkas(client: Client, topic: str) -> None:
    client.create(topic)
    at_limit = batch(b"x" * (1_048_588 - 75))
    assert 1_048_580 < len(at_limit) <= 1_048_588
    assert client.produce(topic, at_limit).error_code == ErrorCode.NONE
    assert client.produce(topic, batch(b"x" * 1_048_588)).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("acks", [2, -2, 32767])
@pytest.mark.parametrize("version", [3, 13])
def test_other_acks_are_refused(client: Client, topic: str, version: int, acks: int) -> None:
    topic_id = client.create(topic)
    response = client.produce(topic, acks=acks, version=version, topic_id=topic_id)
    assert (response.error_code, response.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)


@pytest.mark.parametrize("version", [3, 8, 9])
def test_acks_0_gets_no_response_and_the_connection_goes_on(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    client.send(produce_request(topic, batch(b"unanswered"), acks=0), version)
    assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    assert values(client.fetch(topic).records) == [b"unanswered"]


def test_acks_0_closes_the_connection_where_something_went_wrong(client: Client, topic: str) -> None:
    client.create(topic)
    data = [PartitionProduceData(index=index, records=batch()) for index in (0, 1)]
    request = ProduceRequest(
        acks=0, timeout_ms=0, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    client.send(request, 8)
    assert client.is_closed_by_broker()


def test_a_transactional_request_with_acks_0_closes_the_connection(client: Client, topic: str) -> None:
    request = produce_request(topic, acks=0)
    request.transactional_id = "tx"
    client.send(request, 8)
    with pytest.raises(ClosedByBrokerError):
        client.receive_frame()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_before_3_are_listed_and_close_the_connection(client: Client, version: int) -> None:
    versions = {each.api_key: each for each in client.call(ApiVersionsRequest(), 0).api_keys}
    assert versions[0].min_version == 0
    client.send_bytes(frame(header(0, version) + b"\0\x01" + bytes(8)))
    assert client.is_closed_by_broker()


def test_an_empty_request_is_an_empty_response(client: Client) -> None:
    assert client.call(ProduceRequest(acks=1, timeout_ms=0, topic_data=[]), 8).responses == []


def test_the_leader_epoch_and_base_offset_of_a_batch_mean_nothing(client: Client, topic: str) -> None:
    client.create(topic)
    response = client.produce(topic, forged(GOOD, base_offset=777, partition_leader_epoch=9))
    assert response.error_code == ErrorCode.NONE
    assert [each.offset - response.base_offset for each in read(client.fetch(topic).records)] == [0, 1]


def test_a_topic_created_again_elsewhere_gets_the_records(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    old_id = here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    new_id = there.create(topic)
    assert new_id != old_id
    assert here.append(topic, b"new") >= 0
    assert values(there.fetch(topic).records) == [b"new"]
    assert here.produce("", topic_id=old_id, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_deleted_topic_is_unknown_to_a_worker_that_knew_it(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    topic_id = here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    assert here.produce(topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert here.produce("", topic_id=topic_id, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
