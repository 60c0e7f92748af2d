"""CreateTopics by bytes: what may be made, with which settings, and what is answered of it."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.wire import ZERO_UUID
from korvet.topics.registry import id_text
from korvet.topics.types import TopicRow, encode
from tests.lua.support import run
from tests.support.processes import wait_until
from tests.support.topic_client import Client

DYNAMIC_TOPIC, DEFAULT = 1, 5


def spec(name: str, partitions: int = 1, replicas: int = 1, **fields: Any) -> CreatableTopic:
    configs = [
        CreatableTopicConfig(name=each, value=value) for each, value in fields.pop("configs", {}).items()
    ]
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in fields.pop("assignments", [])
    ]
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=configs,
        assignments=assignments,
    )


def create(client: Client, *topics: CreatableTopic, version: int = 7, **fields: Any) -> Any:
    return client.call(CreateTopicsRequest(topics=list(topics), **fields), version).topics


def code(client: Client, *args: Any, **fields: Any) -> ErrorCode:
    [result] = create(client, spec(*args, **fields))
    assert bool(result.error_message) == bool(result.error_code)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_makes_a_topic(client: Client, topic: str, version: int) -> None:
    [result] = create(client, spec(topic, 3, 2), version=version)
    assert (result.name, result.error_code, result.error_message) == (topic, ErrorCode.NONE, None)
    assert (result.topic_id != ZERO_UUID) == (version >= 7)
    assert result.num_partitions == (3 if version >= 5 else -1)
    assert result.replication_factor == (1 if version >= 5 else -1)
    assert bool(result.configs) == (version >= 5)
    assert len(client.described(topic).partitions) == 3


@pytest.mark.parametrize("version", [4, 7])
def test_minus_1_is_the_brokers_default(client: Client, topic: str, version: int) -> None:
    [result] = create(client, spec(topic, -1, -1), version=version)
    assert result.error_code == ErrorCode.NONE
    assert len(client.described(topic).partitions) == 1


def test_configs_are_answered_all_with_where_each_comes_from(client: Client, topic: str) -> None:
    configs = {
        "retention.ms": "86400000",
        "retention.bytes": "1073741824",
        "compression.type": "lz4",
        "storage.compression": "zstd",
    }
    [result] = create(client, spec(topic, configs=configs))
    found = {each.name: each for each in result.configs}
    given = {each.name: each.value for each in result.configs if each.config_source == DYNAMIC_TOPIC}
    assert given.items() >= configs.items()
    assert set(given) - set(configs) <= {"storage.format", "offset.sequence.bits", "redis.placement"}  # kept
    defaults = {
        "cleanup.policy": "delete",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "segment.bytes": "1073741824",
        "remote.storage.enable": "false",
    }
    assert {name: found[name].value for name in defaults} == defaults
    assert {found[name].config_source for name in defaults} == {DEFAULT}
    assert not any(each.is_sensitive for each in result.configs)
    fixed = {each.name for each in result.configs if each.read_only}
    assert fixed == {"offset.sequence.bits", "redis.placement", "storage.format"}
    assert [each.name for each in result.configs] == sorted(found)


@pytest.mark.parametrize(
    "configs",
    [
        {"no.such.config": "1"},
        {"retention.ms": "soon"},
        {"retention.ms": "-2"},
        {"retention.ms": None},
        {"max.message.bytes": "2147483648"},
        {"max.message.bytes": "-1"},
        {"compression.type": "brotli"},
        {"cleanup.policy": "shred"},
        {"cleanup.policy": "compact,compact"},
        {"remote.storage.enable": "true"},
        {"storage.format": "parquet"},
        {"storage.compression": "snappy"},
        {"offset.sequence.bits": "13"},
        {"offset.sequence.bits": "7"},
        {"redis.placement": "evenly"},
        {"redis.slot.tags": "0aB"},
        {"min.cleanable.dirty.ratio": "1.5"},
        {"preallocate": "maybe"},
    ],
)
def test_a_config_that_is_unknown_ill_typed_or_not_built_is_invalid(
    client: Client, topic: str, configs: Any, stored: redis.Redis
) -> None:
    assert code(client, topic, configs=configs) == ErrorCode.INVALID_CONFIG
    assert not stored.hexists("korvet:topics", topic)


def test_a_config_given_twice_is_invalid(client: Client, topic: str) -> None:
    twice = spec(topic)
    twice.configs = [CreatableTopicConfig(name="retention.ms", value="1")] * 2
    [result] = create(client, twice)
    assert result.error_code == ErrorCode.INVALID_CONFIG


def test_of_names_that_collide_in_one_request_the_first_is_taken(client: Client, topic: str) -> None:
    results = create(client, spec(f"{topic}.a"), spec(f"{topic}_a"))
    assert [each.error_code for each in results] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_that_a_topic_exists_is_said_before_anything_else_that_is_wrong(client: Client, topic: str) -> None:
    client.create(topic)
    for wrong in (
        spec(topic, 0),
        spec(topic, 1, 0),
        spec(topic, configs={"no.such.config": "1"}),
        spec(topic, -1, -1, assignments=[(5, [77])]),
        spec(topic, 1, -1, assignments=[(0, [0])]),
    ):
        assert [each.error_code for each in create(client, wrong)] == [ErrorCode.TOPIC_ALREADY_EXISTS]


NAME, PARTITIONS, FACTOR, CONFIG, BROKERS = (
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
)


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"name": "a b"}, NAME, "'.', '_' and '-'"),
        ({"name": ".."}, NAME, "'..'"),
        ({"name": "x" * 250}, NAME, "250"),
        ({"name": "__x"}, NAME, "reserved"),
        ({"partitions": 0}, PARTITIONS, "not 0"),
        ({"partitions": -2}, PARTITIONS, "not -2"),
        ({"partitions": 10_001}, PARTITIONS, "10000"),
        ({"partitions": 2**31 - 1}, PARTITIONS, "10000"),
        ({"replicas": 0}, FACTOR, "not 0"),
        ({"replicas": -2}, FACTOR, "not -2"),
        ({"configs": {"no.such.config": "1"}}, CONFIG, "no.such.config"),
        ({"configs": {"retention.ms": "soon"}}, CONFIG, "retention.ms"),
        (
            {"configs": {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}},
            *(CONFIG, "min.compaction.lag.ms=2 is more than max.compaction.lag.ms=1"),
        ),
        ({"assignments": [(0, [0]), (0, [0])]}, BROKERS, "multiple assignments for partition 0"),
        ({"assignments": [(1, [0]), (3, [0])]}, BROKERS, "must be 0, 1, 2, ...: there are 1, 3"),
        ({"assignments": [(0, [0]), (2, [0])]}, BROKERS, "must be 0, 1, 2, ...: there are 0, 2"),
        ({"assignments": [(0, [])]}, BROKERS, "-0 is assigned to no broker"),
        ({"assignments": [(0, [0, 0])]}, BROKERS, "-0 is assigned to a broker twice"),
        (
            {"assignments": [(0, [0]), (1, [77])]},
            BROKERS,
            "-1 is assigned to brokers that are not there, [77]",
        ),
        ({"partitions": 1, "assignments": [(0, [0])]}, ErrorCode.INVALID_REQUEST, "must be -1"),
        ({"replicas": 1, "assignments": [(0, [0])]}, ErrorCode.INVALID_REQUEST, "must be -1"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_refusal_says_what_is_wrong(
    client: Client, topic: str, wrong: dict[str, Any], code: ErrorCode, said: str, *, validate_only: bool
) -> None:
    fields = {"name": topic} | wrong
    if "assignments" in fields:
        fields = {"partitions": -1, "replicas": -1} | fields
    [result] = create(client, spec(**fields), validate_only=validate_only)
    assert result.error_code == code
    assert said in result.error_message


def test_the_name_of_a_deleted_topic_is_given_again_once_that_is_cleared_away(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis
) -> None:
    here, there = two_clients

    def deleted_and_made_in_no_time() -> tuple[bytes, ErrorCode]:
        former = here.create(topic, 130)
        here.append(topic, b"old", partition=129)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=-1)
        [deleted] = here.call(request, 6).responses
        assert deleted.error_code == ErrorCode.NONE
        [refused] = create(there, spec(topic), timeout_ms=-1)
        return former, ErrorCode(refused.error_code)

    former, found = deleted_and_made_in_no_time()
    while found == ErrorCode.NONE:  # the keeper was there in between
        here.delete(topic)
        former, found = deleted_and_made_in_no_time()
    assert found == ErrorCode.REQUEST_TIMED_OUT
    [made] = create(there, spec(topic), timeout_ms=10_000)
    assert made.error_code == ErrorCode.NONE
    assert made.topic_id != former
    assert len(here.described(topic).partitions) == 1
    assert not stored.exists(f"korvet:{topic}:129", f"{{korvet:{topic}:129}}:state")


@pytest.mark.parametrize("replicas", [1, 3, 32767])
def test_any_other_replication_factor_is_taken_and_reported_as_1(
    client: Client, topic: str, replicas: int
) -> None:
    [result] = create(client, spec(topic, 1, replicas))
    assert (result.error_code, result.replication_factor) == (ErrorCode.NONE, 1)


def test_a_topic_named_twice_is_answered_once_and_not_made(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    other = f"{topic}-other"
    results = create(client, spec(topic), spec(other), spec(topic, 2))
    codes = {each.name: each.error_code for each in results}
    assert (len(results), codes) == (2, {topic: ErrorCode.INVALID_REQUEST, other: ErrorCode.NONE})
    assert not stored.hexists("korvet:topics", topic)


@pytest.mark.parametrize("version", [2, 7])
def test_validation_makes_nothing_and_finds_the_same(
    client: Client, topic: str, version: int, stored: redis.Redis
) -> None:
    for _ in range(2):
        [result] = create(client, spec(topic, 4), version=version, validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 4 if version >= 5 else -1)
        assert bool(result.configs) == (version >= 5)
    assert not stored.hexists("korvet:topics", topic)
    assert list(stored.scan_iter(f"*korvet:{topic}:*")) == []
    assert create(client, spec("a b"), validate_only=True)[0].error_code == 17
    client.create(topic)
    assert create(client, spec(topic), validate_only=True)[0].error_code == 36


def test_assignments_say_how_many_partitions_there_are(client: Client, topic: str) -> None:
    [result] = create(client, spec(topic, -1, -1, assignments=[(1, [0]), (0, [0])]))
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)


def test_a_new_topic_is_visible_to_every_worker_at_once(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    for number in range(20):
        here.create(f"{topic}-{number}")
        assert there.produce(f"{topic}-{number}").error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [2, 7])
def test_what_is_said_of_very_long_names_has_room_in_the_answer(
    client: Client, topic: str, version: int
) -> None:
    long = "x" * 32_767
    twice = create(client, spec(long), spec(long), version=version)
    assert [(each.name, each.error_code) for each in twice] == [(long, ErrorCode.INVALID_REQUEST)]
    unknown = create(client, spec(topic, configs={long: long}), version=version)
    far = create(client, spec(topic, -1, -1, assignments=[(0, list(range(100_000)))]), version=version)
    assert [each.error_code for each in unknown + far] == [
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    assert all(0 < len(each.error_message) <= 1000 for each in twice + unknown + far)


def test_the_most_partitions_are_made_and_deleted_by_one_request(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    assert code(client, topic, 10_000) == ErrorCode.NONE
    assert len(client.described(topic).partitions) == 10_000
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000)
    [deleted] = client.call(request, 5).responses
    assert deleted.error_code == ErrorCode.NONE
    assert list(stored.scan_iter(f"*korvet:{topic}:*", count=50_000)) == []
    assert code(client, topic, 10_001) == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", [2, 7])
def test_more_partitions_than_one_topic_may_have_are_made_by_no_request(
    client: Client, topic: str, stored: redis.Redis, version: int, *, validate_only: bool
) -> None:
    def codes(*specs: CreatableTopic) -> list[ErrorCode]:
        found = create(client, *specs, version=version, validate_only=validate_only)
        assert all(bool(each.error_message) == bool(each.error_code) for each in found)
        return [ErrorCode(each.error_code) for each in found]

    large, by_default = spec(f"{topic}-0", 9_998), spec(f"{topic}-1", -1, -1)
    assigned = spec(f"{topic}-2", -1, -1, assignments=[(0, [0]), (1, [0])])
    assert codes(large, by_default, assigned) == [ErrorCode.POLICY_VIOLATION] * 3
    assert not any(stored.hexists("korvet:topics", f"{topic}-{n}") for n in range(3))
    # What is refused by itself counts for nothing.
    none, too_large = spec(f"{topic}-3", -2), spec(f"{topic}-4", 10_001)
    assert codes(none, too_large, by_default, assigned) == [
        *[ErrorCode.INVALID_PARTITIONS] * 2,
        *[ErrorCode.NONE] * 2,
    ]


def test_a_topic_whose_creation_was_interrupted_is_unknown_until_the_keeper_has_completed_it(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    topic_id = b"sixteen bytes id"
    row = TopicRow(id=id_text(topic_id), partitions=3, state="creating")
    keys = ("korvet:topics", "{korvet:topics}:changes")
    claimed = run(stored, "topic/create", keys, [topic, encode(row), 60_000, 10_000, 0])

    def asked(*, creates: bool) -> ErrorCode:
        [found] = client.call(
            MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=creates), 12
        ).topics
        return ErrorCode(found.error_code)

    assert asked(creates=False) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert asked(creates=True) == ErrorCode.LEADER_NOT_AVAILABLE
    assert code(client, topic) == ErrorCode.TOPIC_ALREADY_EXISTS
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5000)
    [deleted] = client.call(request, 6).responses
    assert deleted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # The broker that has begun it is gone for so long that its claim has ended.
    stored.hset(keys[0], topic, re.sub(rb'"claim_until":\d+', b'"claim_until":1', claimed))
    [(_, newest)] = cast("list[tuple[bytes, float]]", stored.zrange(keys[1], -1, -1, withscores=True))
    stored.zadd(keys[1], {topic: newest + 1})
    wait_until(lambda: asked(creates=False) == ErrorCode.NONE, "the keeper completes the creation")
    described = client.described(topic)
    assert (described.topic_id, len(described.partitions)) == (topic_id, 3)
    assert client.append(topic, b"v") >= 0
