"""DeleteRecords by bytes, over both formats: what is below the offset is gone at once, for every worker."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.handlers.formats import BOTH_FORMATS
from tests.support import processes
from tests.support.batches import values
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS

EARLIEST, LATEST, LARGEST = -2, -1, -3
END = -1


def request_of(*asked: tuple[str, int, int]) -> DeleteRecordsRequest:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for topic, partition, offset in asked:
        deletion = DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics.setdefault(topic, []).append(deletion)
    named = [DeleteRecordsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
    return DeleteRecordsRequest(topics=named, timeout_ms=1000)


def delete(client: Client, *asked: tuple[str, int, int], version: int = 2) -> list[tuple[int, int]]:
    """Delete up to offsets; returns error and low watermark of each partition."""
    answer: Any = client.call(request_of(*asked), version)
    assert answer.throttle_time_ms == 0
    results = [
        ((topic.name, each.partition_index), (each.error_code, each.low_watermark))
        for topic in answer.topics
        for each in topic.partitions
    ]
    assert [place for place, _ in results] == [(topic, partition) for topic, partition, _ in asked]
    return [result for _, result in results]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_below_the_offset_are_gone(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    offsets = [client.append(topic, f"v{n}".encode()) for n in range(6)]
    assert delete(client, (topic, 0, offsets[4]), version=version) == [(ErrorCode.NONE, offsets[4])]
    assert client.offset_at(topic, EARLIEST)[0] == offsets[4]
    assert client.offset_at(topic, LATEST)[0] == offsets[5] + 1
    found = client.fetch(topic, offsets[4])
    assert (found.error_code, found.log_start_offset) == (ErrorCode.NONE, offsets[4])
    assert values(found.records) == [b"v4", b"v5"]


def test_a_fetch_below_the_new_start_is_out_of_range_at_every_worker(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    offsets = [here.append(topic, f"v{n}".encode()) for n in range(4)]
    assert values(there.fetch(topic, offsets[1]).records) == [b"v1", b"v2", b"v3"]
    delete(here, (topic, 0, offsets[2]))
    for client in (there, here):
        refused = client.fetch(topic, offsets[1])
        assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (refused.log_start_offset, refused.high_watermark) == (
            offsets[2],
            client.offset_at(topic, LATEST)[0],
        )
        assert not refused.records
        assert client.offset_at(topic, EARLIEST)[0] == offsets[2]
        assert values(client.fetch(topic, offsets[2]).records)[:2] == [b"v2", b"v3"]
        assert client.produce(topic).log_start_offset == offsets[2]


def test_the_high_watermark_empties_the_log_and_gives_its_memory_back(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic)
    for _ in range(300):
        client.append(topic, b"v")
    end = client.offset_at(topic, LATEST)[0]
    assert delete(client, (topic, 0, END)) == [(ErrorCode.NONE, end)]
    assert (client.offset_at(topic, EARLIEST)[0], client.offset_at(topic, LATEST)[0]) == (end, end)
    found = client.fetch(topic, end)
    assert (found.error_code, found.log_start_offset, found.high_watermark) == (ErrorCode.NONE, end, end)
    assert client.fetch(topic, end - 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    processes.wait_until(lambda: stored.xlen(f"korvet:{topic}:0") == 0, "the memory is freed")
    # A consumer at the end of the log gets what comes next.
    offset = client.append(topic, b"next")
    assert values(client.fetch(topic, end).records) == [b"next"]
    assert client.offset_at(topic, EARLIEST)[0] == offset


def test_an_empty_log_has_nothing_to_lose(client: Client, topic: str) -> None:
    client.create(topic)
    assert delete(client, (topic, 0, END)) == [(ErrorCode.NONE, 0)]
    assert delete(client, (topic, 0, 0)) == [(ErrorCode.NONE, 0)]
    assert delete(client, (topic, 0, 1)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]


@pytest.mark.parametrize("beyond", [1, 2**40])
def test_after_the_high_watermark_is_out_of_range(client: Client, topic: str, beyond: int) -> None:
    client.create(topic)
    offset = client.append(topic, b"v")
    for target in (offset + 1 + beyond, -2, -(2**63), 2**63 - 1):
        assert delete(client, (topic, 0, target)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert client.offset_at(topic, EARLIEST)[0] == offset


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("compact,delete", ErrorCode.NONE),
        ("delete", ErrorCode.NONE),
    ],
)
def test_only_a_topic_that_deletes_takes_a_deletion(
    client: Client, topic: str, policy: str, code: ErrorCode
) -> None:
    client.create(topic, cleanup_policy=policy)
    low_watermark = -1 if code else 0
    assert delete(client, (topic, 0, 0)) == [(code, low_watermark)]


def test_known_and_unknown_partitions_are_answered_side_by_side(client: Client, topic: str) -> None:
    client.create(topic, 2)
    offset = client.append(topic, b"v", partition=1)
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(client, (topic, 0, 0), (topic, 1, offset + 1), (topic, 2, 0), ("no-such-topic", 0, 0)) == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, offset + 1),
        unknown,
        unknown,
    ]
    assert delete(client, (topic, -1, 0)) == [unknown]
    assert client.call(DeleteRecordsRequest(topics=[], timeout_ms=0), 2).topics == []


def test_a_partition_named_twice_is_answered_twice(client: Client, topic: str) -> None:
    client.create(topic)
    offset = client.append(topic, b"a", b"b", b"c")
    answers = delete(client, (topic, 0, offset + 2), (topic, 0, offset + 1))
    assert [code for code, _ in answers] == [ErrorCode.NONE, ErrorCode.NONE]
    assert client.offset_at(topic, EARLIEST)[0] == offset + 2


def test_a_topic_created_again_elsewhere_is_the_one_that_loses_records(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    there.create(topic)
    end = there.append(topic, b"new") + 1
    assert delete(here, (topic, 0, END)) == [(ErrorCode.NONE, end)]
    assert there.offset_at(topic, EARLIEST)[0] == end
