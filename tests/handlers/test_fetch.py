"""Fetch by bytes: what is answered of one partition, in every version, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchRequest
from korvet.protocol.wire import ZERO_UUID
from tests.handlers.formats import BOTH_FORMATS, ONLY_RECORD
from tests.support.batches import Record, batch, headers_of, read, values
from tests.support.topic_client import Client, fetch_request

pytestmark = BOTH_FORMATS

UNKNOWN_ID = bytes(range(16))
BY_NAME, BY_ID = range(4, 13), range(13, 19)


@pytest.mark.parametrize("version", [*BY_NAME, *BY_ID])
def test_every_version_answers_records_and_bounds(client: Client, topic: str, version: int) -> None:
    topic_id = client.create(topic)
    offset = client.append(topic, b"a", b"b")
    request = fetch_request(topic, offset, topic_id=topic_id)
    answer = client.call(request, version)
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
    [named] = answer.responses
    assert (named.topic, named.topic_id) == ((topic, ZERO_UUID) if version < 13 else ("", topic_id))
    [partition] = named.partitions
    assert (partition.partition_index, partition.error_code) == (0, ErrorCode.NONE)
    assert partition.high_watermark == partition.last_stable_offset == offset + 2
    assert partition.log_start_offset == (offset if version >= 5 else -1)
    assert (partition.aborted_transactions, partition.preferred_read_replica) == (None, -1)
    assert [(each.offset, each.value) for each in read(partition.records)] == [
        (offset, b"a"),
        (offset + 1, b"b"),
    ]


@pytest.mark.parametrize("version", [4, 12, 18])
def test_a_committed_reader_gets_an_empty_list_of_aborted_transactions(
    client: Client, topic: str, version: int
) -> None:
    topic_id = client.create(topic)
    client.append(topic, b"v")
    response = client.fetch(topic, topic_id=topic_id, version=version, isolation_level=1)
    assert response.aborted_transactions == []
    assert response.last_stable_offset == response.high_watermark
    assert values(response.records) == [b"v"]


@ONLY_RECORD
def test_a_fetch_within_a_produced_batch_begins_at_its_offset(client: Client, topic: str) -> None:
    client.create(topic)
    offset = client.append(topic, *[b"%d" % n for n in range(10)])
    response = client.fetch(topic, offset + 4)
    assert headers_of(response.records)[0].base_offset == offset + 4
    assert values(response.records) == [b"%d" % n for n in range(4, 10)]


def test_an_offset_beyond_the_end_or_below_0_is_out_of_range_with_the_real_bounds(
    client: Client, topic: str
) -> None:
    client.create(topic)
    offset = client.append(topic, b"a", b"b")
    for asked in (offset + 3, 2**62, 2**63 - 1, -1, -(2**63)):
        response = client.fetch(topic, asked)
        assert response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (response.log_start_offset, response.high_watermark) == (offset, offset + 2)
        assert response.records == b""


@pytest.mark.parametrize(
    ("distance", "code"),
    [
        (None, ErrorCode.NONE),
        (0, ErrorCode.NONE),
        (10**9, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_leader_epoch_is_checked_from_version_9_on(
    client: Client, topic: str, distance: int | None, code: ErrorCode
) -> None:
    client.create(topic)
    client.append(topic, b"v")
    epoch = -1 if distance is None else client.leader_epoch(topic) + distance
    response = client.fetch(topic, version=9, current_leader_epoch=epoch)
    assert (response.error_code, values(response.records)) == (code, [] if code else [b"v"])
    assert client.fetch(topic, version=8, current_leader_epoch=epoch).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [4, 12])
def test_unknown_topics_and_partitions_by_name_are_answered_at_once(
    client: Client, topic: str, version: int
) -> None:
    client.create(topic)
    waiting: Any = {"max_wait_ms": 2**31 - 1, "version": version}
    for response in (
        client.fetch("no-such-topic", **waiting),
        client.fetch(topic, partition=1, **waiting),
        client.fetch(topic, partition=-1, **waiting),
    ):
        assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (response.high_watermark, response.records) == (-1, b"")


@pytest.mark.parametrize("version", [13, 18])
def test_unknown_ids_and_unknown_partitions_of_a_known_id_have_codes_of_their_own(
    client: Client, topic: str, version: int
) -> None:
    topic_id = client.create(topic)
    unknown = client.fetch("", topic_id=UNKNOWN_ID, version=version)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    response = client.fetch("", topic_id=topic_id, partition=1, version=version)
    assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_created_again_elsewhere_is_found_again_by_name_and_its_old_id_is_unknown(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    old_id = here.create(topic)
    here.append(topic, b"old")
    assert values(here.fetch(topic).records) == [b"old"]
    there.delete(topic)
    there.create(topic)
    there.append(topic, b"new")
    assert here.fetch("", topic_id=old_id, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert values(here.fetch(topic).records) == [b"new"]


def test_a_deleted_topic_is_unknown_to_a_worker_that_knew_it(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    for _ in range(2):
        assert here.fetch(topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_topics_compression_is_applied(client: Client, topic: str, codec: str) -> None:
    client.create(topic, compression_type=codec)
    client.append(topic, b"x" * 10_000, b"y" * 10_000)
    response = client.fetch(topic, version=10)
    [header] = headers_of(response.records)
    assert header.codec == ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert len(response.records) < 2_000
    assert values(response.records) == [b"x" * 10_000, b"y" * 10_000]


@ONLY_RECORD
@pytest.mark.parametrize("codec", ["none", "uncompressed", "producer"])
def test_a_topic_without_a_codec_of_its_own_is_served_plain(client: Client, topic: str, codec: str) -> None:
    client.create(topic, compression_type=codec)
    assert client.produce(topic, batch(b"x" * 10_000, codec=3)).error_code == ErrorCode.NONE
    assert headers_of(client.fetch(topic).records)[0].codec == 0


@pytest.mark.parametrize("version", [4, 9])
def test_zstd_needs_version_10(client: Client, topic: str, version: int) -> None:
    client.create(topic, compression_type="zstd")
    client.append(topic, b"x" * 1000)
    response = client.fetch(topic, version=version)
    assert response.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values(client.fetch(topic, version=10).records) == [b"x" * 1000]


def test_a_request_without_partitions_is_answered_at_once(client: Client) -> None:
    answer = client.call(FetchRequest(max_wait_ms=2**31 - 1, min_bytes=1, topics=[]), 11)
    assert (answer.error_code, answer.responses) == (ErrorCode.NONE, [])


@ONLY_RECORD
def test_timestamps_and_headers_come_back_with_external_records_between(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic)
    sent = Record(b"v", b"k", 12345, (("h", b"1"), ("h", None)))
    offset = client.append(topic, sent)
    stored.xadd(f"korvet:{topic}:0", {"key": "fk", "value": "fv", "header.h": "x", "other": "field"})
    first, second = read(client.fetch(topic).records)
    assert first == sent._replace(offset=offset)
    assert (second.key, second.value, ("h", b"x") in second.headers) == (b"fk", b"fv", True)
