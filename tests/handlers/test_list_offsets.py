"""ListOffsets by bytes: the ends of a log, and offsets by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.support.batches import Record, raw
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
NOTHING = (ErrorCode.NONE, -1, -1)


def ask(
    client: Client, topic: str, timestamp: int, version: int = 11, partition: int = 0, **fields: Any
) -> Any:
    asked = ListOffsetsPartition(
        partition_index=partition,
        timestamp=timestamp,
        current_leader_epoch=fields.pop("current_leader_epoch", -1),
    )
    topics = [ListOffsetsTopic(name=topic, partitions=[asked])]
    [answer] = client.call(ListOffsetsRequest(replica_id=-1, topics=topics, **fields), version).topics
    [response] = answer.partitions
    assert (answer.name, response.partition_index) == (topic, partition)
    return response


def found(*args: Any, **fields: Any) -> tuple[int, int, int]:
    response = ask(*args, **fields)
    return response.error_code, response.offset, response.timestamp


@pytest.fixture(params=["record", "batch"])
def timed(client: Client, topic: str, request: pytest.FixtureRequest) -> tuple[str, int]:
    """Give a topic with timestamps that do not rise, and the offset of its first record."""
    client.create(topic, storage_format=request.param)
    first = client.append(topic, *[Record(timestamp=at) for at in (100, 300, 200, 300, 50)])
    return topic, first


@pytest.mark.parametrize("version", range(1, 12))
def test_the_ends_in_every_version(client: Client, timed: tuple[str, int], version: int) -> None:
    topic, first = timed
    assert found(client, topic, EARLIEST, version) == (0, first, -1)
    latest = ask(client, topic, LATEST, version)
    assert (latest.error_code, latest.offset, latest.timestamp) == (0, first + 5, -1)
    assert latest.leader_epoch == (client.leader_epoch(topic) if version >= 4 else -1)


@pytest.mark.parametrize("version", [2, 11])
def test_a_committed_reader_sees_the_same_end(client: Client, timed: tuple[str, int], version: int) -> None:
    topic, first = timed
    assert found(client, topic, LATEST, version, isolation_level=1) == (0, first + 5, -1)


@pytest.mark.parametrize("version", [1, 4, 11])
@pytest.mark.parametrize(
    ("timestamp", "place", "at"),
    [(0, 0, 100), (100, 0, 100), (101, 1, 300), (200, 1, 300), (300, 1, 300)],
)
def test_a_time_is_the_first_record_that_is_not_older(
    client: Client, timed: tuple[str, int], version: int, timestamp: int, place: int, at: int
) -> None:
    topic, first = timed
    response = ask(client, topic, timestamp, version)
    assert (response.error_code, response.offset, response.timestamp) == (0, first + place, at)
    assert response.leader_epoch == (client.leader_epoch(topic) if version >= 4 else -1)


@pytest.mark.parametrize("version", [1, 7, 11])
def test_a_time_after_every_record_finds_nothing_and_is_no_error(
    client: Client, timed: tuple[str, int], version: int
) -> None:
    response = ask(client, timed[0], 301, version)
    assert (response.error_code, response.offset, response.timestamp) == NOTHING
    assert response.leader_epoch == -1


@pytest.mark.parametrize(
    ("special", "since"),
    [
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (PENDING_UPLOAD, 11),
        (-7, 12),
        (-(2**63), 12),
    ],
)
def test_each_special_timestamp_is_known_from_its_version_on(
    client: Client, timed: tuple[str, int], special: int, since: int
) -> None:
    topic, first = timed
    answers = {
        MAX_TIMESTAMP: (0, first + 1, 300),
        EARLIEST_LOCAL: (0, first, -1),
        LATEST_TIERED: NOTHING,
        PENDING_UPLOAD: NOTHING,
    }
    for version in range(1, 12):
        unknown = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        assert found(client, topic, special, version) == (unknown if version < since else answers[special])


def test_all_of_a_topic_with_a_cold_tier_is_pending_where_nothing_was_archived(tmp_path: Path) -> None:
    lake = ("--set", f"lake.path={tmp_path / 'lake'}", "--set", "lake.interval.ms=0")
    with korvet_broker(tmp_path, *lake, workers=1) as broker, Client(broker.address) as client:
        client.create("orders", remote_storage_enable="true")
        assert found(client, "orders", PENDING_UPLOAD) == (0, 0, -1)
        first = client.append("orders", Record(timestamp=1000))
        assert ask(client, "orders", PENDING_UPLOAD).leader_epoch == client.leader_epoch("orders")
        assert found(client, "orders", PENDING_UPLOAD) == (0, first, -1)
        assert found(client, "orders", LATEST_TIERED) == NOTHING


def test_an_empty_log_begins_and_ends_at_0_and_holds_no_time(client: Client, topic: str) -> None:
    client.create(topic)
    assert found(client, topic, EARLIEST) == found(client, topic, LATEST) == (0, 0, -1)
    assert found(client, topic, EARLIEST_LOCAL) == (0, 0, -1)
    for timestamp in (MAX_TIMESTAMP, 0, 2**63 - 1):
        assert found(client, topic, timestamp) == NOTHING


def test_external_entries_count(client: Client, topic: str, stored: redis.Redis) -> None:
    client.create(topic)
    ids: list[Any] = [stored.xadd(f"korvet:{topic}:0", {"value": "hello"}) for _ in range(3)]
    ms, sequence = (int(part) for part in ids[0].split(b"-"))
    assert found(client, topic, EARLIEST) == (0, (ms << 10) + sequence, -1)
    ms, sequence = (int(part) for part in ids[2].split(b"-"))
    assert found(client, topic, LATEST) == (0, (ms << 10) + sequence + 1, -1)


def test_a_batch_that_cannot_be_decoded_does_not_end_a_search(client: Client, topic: str) -> None:
    client.create(topic, storage_format="batch")
    client.append(topic, Record(timestamp=1))
    garbage = raw(b"no records", base_timestamp=5, max_timestamp=5)
    assert client.produce(topic, garbage).error_code == 0  # nobody has looked at its records
    client.append(topic, Record(timestamp=9))
    assert found(client, topic, 2) == (0, 1, 5)
    assert found(client, topic, MAX_TIMESTAMP) == (0, 2, 9)


def test_unknown_topics_and_partitions_have_their_code(client: Client, topic: str) -> None:
    client.create(topic)
    for name, partition in (("no-such-topic", 0), (topic, 1), (topic, -1)):
        response = ask(client, name, LATEST, partition=partition)
        assert (response.error_code, response.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, 0), (10**9, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.FENCED_LEADER_EPOCH)]
)
def test_a_leader_epoch_is_checked_from_version_4_on(
    client: Client, timed: tuple[str, int], epoch: int, code: int
) -> None:
    epoch += client.leader_epoch(timed[0])
    assert ask(client, timed[0], LATEST, 4, current_leader_epoch=epoch).error_code == code
    assert ask(client, timed[0], LATEST, 3, current_leader_epoch=epoch).error_code == 0


def test_a_partition_named_twice_is_refused_each_time_and_no_other(client: Client, topic: str) -> None:
    client.create(topic, 2)
    asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 1, 0)]
    topics = [ListOffsetsTopic(name=topic, partitions=some) for some in (asked[:2], asked[2:])]
    answers = client.call(ListOffsetsRequest(replica_id=-1, topics=topics), 11).topics
    codes = [(each.partition_index, each.error_code) for answer in answers for each in answer.partitions]
    assert codes == [(0, ErrorCode.INVALID_REQUEST), (1, ErrorCode.NONE), (0, ErrorCode.INVALID_REQUEST)]


def test_a_topic_created_again_elsewhere_is_the_one_that_answers(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    there.create(topic)
    assert found(here, topic, LATEST) == (0, 0, -1)
    there.delete(topic)
    there.create(topic, 3)
    assert found(here, topic, LATEST, partition=2) == (0, 0, -1)
