"""Metadata by bytes: where topics are, and making them by asking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.handlers.metadata import TOPICS_CREATED_MAX
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.wire import ZERO_UUID
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client

UNKNOWN_ID = bytes(range(16))
LARGE = 130
"""Partitions of a topic that is deleted in steps."""
KEEPER_FASTER_MAX = 10
"""How often the keeper, which looks every few seconds, may clear away a topic before anybody asks for it."""


def ask(client: Client, *names: str | None, version: int = 12, ids: Any = (), **fields: Any) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    topics += [MetadataRequestTopic(name=None, topic_id=each) for each in ids]
    return client.call(MetadataRequest(topics=topics, **fields), version)


def one(client: Client, name: str, version: int = 12, *, creates: bool = False) -> Any:
    allowed: Any = {} if version < 4 else {"allow_auto_topic_creation": creates}
    [topic] = ask(client, name, version=version, **allowed).topics
    return topic


@pytest.mark.parametrize("version", range(14))
def test_every_version_describes_the_cluster_and_a_topic(
    client: Client, broker: Broker, topic: str, version: int
) -> None:
    topic_id = client.create(topic, 3)
    answer = ask(client, topic, version=version)
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [(0, *broker.address)]
    assert answer.controller_id == (0 if version >= 1 else -1)
    assert bool(answer.cluster_id) == (version >= 2)
    assert answer.error_code == ErrorCode.NONE
    [described] = answer.topics
    assert (described.error_code, described.name, described.is_internal) == (ErrorCode.NONE, topic, False)
    assert described.topic_id == (topic_id if version >= 10 else ZERO_UUID)
    assert described.topic_authorized_operations == -(2**31)
    assert [
        (each.error_code, each.partition_index, each.leader_id, each.replica_nodes, each.isr_nodes)
        for each in described.partitions
    ] == [(0, n, 0, [0], [0]) for n in range(3)]
    epochs = [client.leader_epoch(topic, n) for n in range(3)]
    assert min(epochs) > 0
    assert [each.leader_epoch for each in described.partitions] == (epochs if version >= 7 else [-1] * 3)
    assert {tuple(each.offline_replicas) for each in described.partitions} == {()}


@pytest.mark.parametrize("version", range(8, 14))
def test_every_operation_is_allowed_to_who_asks(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    read, write, create, delete, alter, describe, cluster_action = range(3, 10)
    describe_configs, alter_configs, idempotent_write = range(10, 13)
    of_topic = {read, write, create, delete, alter, describe, describe_configs, alter_configs}
    of_cluster = {
        *(create, alter, describe, cluster_action, describe_configs, alter_configs, idempotent_write)
    }
    fields: Any = {"include_topic_authorized_operations": True}
    if version <= 10:
        fields["include_cluster_authorized_operations"] = True
    answer = ask(
        client, topic, f"{topic}-missing", version=version, allow_auto_topic_creation=False, **fields
    )
    found, missing = answer.topics
    assert found.topic_authorized_operations == sum(1 << each for each in of_topic)
    assert missing.topic_authorized_operations == -(2**31)
    reported = answer.cluster_authorized_operations
    assert reported == (sum(1 << each for each in of_cluster) if version <= 10 else -(2**31))


@pytest.mark.parametrize("version", [1, 8, 13])
def test_null_is_all_topics_and_empty_is_none(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    every = client.call(MetadataRequest(topics=None), version).topics
    assert topic in [each.name for each in every]
    assert len({each.name for each in every}) == len(every)
    answer = ask(client, version=version)
    assert (answer.topics, len(answer.brokers)) == ([], 1)


def test_empty_is_all_topics_in_version_0(client: Client, topic: str) -> None:
    client.create(topic)
    assert topic in [each.name for each in ask(client, version=0).topics]


@pytest.mark.parametrize("version", range(14))
def test_asking_makes_the_topic(client: Client, topic: str, version: int) -> None:
    made = one(client, topic, version, creates=True)
    assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 1)
    assert one(client, topic, 12).topic_id != ZERO_UUID
    assert client.append(topic, b"v") > 0


@pytest.mark.parametrize("version", [1, 12])
def test_who_asks_does_not_wait_until_a_deleted_topic_is_cleared_away(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis, version: int
) -> None:
    here, there = two_clients

    def deleted_and_asked_for() -> Any:
        here.create(topic, LARGE)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=-1)
        [deleted] = here.call(request, 6).responses
        assert deleted.error_code == ErrorCode.NONE
        return one(there, topic, version, creates=True)

    found = deleted_and_asked_for()
    for _ in range(KEEPER_FASTER_MAX):
        if found.error_code != ErrorCode.NONE:
            break
        here.delete(topic)
        found = deleted_and_asked_for()
    assert (found.error_code, found.name, found.partitions) == (ErrorCode.LEADER_NOT_AVAILABLE, topic, [])
    wait_until(lambda: not stored.hexists("korvet:topics", topic), "the keeper clears it away")
    made = one(there, topic, version, creates=True)
    assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("version", [4, 9, 13])
def test_a_request_may_forbid_the_making(
    client: Client, topic: str, version: int, stored: redis.Redis
) -> None:
    unknown = one(client, topic, version, creates=False)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
    assert unknown.partitions == []
    assert not stored.hexists("korvet:topics", topic)


@pytest.mark.parametrize("name", ["", "..", "a:b", "x" * 250])
@pytest.mark.parametrize("version", [0, 12])
def test_an_invalid_name_is_never_made(client: Client, name: str, version: int, stored: redis.Redis) -> None:
    answer = one(client, name, version, creates=True)
    assert (answer.error_code, answer.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    assert not stored.hexists("korvet:topics", name)


def test_a_reserved_name_is_refused_where_it_would_be_made_and_else_unknown(
    client: Client, stored: redis.Redis
) -> None:
    assert one(client, "__offsets", creates=True).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert one(client, "__offsets", creates=False).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not stored.hexists("korvet:topics", "__offsets")


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_is_found_by_its_id(client: Client, topic: str, version: int) -> None:
    topic_id = client.create(topic)
    [known, unknown] = ask(client, ids=[topic_id, UNKNOWN_ID], version=version).topics
    assert (known.error_code, known.name, known.topic_id) == (ErrorCode.NONE, topic, topic_id)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert (unknown.topic_id, unknown.partitions) == (UNKNOWN_ID, [])


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("name", ["", "another"])
def test_an_id_counts_whatever_name_stands_beside_it(
    client: Client, topic: str, name: str, version: int
) -> None:
    # Java's describeTopics by id leaves the name empty rather than null.
    topic_id = client.create(topic)
    topics = [MetadataRequestTopic(name=name, topic_id=each) for each in (topic_id, UNKNOWN_ID)]
    [known, unknown] = client.call(MetadataRequest(topics=topics), version).topics
    assert (known.error_code, known.name, known.topic_id) == (ErrorCode.NONE, topic, topic_id)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert (unknown.topic_id, unknown.partitions) == (UNKNOWN_ID, [])


@pytest.mark.parametrize("version", [10, 11])
def test_ids_may_not_be_asked_for_before_version_12(client: Client, topic: str, version: int) -> None:
    topic_id = client.create(topic)
    for name in (None, topic):
        topics = [MetadataRequestTopic(name=name, topic_id=topic_id)]
        [answer] = client.call(MetadataRequest(topics=topics), version).topics
        assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_a_name_that_is_asked_for_twice_is_answered_once(client: Client, topic: str) -> None:
    client.create(topic)
    assert [each.name for each in ask(client, topic, topic).topics] == [topic]


def test_known_and_unknown_topics_are_answered_side_by_side(client: Client, topic: str) -> None:
    client.create(topic)
    answer = ask(client, "no-such-topic", topic, "not valid", allow_auto_topic_creation=False)
    codes = {each.name: each.error_code for each in answer.topics}
    assert codes == {"no-such-topic": 3, topic: 0, "not valid": 17}


def test_every_worker_reports_the_same_of_a_topic_that_was_made_deleted_and_created_again(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    old_id = here.create(topic)
    assert one(there, topic).topic_id == old_id
    here.delete(topic)
    assert one(there, topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [by_id] = ask(there, ids=[old_id]).topics
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    new_id = here.create(topic, 2)
    described = one(there, topic)
    assert (described.topic_id, len(described.partitions)) == (new_id, 2)
    [by_id] = ask(there, ids=[old_id]).topics
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_two_workers_that_make_the_same_topic_at_once_make_one(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    for client in two_clients:
        client.send(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    answers = [client.receive(MetadataResponse, 12) for client in two_clients]
    # One that asks while the other makes it has to ask again.
    codes = sorted(each.topics[0].error_code for each in answers)
    assert codes in ([ErrorCode.NONE] * 2, [ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE])
    assert one(here, topic).topic_id == one(there, topic).topic_id != ZERO_UUID


@pytest.fixture(scope="module")
def other_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker that makes no topics, or few, with settings other than the defaults."""
    flags = {
        "auto.create.topics.enable": "false",
        "num.partitions": "3",
        "topic.reserved.prefix": "",
        "broker.id": "7",
        "advertised": "kafka.example:19092",
        "cluster.id": "my-cluster",
        "delete.topic.enable": "false",
    }
    options = [text for name, value in flags.items() for text in ("--set", f"{name}={value}")]
    with korvet_broker(tmp_path_factory.mktemp("other"), *options, workers=1) as running:
        yield running


@pytest.fixture
def other(other_broker: Broker) -> Iterator[Client]:
    with Client(other_broker.address) as connection:
        yield connection


@pytest.mark.parametrize("version", [0, 12])
def test_the_broker_may_forbid_the_making(other: Client, topic: str, version: int) -> None:
    assert one(other, topic, version, creates=True).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_names_ids_and_addresses_are_those_of_the_settings(other: Client, topic: str) -> None:
    other.create("__reserved", -1)
    answer = ask(other, "__reserved")
    assert (answer.cluster_id, answer.controller_id) == ("my-cluster", 7)
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [(7, "kafka.example", 19092)]
    [described] = answer.topics
    assert [each.leader_id for each in described.partitions] == [7, 7, 7]


def test_names_that_no_topic_has_cost_no_round_trip_each(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    names = [f"{topic}-{number}" for number in range(2000)]
    client.create(topic)
    before = stored.info("stats")["total_commands_processed"]
    answer = ask(client, *names, topic, allow_auto_topic_creation=False)
    assert [each.error_code for each in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2000 + [0]
    assert stored.info("stats")["total_commands_processed"] - before < len(names) / 2


def test_one_request_creates_so_many_topics_and_the_next_the_others(client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(TOPICS_CREATED_MAX + 20)]
    codes = [each.error_code for each in ask(client, *names, allow_auto_topic_creation=True).topics]
    assert codes == [0] * TOPICS_CREATED_MAX + [ErrorCode.LEADER_NOT_AVAILABLE] * 20
    assert {each.error_code for each in ask(client, *names, allow_auto_topic_creation=True).topics} == {0}
