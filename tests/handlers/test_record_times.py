"""Times of records by bytes: the producer's within their limits, and the broker's where the topic says so."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.produce import ProduceRequest, TopicProduceData
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from tests.handlers.formats import BOTH_FORMATS, ONLY_BATCH, ONLY_RECORD
from tests.support.batches import CODECS, LZ4, ZSTD, Record, batch, forged, headers_of, read
from tests.support.topic_client import Client, produce_request

pytestmark = BOTH_FORMATS

HOUR_MS = 3_600_000
RECORD_ERRORS_VERSION_FIRST = 8


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def named(response: Any) -> list[int]:
    """Return the records that the answer names, each of which must come with a reason."""
    assert all(each.batch_index_error_message for each in response.record_errors)
    return [each.batch_index for each in response.record_errors]


@pytest.mark.slow
@pytest.mark.parametrize("version", range(3, 14))
def test_the_time_of_the_append_is_answered_and_served(client: Client, topic: str, version: int) -> None:
    topic_id = client.create(topic, message_timestamp_type="LogAppendTime")
    sent = batch(Record(b"a", timestamp=5), Record(b"b", timestamp=-1), Record(b"c", timestamp=now_ms() * 2))
    before = now_ms()
    name = "" if version >= 13 else topic
    response = client.produce(name, sent, version=version, topic_id=topic_id)
    assert response.error_code == ErrorCode.NONE
    stamp = response.log_append_time_ms
    assert before <= stamp <= now_ms()
    records = client.fetch(topic).records
    assert [(each.value, each.timestamp) for each in read(records)] == [
        (v, stamp) for v in (b"a", b"b", b"c")
    ]
    for header in headers_of(records):
        assert (header.attributes & LOG_APPEND_TIME_BIT, header.max_timestamp) == (LOG_APPEND_TIME_BIT, stamp)


@pytest.mark.slow
def test_without_it_batches_say_that_the_times_are_the_producers(client: Client, topic: str) -> None:
    client.create(topic)
    assert client.produce(topic).log_append_time_ms == -1
    assert [each.attributes & LOG_APPEND_TIME_BIT for each in headers_of(client.fetch(topic).records)] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("of_topic", ["producer", "lz4"])
def test_the_time_of_the_append_goes_with_every_codec(
    client: Client, topic: str, codec: int, of_topic: str
) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime", compression_type=of_topic)
    sent = [Record(b"%d" % n * 1000, b"key", n, (("h", b"v"),)) for n in range(5)]
    response = client.produce(topic, batch(*sent, codec=codec))
    stamp = response.log_append_time_ms
    assert read(client.fetch(topic).records) == [
        each._replace(timestamp=stamp, offset=response.base_offset + n) for n, each in enumerate(sent)
    ]


@pytest.mark.slow
def test_each_append_keeps_its_own_time_in_one_fetch(client: Client, topic: str) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime")
    stamps: list[int] = []
    while len(set(stamps)) < 3:
        stamps += [client.produce(topic, batch(b"v", b"w")).log_append_time_ms] * 2
    records = client.fetch(topic).records
    assert [each.timestamp for each in read(records)] == stamps
    assert stamps == sorted(stamps)


@pytest.mark.slow
def test_a_batch_sent_again_is_answered_with_the_time_of_its_first_coming(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime")
    sent = [batch(b"v", producer_id=77, epoch=0, sequence=n) for n in range(2)]
    first = client.produce(topic, sent[0])
    while client.produce(topic, sent[1]).log_append_time_ms == first.log_append_time_ms:
        sent[1] = batch(b"v", producer_id=78 + now_ms(), epoch=0, sequence=1)
    again = client.produce(topic, sent[0])
    assert (again.base_offset, again.log_append_time_ms) == (first.base_offset, first.log_append_time_ms)
    stored.xtrim(f"korvet:{topic}:0", maxlen=0, approximate=False)
    gone = client.produce(topic, sent[0])
    assert (gone.error_code, gone.base_offset, gone.log_append_time_ms) == (0, first.base_offset, -1)
    stored.set(f"korvet:{topic}:0", "no log")
    unreadable = client.produce(topic, sent[0])
    assert (unreadable.error_code, unreadable.log_append_time_ms) == (0, -1)


@pytest.mark.slow
def test_offsets_are_found_by_the_time_of_the_append(client: Client, topic: str) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime")
    response = client.produce(topic, batch(Record(timestamp=5), Record(timestamp=now_ms() + 10 * HOUR_MS)))
    stamp = response.log_append_time_ms
    assert client.offset_at(topic, stamp) == (response.base_offset, stamp)
    assert client.offset_at(topic, 5) == (response.base_offset, stamp)
    assert client.offset_at(topic, stamp + 1) == (-1, -1)
    assert client.offset_at(topic, -3)[1] == stamp


@pytest.mark.slow
@ONLY_RECORD
def test_the_readable_form_shows_the_time_of_the_append(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime")
    stamp = client.produce(topic, batch(Record(timestamp=5))).log_append_time_ms
    entries: Any = stored.xrange(f"korvet:{topic}:0")
    [(_, fields)] = entries
    assert fields[b"timestamp"] == b"%d" % stamp


@pytest.mark.slow
@ONLY_RECORD
def test_entries_of_others_carry_the_time_of_their_id(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime")
    ids: list[Any] = [stored.xadd(f"korvet:{topic}:0", {"value": "external"}) for _ in range(3)]
    stamps = [int(each.split(b"-")[0]) for each in ids]
    stamps += [client.produce(topic, batch(b"v", b"w")).log_append_time_ms] * 2
    records = client.fetch(topic).records
    assert [each.timestamp for each in read(records)] == stamps
    assert all(each.attributes & LOG_APPEND_TIME_BIT for each in headers_of(records))


@pytest.mark.slow
@pytest.mark.parametrize("version", [3, RECORD_ERRORS_VERSION_FIRST, 12])
def test_a_time_too_far_in_the_future_is_refused_with_its_record(
    client: Client, topic: str, stored: redis.Redis, version: int
) -> None:
    client.create(topic, message_timestamp_after_max_ms=str(HOUR_MS))
    far = now_ms() + 2 * HOUR_MS
    sent = [Record(timestamp=at) for at in (now_ms(), far, now_ms() + HOUR_MS // 2, far + 1, 0)]
    response = client.produce(topic, batch(*sent), version=version)
    assert (response.error_code, response.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    if version >= RECORD_ERRORS_VERSION_FIRST:
        assert named(response) == [1, 3]
        assert str(far) in response.record_errors[0].batch_index_error_message
        assert "2 of 5 records" in response.error_message
    assert not stored.exists(f"korvet:{topic}:0")


@pytest.mark.slow
def test_the_default_takes_an_hour_of_the_future_and_all_of_the_past(client: Client, topic: str) -> None:
    client.create(topic)
    for timestamp in (0, -1, -5, -(2**62), now_ms() + HOUR_MS - 60_000):
        assert client.produce(topic, batch(Record(timestamp=timestamp))).error_code == ErrorCode.NONE
    late = batch(Record(timestamp=now_ms() + HOUR_MS + 60_000))
    assert client.produce(topic, late).error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_time_too_far_in_the_past_is_refused_with_its_record(
    client: Client, topic: str, codec: int
) -> None:
    client.create(topic, message_timestamp_before_max_ms=str(HOUR_MS))
    near, far = now_ms() - HOUR_MS // 2, now_ms() - 2 * HOUR_MS
    refused = client.produce(topic, batch(*[Record(timestamp=at) for at in (near, far, -1)], codec=codec))
    assert (refused.error_code, named(refused)) == (ErrorCode.INVALID_TIMESTAMP, [1])
    # No time at all is not one in the past.
    taken = client.produce(topic, batch(*[Record(timestamp=at) for at in (near, -1)], codec=codec))
    assert taken.error_code == ErrorCode.NONE


@pytest.mark.slow
def test_an_untrue_largest_time_in_the_header_refuses_no_batch_and_misleads_no_look_up(
    client: Client, topic: str
) -> None:
    client.create(topic)
    true = now_ms()
    lie = forged(batch(Record(b"v", timestamp=true)), max_timestamp=true + 1000 * HOUR_MS)
    response = client.produce(topic, lie)
    assert response.error_code == ErrorCode.NONE
    assert client.offset_at(topic, true) == (response.base_offset, true)
    assert client.offset_at(topic, true + 1) == (-1, -1)
    assert [each.timestamp for each in read(client.fetch(topic).records)] == [true]


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, LZ4])
def test_a_header_that_leaves_out_its_largest_time_is_given_it(
    client: Client, topic: str, codec: int
) -> None:
    """Sarama's batches said -1 until 2025; Kafka's broker looks at the records of every batch."""
    client.create(topic)
    stamps = [1000, 3000, 2000]
    sent = batch(*[Record(b"v" * 2000, timestamp=at) for at in stamps], codec=codec)
    response = client.produce(topic, forged(sent, max_timestamp=-1))
    assert response.error_code == ErrorCode.NONE
    records = client.fetch(topic).records
    assert [header.max_timestamp for header in headers_of(records)] == [3000]
    assert [each.timestamp for each in read(records)] == stamps
    assert client.offset_at(topic, 1001) == (response.base_offset + 1, 3000)
    assert client.offset_at(topic, -3) == (response.base_offset + 1, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, LZ4])
def test_a_time_out_of_range_is_found_where_the_header_leaves_it_out(
    client: Client, topic: str, codec: int
) -> None:
    client.create(topic)
    sent = batch(*[Record(timestamp=at) for at in (now_ms(), now_ms() + 2 * HOUR_MS)], codec=codec)
    refused = client.produce(topic, forged(sent, max_timestamp=-1))
    assert (refused.error_code, named(refused)) == (ErrorCode.INVALID_TIMESTAMP, [1])


@pytest.mark.slow
@ONLY_BATCH
def test_what_is_refused_may_be_damaged_too_and_is_refused_for_that(client: Client, topic: str) -> None:
    client.create(topic)
    far = batch(b"v", b"w", codec=LZ4)
    damaged = forged(far, max_timestamp=now_ms() * 2, record_count=3, last_offset_delta=2)
    assert client.produce(topic, damaged).error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.slow
def test_a_compacted_topic_refuses_a_batch_with_a_record_without_key(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, cleanup_policy="compact")
    sent = [Record(b"v", b"k"), Record(b"v", None), Record(None, b"k"), Record(None, None)]
    for codec in CODECS:
        response = client.produce(topic, batch(*sent, codec=codec))
        assert (response.error_code, response.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert named(response) == [1, 3]
        assert "key" in response.error_message
    assert client.produce(topic, batch(*sent), version=7).error_code == ErrorCode.INVALID_RECORD
    assert not stored.exists(f"korvet:{topic}:0")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_takes_every_key_and_tombstones(client: Client, topic: str, policy: str) -> None:
    client.create(topic, cleanup_policy=policy)
    sent = [Record(b"v", b"k"), Record(None, b"k"), Record(b"v", b"")]
    response = client.produce(topic, batch(*sent))
    assert (response.error_code, response.record_errors) == (ErrorCode.NONE, [])
    assert [(each.key, each.value) for each in read(client.fetch(topic).records)] == [
        (each.key, each.value) for each in sent
    ]
    assert client.produce(topic, batch(Record(b"v", None))).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.slow
def test_a_topic_that_only_deletes_needs_no_keys(client: Client, topic: str) -> None:
    client.create(topic, cleanup_policy="delete")
    assert client.produce(topic, batch(Record(b"v", None))).error_code == ErrorCode.NONE


@pytest.mark.slow
def test_of_two_kinds_of_wrong_records_the_time_says_the_error_and_all_are_named(
    client: Client, topic: str
) -> None:
    client.create(topic, cleanup_policy="compact")
    far = now_ms() + 2 * HOUR_MS
    key, time_, both = Record(b"v", None), Record(b"v", b"k", far), Record(b"v", None, far)
    for sent in ((time_, key, Record(b"v", b"k")), (key, time_)):
        response = client.produce(topic, batch(*sent))
        assert (response.error_code, named(response)) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])
    # A record is refused for one thing, and its key is looked at first.
    response = client.produce(topic, batch(both))
    assert (response.error_code, named(response)) == (ErrorCode.INVALID_RECORD, [0])


@pytest.mark.slow
def test_a_broken_batch_leaves_the_other_partitions_of_its_request_alone(client: Client, topic: str) -> None:
    client.create(topic, partitions=2, cleanup_policy="compact")
    bad, good = (
        produce_request(topic, batch(Record(b"v", key)), partition).topic_data[0].partition_data[0]
        for partition, key in enumerate((None, b"k"))
    )
    data = [TopicProduceData(name=topic, partition_data=[bad, good])]
    [answer] = client.call(ProduceRequest(acks=1, timeout_ms=0, topic_data=data), 8).responses
    assert [each.error_code for each in answer.partition_responses] == [
        ErrorCode.INVALID_RECORD,
        ErrorCode.NONE,
    ]


@pytest.mark.slow
def test_of_very_many_wrong_records_an_answer_names_some(client: Client, topic: str) -> None:
    client.create(topic, cleanup_policy="compact")
    response = client.produce(topic, batch(*[Record(b"", None)] * 5000))
    assert response.error_code == ErrorCode.INVALID_RECORD
    assert named(response) == list(range(1000))
    assert "5000 of 5000" in response.error_message


@pytest.mark.slow
def test_with_the_time_of_the_append_no_time_of_a_producer_is_wrong(client: Client, topic: str) -> None:
    client.create(
        topic,
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms="0",
        message_timestamp_after_max_ms="0",
    )
    sent = batch(*[Record(timestamp=at) for at in (0, now_ms() * 3)])
    assert client.produce(topic, sent).error_code == ErrorCode.NONE


@pytest.mark.slow
def test_a_compacted_topic_may_carry_the_time_of_the_append(client: Client, topic: str) -> None:
    client.create(topic, message_timestamp_type="LogAppendTime", cleanup_policy="compact")
    response = client.produce(topic, batch(Record(b"v", b"k", timestamp=9)))
    assert [each.timestamp for each in read(client.fetch(topic).records)] == [response.log_append_time_ms]
    assert client.produce(topic, batch(Record(b"v", None))).error_code == ErrorCode.INVALID_RECORD
