"""IncrementalAlterConfigs by bytes: what changes in topics and brokers, what is refused, and who acts on it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from korvet.config.settings import SETTINGS
from korvet.errors import ErrorCode
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.handlers.configs import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DEFAULT,
    DELETE,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    DYNAMIC_TOPIC,
    GROUP,
    GROUP_CONFIG,
    SET,
    SUBTRACT,
    TOPIC,
    Operations,
    alter,
    altered,
    chain,
    change,
    config,
    configs_of,
    refused,
    value,
)
from tests.support.batches import Record, batch
from tests.support.processes import wait_until
from tests.support.topic_client import Client

OWN, ALL = "0", ""


@pytest.fixture
def restored(client: Client) -> Iterator[None]:
    """Let the test alter settings of the broker, and delete them after it."""
    yield
    for name in (OWN, ALL):
        set_here = [
            key
            for key, each in configs_of(client, BROKER, name).items()
            if each.config_source in (DYNAMIC_BROKER, DYNAMIC_DEFAULT)
        ]
        change(client, BROKER, name, dict.fromkeys(set_here))


@pytest.mark.parametrize("version", [0, 1])
def test_every_version_sets_and_deletes(client: Client, topic: str, version: int) -> None:
    client.create(topic, segment_ms="9")
    change(client, TOPIC, topic, {"retention.bytes": "5000", "segment.ms": None}, version=version)
    found = configs_of(client, TOPIC, topic)
    assert (found["retention.bytes"].value, found["retention.bytes"].config_source) == ("5000", DYNAMIC_TOPIC)
    assert found["segment.ms"].config_source == DEFAULT


def test_what_is_not_named_stays(client: Client, topic: str) -> None:
    client.create(topic, segment_ms="9")
    change(client, TOPIC, topic, {"retention.bytes": "5000"})
    assert value(client, TOPIC, topic, "segment.ms") == "9"


def test_lists_are_appended_to_and_subtracted_from(client: Client, topic: str) -> None:
    client.create(topic)
    change(client, TOPIC, topic, {"cleanup.policy": (APPEND, "compact")})
    assert value(client, TOPIC, topic, "cleanup.policy") == "delete,compact"
    change(client, TOPIC, topic, {"cleanup.policy": (APPEND, "compact,delete")})
    assert value(client, TOPIC, topic, "cleanup.policy") == "delete,compact"
    change(client, TOPIC, topic, {"cleanup.policy": (SUBTRACT, "delete")})
    assert value(client, TOPIC, topic, "cleanup.policy") == "compact"
    change(client, TOPIC, topic, {"leader.replication.throttled.replicas": (APPEND, "0:1, 1:1")})
    assert value(client, TOPIC, topic, "leader.replication.throttled.replicas") == "0:1,1:1"


def test_a_list_is_not_appended_to_without_end(client: Client, topic: str) -> None:
    client.create(topic, leader_replication_throttled_replicas="0:" + "1" * 32_000)
    key = "leader.replication.throttled.replicas"
    code, message = refused(client, TOPIC, topic, {key: (APPEND, "1:" + "1" * 1000)})
    assert (code, "at most 32767 bytes" in message) == (ErrorCode.INVALID_CONFIG, True)


def test_validate_only_changes_nothing(client: Client, topic: str) -> None:
    client.create(topic)
    change(client, TOPIC, topic, {"retention.bytes": "5000"}, validate_only=True)
    assert config(client, TOPIC, topic, "retention.bytes").config_source == DEFAULT
    change(client, BROKER, ALL, {"log.retention.bytes": "5000"}, validate_only=True)
    change(client, BROKER, OWN, {"log.retention.bytes": "5000"}, validate_only=True)
    assert config(client, BROKER, OWN, "log.retention.bytes").config_source == DEFAULT
    code, _ = refused(client, TOPIC, topic, {"retention.bytes": "many"}, validate_only=True)
    assert code == ErrorCode.INVALID_CONFIG
    code, _ = refused(client, BROKER, OWN, {"log.retention.bytes": "many"}, validate_only=True)
    assert code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("operations", "code", "said"),
    [
        ({"no.such.config": "1"}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.config"),
        ({"no.such.config": None}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.config"),
        (
            {"retention.ms": "long"},
            ErrorCode.INVALID_CONFIG,
            "Invalid value 'long' for configuration retention.ms",
        ),
        ({"retention.ms": "-2"}, ErrorCode.INVALID_CONFIG, "retention.ms: it must be a whole number from -1"),
        ({"cleanup.policy": "keep"}, ErrorCode.INVALID_CONFIG, "a list of compact, delete"),
        ({"cleanup.policy": (APPEND, "keep")}, ErrorCode.INVALID_CONFIG, "a list of compact, delete"),
        ({"retention.ms": (APPEND, "1")}, ErrorCode.INVALID_CONFIG, "Can't APPEND to key retention.ms"),
        ({"retention.ms": (SUBTRACT, "1")}, ErrorCode.INVALID_CONFIG, "Can't SUBTRACT to key retention.ms"),
        ({"retention.ms": (SET, None)}, ErrorCode.INVALID_REQUEST, "Null value not supported for"),
        ({"cleanup.policy": (APPEND, None)}, ErrorCode.INVALID_REQUEST, "Null value not supported for"),
        ({"retention.ms": (4, "1")}, ErrorCode.INVALID_REQUEST, "Unknown operation type 4"),
        ({"remote.storage.enable": "true"}, ErrorCode.INVALID_CONFIG, "this broker has no archive"),
        ({"storage.format": "batch"}, ErrorCode.INVALID_CONFIG, "fixed when a topic is created"),
        ({"offset.sequence.bits": None}, ErrorCode.INVALID_CONFIG, "fixed when a topic is created"),
        ({"redis.placement": "even"}, ErrorCode.INVALID_CONFIG, "fixed when a topic is created"),
        ({"redis.slot.tags": "0aB"}, ErrorCode.INVALID_CONFIG, "Unknown topic config name"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
            ErrorCode.INVALID_CONFIG,
            "min.compaction.lag.ms=10 is more than max.compaction.lag.ms=9",
        ),
    ],
)
def test_a_change_of_a_topic_that_cannot_be_is_refused_whole(
    client: Client, topic: str, operations: Operations, code: ErrorCode, said: str
) -> None:
    client.create(topic)
    found, message = refused(client, TOPIC, topic, {"segment.ms": "77", **operations})
    assert found == code
    assert said in message
    assert config(client, TOPIC, topic, "segment.ms").config_source == DEFAULT


def test_what_is_fixed_may_be_set_to_what_it_is(client: Client, topic: str) -> None:
    client.create(topic)
    change(client, TOPIC, topic, {"storage.format": "record", "offset.sequence.bits": "10"})


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
def test_a_config_that_is_named_twice_is_refused(client: Client, topic: str, kind: int) -> None:
    client.create(topic)
    name, key = (topic, "retention.bytes") if kind == TOPIC else (OWN, "log.retention.bytes")
    resource = altered(kind, name, {key: "1"})
    resource.configs *= 2
    [answer] = alter(client, resource)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert key in answer.error_message
    assert config(client, kind, name, key).config_source == DEFAULT


def test_a_resource_that_is_named_twice_is_refused_and_the_others_are_altered(
    client: Client, topic: str
) -> None:
    client.create(topic)
    client.create(f"{topic}-other")
    first, second, other = alter(
        client,
        altered(TOPIC, topic, {"segment.ms": "1"}),
        altered(TOPIC, topic, {"segment.ms": "2"}),
        altered(TOPIC, f"{topic}-other", {"segment.ms": "3"}),
    )
    assert first.error_code == second.error_code == ErrorCode.INVALID_REQUEST
    assert other.error_code == 0
    assert config(client, TOPIC, topic, "segment.ms").config_source == DEFAULT
    assert value(client, TOPIC, f"{topic}-other", "segment.ms") == "3"


@pytest.mark.parametrize(
    ("resource", "operations", "code", "said"),
    [
        ((TOPIC, "no-such-topic"), {"segment.ms": "1"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not host"),
        ((TOPIC, ""), {"segment.ms": "1"}, ErrorCode.INVALID_REQUEST, "Default topic resources"),
        ((TOPIC, "a/b"), {"segment.ms": "1"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "other than ASCII"),
        ((BROKER, "1"), {"log.roll.ms": "1"}, ErrorCode.INVALID_REQUEST, "expected 0 or empty string"),
        ((BROKER, "x"), {"log.roll.ms": "1"}, ErrorCode.INVALID_REQUEST, "must be an integer"),
        ((BROKER, OWN), {"no.such": "1"}, ErrorCode.INVALID_CONFIG, "Unknown broker config name: no.such"),
        ((BROKER, ALL), {"no.such": None}, ErrorCode.INVALID_CONFIG, "Unknown broker config name: no.such"),
        ((BROKER, OWN), {"listen": "x:1"}, ErrorCode.INVALID_REQUEST, "dynamically: listen"),
        ((BROKER, OWN), {"num.partitions": None}, ErrorCode.INVALID_REQUEST, "dynamically: num.partitions"),
        ((BROKER, ALL), {"redis.url": "redis://x"}, ErrorCode.INVALID_REQUEST, "dynamically: redis.url"),
        ((BROKER, ALL), {"log.retention.ms": "-2"}, ErrorCode.INVALID_REQUEST, "a whole number from -1"),
        ((BROKER, OWN), {"log.retention.ms": ""}, ErrorCode.INVALID_REQUEST, "a whole number from -1"),
        (
            (BROKER, OWN),
            {"compression.type": "best"},
            ErrorCode.INVALID_REQUEST,
            "one of producer, uncompressed",
        ),
        ((BROKER, OWN), {"log.roll.ms": (APPEND, "1")}, ErrorCode.INVALID_CONFIG, "type is not LIST"),
        ((BROKER, ALL), {"log.roll.ms": (SET, None)}, ErrorCode.INVALID_REQUEST, "Null value"),
        (
            (BROKER, ALL),
            {"memory.throttle.percent": "99"},
            ErrorCode.INVALID_REQUEST,
            "memory.throttle.percent = 99 is more than memory.refuse.percent = 95",
        ),
        ((BROKER_LOGGER, OWN), {"root": "DEBUG"}, ErrorCode.INVALID_REQUEST, "log.level"),
        ((CLIENT_METRICS, "all"), {"metrics": "*"}, ErrorCode.INVALID_REQUEST, "not supported"),
        ((GROUP, ""), {"a": "1"}, ErrorCode.INVALID_REQUEST, "must not be empty"),
        (
            (GROUP, "billing"),
            {"classic.session.timeout.ms": "50000"},
            ErrorCode.INVALID_CONFIG,
            "Unknown group config name: classic.session.timeout.ms",
        ),
        (
            (GROUP, "billing"),
            {"streams.num.standby.replicas": "3"},
            ErrorCode.INVALID_CONFIG,
            "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        (
            (GROUP, "billing"),
            {"streams.num.standby.replicas": "-1"},
            ErrorCode.INVALID_CONFIG,
            "streams.num.standby.replicas",
        ),
        (
            (GROUP, "billing"),
            {"share.session.timeout.ms": "44999"},
            ErrorCode.INVALID_CONFIG,
            "share.session.timeout.ms must be greater than or equal to group.share.min.session.timeout.ms",
        ),
        (
            (GROUP, "billing"),
            {"consumer.session.timeout.ms": "60001"},
            ErrorCode.INVALID_CONFIG,
            "must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            (GROUP, "billing"),
            {"consumer.heartbeat.interval.ms": "4999"},
            ErrorCode.INVALID_CONFIG,
            "must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
        ),
        (
            (GROUP, "billing"),
            {"consumer.heartbeat.interval.ms": "soon"},
            ErrorCode.INVALID_CONFIG,
            "Invalid value 'soon'",
        ),
        (
            (GROUP, "billing"),
            {"share.record.lock.duration.ms": "60001"},
            ErrorCode.INVALID_CONFIG,
            "must be less than or equal to group.share.max.record.lock.duration.ms",
        ),
        (
            (GROUP, "billing"),
            {"share.auto.offset.reset": "by_duration:-PT1S"},
            ErrorCode.INVALID_CONFIG,
            "it must be latest, earliest, or by_duration:PnDTnHnMn.nS",
        ),
        (
            (GROUP, "billing"),
            {"share.isolation.level": "serializable"},
            ErrorCode.INVALID_CONFIG,
            "it must be one of read_committed, read_uncommitted",
        ),
        ((0, "x"), {"a": "1"}, ErrorCode.INVALID_REQUEST, "Unknown resource type 0"),
    ],
)
def test_what_cannot_be_altered_says_why_and_keeps_nothing_else_from_it(
    client: Client,
    topic: str,
    resource: tuple[int, str],
    operations: Operations,
    code: ErrorCode,
    said: str,
) -> None:
    client.create(topic)
    bad, good = alter(client, altered(*resource, operations), altered(TOPIC, topic, {"segment.ms": "5"}))
    assert bad.error_code == code
    assert said in bad.error_message
    assert good.error_code == 0
    assert value(client, TOPIC, topic, "segment.ms") == "5"
    assert configs_of(client, BROKER, ALL) == {}


def test_a_group_that_nothing_is_set_on_is_altered_for_nothing(client: Client) -> None:
    change(client, GROUP, "billing", {})


def test_configs_of_a_group_are_set_listed_and_deleted(client: Client) -> None:
    name, key = "group {of} orders", "consumer.session.timeout.ms"
    change(client, GROUP, name, {key: "50000"})
    found = config(client, GROUP, name, key, synonyms=True)
    assert (found.value, found.config_source) == ("50000", GROUP_CONFIG)
    assert value(client, GROUP, "another", key) == "45000"
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    # Groups of other tests of this broker may have configs too.
    listed = {(each.resource_type, each.resource_name) for each in client.call(request, 1).config_resources}
    assert {kind for kind, _ in listed} == {GROUP}
    assert (GROUP, name) in listed
    change(client, GROUP, name, {key: (DELETE, None)})
    assert value(client, GROUP, name, key) == "45000"
    assert name not in {each.resource_name for each in client.call(request, 1).config_resources}


@pytest.mark.usefixtures("restored")
def test_a_brokers_own_setting_lies_over_that_of_all_and_that_over_its_start(
    client: Client, topic: str
) -> None:
    client.create(topic)
    change(client, BROKER, ALL, {"log.roll.ms": "300"})
    change(client, BROKER, OWN, {"log.roll.ms": "200"})
    assert chain(config(client, BROKER, OWN, "log.roll.ms", synonyms=True)) == [
        ("log.roll.ms", "200", DYNAMIC_BROKER),
        ("log.roll.ms", "300", DYNAMIC_DEFAULT),
        ("log.roll.ms", "604800000", DEFAULT),
    ]
    of_all = config(client, BROKER, ALL, "log.roll.ms", synonyms=True)
    assert (of_all.value, of_all.config_source) == ("300", DYNAMIC_DEFAULT)
    assert chain(of_all) == [("log.roll.ms", "300", DYNAMIC_DEFAULT)]
    of_topic = config(client, TOPIC, topic, "segment.ms")
    assert (of_topic.value, of_topic.config_source) == ("200", DYNAMIC_BROKER)
    change(client, BROKER, OWN, {"log.roll.ms": None})
    of_topic = config(client, TOPIC, topic, "segment.ms", synonyms=True)
    assert (of_topic.value, of_topic.config_source) == ("300", DYNAMIC_DEFAULT)
    assert chain(of_topic)[0] == ("log.roll.ms", "300", DYNAMIC_DEFAULT)
    change(client, BROKER, ALL, {"log.roll.ms": None})
    assert config(client, TOPIC, topic, "segment.ms").config_source == DEFAULT
    assert configs_of(client, BROKER, ALL) == {}


@pytest.mark.usefixtures("restored")
def test_a_brokers_lists_are_appended_to_and_subtracted_from(client: Client) -> None:
    change(client, BROKER, ALL, {"log.cleanup.policy": (APPEND, "compact")})
    assert value(client, BROKER, OWN, "log.cleanup.policy") == "delete,compact"
    change(client, BROKER, OWN, {"log.cleanup.policy": (SUBTRACT, "delete")})
    assert value(client, BROKER, OWN, "log.cleanup.policy") == "compact"
    assert value(client, BROKER, ALL, "log.cleanup.policy") == "delete,compact"
    change(client, BROKER, ALL, {"storage.format.topics": (APPEND, "metrics.*=batch,audit=record")})
    change(client, BROKER, ALL, {"storage.format.topics": (SUBTRACT, "audit=record")})
    assert value(client, BROKER, OWN, "storage.format.topics") == "metrics.*=batch"


@pytest.mark.usefixtures("restored")
def test_throttles_that_tools_set_for_a_reassignment_are_kept_without_a_meaning(client: Client) -> None:
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    change(client, BROKER, OWN, dict.fromkeys(rates))
    change(client, BROKER, OWN, dict.fromkeys(rates, "1000"))
    found = configs_of(client, BROKER, OWN, *rates)
    assert {(each.value, each.config_source) for each in found.values()} == {("1000", DYNAMIC_BROKER)}
    code, _ = refused(client, BROKER, OWN, {rates[0]: "-1"})
    assert code == ErrorCode.INVALID_REQUEST


@pytest.mark.usefixtures("restored")
def test_settings_that_contradict_each_other_are_taken_only_together(client: Client) -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "100", "log.cleaner.max.compaction.lag.ms": "200"}
    change(client, BROKER, OWN, lags)
    code, message = refused(client, BROKER, OWN, {"log.cleaner.max.compaction.lag.ms": "99"})
    assert (code, "is more than" in message) == (ErrorCode.INVALID_REQUEST, True)
    # For the other brokers it would be in order, but not for this one.
    change(client, BROKER, OWN, {"log.cleaner.min.compaction.lag.ms": None})
    code, message = refused(client, BROKER, ALL, {"log.cleaner.min.compaction.lag.ms": "201"})
    assert (code, "is more than" in message) == (ErrorCode.INVALID_REQUEST, True)
    assert configs_of(client, BROKER, ALL) == {}


@pytest.mark.usefixtures("restored")
def test_every_dynamic_setting_can_be_set_to_what_it_is(client: Client) -> None:
    before = configs_of(client, BROKER, OWN)
    dynamic = {name: before[name].value for name, each in SETTINGS.items() if each.dynamic}
    assert len(dynamic) > 20
    for name in (ALL, OWN):
        change(client, BROKER, name, dict(dynamic))
    after = configs_of(client, BROKER, OWN)
    assert {key: each.value for key, each in after.items()} == {
        key: each.value for key, each in before.items()
    }
    assert {after[key].config_source for key in dynamic} == {DYNAMIC_BROKER}


def test_a_change_of_a_topic_takes_effect_in_both_workers(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    for client in two_clients:
        assert client.produce(topic, batch(b"v" * 100)).error_code == 0
    change(here, TOPIC, topic, {"max.message.bytes": "90"})
    assert here.produce(topic, batch(b"v" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    wait_until(
        lambda: there.produce(topic, batch(b"v" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE,
        "the other worker knows the limit",
    )
    change(there, TOPIC, topic, {"max.message.bytes": None, "message.timestamp.type": "LogAppendTime"})
    wait_until(lambda: here.produce(topic, batch(b"v" * 100)).error_code == 0, "no limit is left")
    assert here.produce(topic, batch(b"v")).log_append_time_ms >= (time.time() - 60) * 1000
    change(here, TOPIC, topic, {"cleanup.policy": "compact"})
    without_key = batch(b"value")
    assert here.produce(topic, without_key).error_code == ErrorCode.INVALID_RECORD
    wait_until(
        lambda: there.produce(topic, without_key).error_code == ErrorCode.INVALID_RECORD,
        "the other worker knows that the topic is compacted",
    )
    assert there.produce(topic, batch(Record(b"key", b"value"))).error_code == 0


@pytest.mark.usefixtures("restored")
def test_a_change_of_the_broker_takes_effect_in_both_workers_and_on_topics_that_are_there(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.create(f"{topic}-own", max_message_bytes="1000")
    change(here, BROKER, ALL, {"message.max.bytes": "90"})
    large = batch(b"v" * 100)
    assert here.produce(topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    wait_until(
        lambda: there.produce(topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE,
        "the other worker knows the limit",
    )
    for client in two_clients:
        assert client.produce(f"{topic}-own", large).error_code == 0
    # A topic that is created now inherits it too, and reports so.
    there.create(f"{topic}-new")
    found = config(there, TOPIC, f"{topic}-new", "max.message.bytes")
    assert (found.value, found.config_source) == ("90", DYNAMIC_DEFAULT)
    change(there, BROKER, OWN, {"message.max.bytes": "1000"})
    assert there.produce(topic, large).error_code == 0
    wait_until(lambda: here.produce(topic, large).error_code == 0, "the first worker knows it too")
    change(here, BROKER, ALL, {"message.max.bytes": (DELETE, None)})
    assert value(here, TOPIC, topic, "max.message.bytes") == "1000"
