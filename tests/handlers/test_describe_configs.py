"""DescribeConfigs by bytes: values, where they come from, and who may not be asked for what."""

from __future__ import annotations

import pytest

from korvet.config.broker_configs import BROKER_CONFIGS
from korvet.config.settings import SETTINGS
from korvet.config.topic_configs import TOPIC_CONFIGS
from korvet.errors import ErrorCode
from korvet.handlers.describe_configs import REPEATS_MAX
from korvet.protocol.types import ConfigType
from tests.handlers.configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DEFAULT,
    DYNAMIC_TOPIC,
    GROUP,
    STATIC,
    TOPIC,
    chain,
    config,
    configs_of,
    describe,
    value,
    wanted,
)
from tests.support.broker import Broker
from tests.support.topic_client import Client

BROKER_ID = "0"


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_describes_every_config_of_a_topic(client: Client, topic: str, version: int) -> None:
    client.create(topic, retention_ms="86400000")
    asked = {"version": version} | ({"documentation": True} if version >= 3 else {})
    found = configs_of(client, TOPIC, topic, **asked)
    assert list(found) == list(TOPIC_CONFIGS)
    retention = found["retention.ms"]
    assert (retention.value, retention.config_source) == ("86400000", DYNAMIC_TOPIC)
    assert found["retention.bytes"].config_source == DEFAULT
    assert not any(each.is_sensitive or each.synonyms for each in found.values())
    assert retention.config_type == (ConfigType.LONG if version >= 3 else 0)
    assert all(each.documentation for each in found.values()) == (version >= 3)


def test_documentation_is_returned_only_if_it_is_asked_for(client: Client, topic: str) -> None:
    client.create(topic)
    assert config(client, TOPIC, topic, "retention.ms").documentation is None
    text = config(client, TOPIC, topic, "retention.ms", documentation=True).documentation
    assert text == SETTINGS["log.retention.ms"].doc
    text = config(client, TOPIC, topic, "segment.bytes", documentation=True).documentation
    assert text.endswith("Has no effect here.")


def test_what_is_fixed_when_a_topic_is_created_is_read_only(client: Client, topic: str) -> None:
    client.create(topic)
    found = configs_of(client, TOPIC, topic)
    read_only = {name for name, each in found.items() if each.read_only}
    assert read_only == {"offset.sequence.bits", "redis.placement", "storage.format"}


def test_only_the_named_configs_are_described_and_unknown_names_are_left_out(
    client: Client, topic: str
) -> None:
    client.create(topic)
    assert list(configs_of(client, TOPIC, topic, "retention.ms", "nonsense", "cleanup.policy")) == [
        "cleanup.policy",
        "retention.ms",
    ]
    assert configs_of(client, TOPIC, topic, "nonsense") == {}


def test_an_empty_list_of_names_is_all(client: Client, topic: str) -> None:
    client.create(topic)
    asked = wanted(TOPIC, topic)
    asked.configuration_keys = []
    [result] = describe(client, asked)
    assert len(result.configs) == len(TOPIC_CONFIGS)


def test_synonyms_are_the_places_that_a_value_may_come_from(client: Client, topic: str) -> None:
    client.create(topic, delete_retention_ms="5", storage_format="batch", segment_bytes="77")
    retention = config(client, TOPIC, topic, "delete.retention.ms", synonyms=True)
    assert chain(retention) == [
        ("delete.retention.ms", "5", DYNAMIC_TOPIC),
        ("log.cleaner.delete.retention.ms", "86400000", DEFAULT),
    ]
    # The broker of these tests was given this format, which is the default.
    layout = chain(config(client, TOPIC, topic, "storage.format", synonyms=True))
    assert layout == [("storage.format", "batch", DYNAMIC_TOPIC), ("storage.format", "record", DEFAULT)]
    segment = config(client, TOPIC, topic, "segment.bytes", synonyms=True)
    assert chain(segment) == [
        ("segment.bytes", "77", DYNAMIC_TOPIC),
        ("segment.bytes", "1073741824", DEFAULT),
    ]


def test_types_are_kafkas(client: Client, topic: str) -> None:
    client.create(topic)
    found = {name: each.config_type for name, each in configs_of(client, TOPIC, topic).items()}
    expected = {
        "cleanup.policy": ConfigType.LIST,
        "compression.type": ConfigType.STRING,
        "max.message.bytes": ConfigType.INT,
        "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
        "preallocate": ConfigType.BOOLEAN,
        "retention.ms": ConfigType.LONG,
    }
    assert {name: found[name] for name in expected} == expected
    found = {name: each.config_type for name, each in configs_of(client, BROKER, BROKER_ID).items()}
    expected = {
        "auto.create.topics.enable": ConfigType.BOOLEAN,
        "log.cleaner.min.cleanable.ratio": ConfigType.DOUBLE,
        "log.cleanup.policy": ConfigType.LIST,
        "log.format": ConfigType.STRING,
        "log.retention.ms": ConfigType.LONG,
        "num.partitions": ConfigType.INT,
        "redis.url": ConfigType.PASSWORD,
        "storage.format.topics": ConfigType.LIST,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_broker_describes_all_its_settings(client: Client) -> None:
    found = configs_of(client, BROKER, BROKER_ID, synonyms=True, documentation=True)
    assert list(found) == list(BROKER_CONFIGS)
    assert {name for name, each in found.items() if each.read_only} == {
        name for name, each in SETTINGS.items() if not each.dynamic
    }
    assert all(each.documentation and each.synonyms for each in found.values())
    delay = found["group.initial.rebalance.delay.ms"]
    assert (delay.value, delay.config_source) == ("0", STATIC)
    assert chain(delay) == [
        ("group.initial.rebalance.delay.ms", "0", STATIC),
        ("group.initial.rebalance.delay.ms", "3000", DEFAULT),
    ]
    assert found["auto.create.topics.enable"].value == "true"


def test_a_broker_says_where_it_listens_although_only_an_address_was_given(
    client: Client, broker: Broker
) -> None:
    found = configs_of(client, BROKER, BROKER_ID, synonyms=True)
    at = "PLAINTEXT://{}:{}".format(*broker.address)
    for name in ("listeners", "advertised.listeners"):
        assert (found[name].value, found[name].config_source) == (at, STATIC)
        assert chain(found[name]) == [(name, at, STATIC), (name, "", DEFAULT)]


def test_a_value_that_may_hold_a_password_is_not_described(client: Client) -> None:
    found = configs_of(client, BROKER, BROKER_ID, synonyms=True)
    secret = {name for name, each in SETTINGS.items() if each.secret}
    assert {name for name, each in found.items() if each.is_sensitive} == secret
    url = found["redis.url"]
    assert (url.value, url.config_source) == (None, STATIC)
    assert [each.value for each in url.synonyms] == [None, None]
    assert {name for name, each in found.items() if each.value is None} == secret


def test_all_brokers_have_nothing_but_what_was_set_for_them(client: Client) -> None:
    assert configs_of(client, BROKER, "") == {}


@pytest.mark.parametrize(
    ("kind", "name", "code", "said"),
    [
        (TOPIC, "no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not host"),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "the empty string is not allowed"),
        (TOPIC, "no/topic", ErrorCode.INVALID_TOPIC_EXCEPTION, "other than ASCII"),
        (BROKER, "1", ErrorCode.INVALID_REQUEST, "expected 0 or empty string, but received 1"),
        (BROKER, "one", ErrorCode.INVALID_REQUEST, "must be an integer"),
        (BROKER, "-1", ErrorCode.INVALID_REQUEST, "must be an integer"),
        (BROKER, "9" * 5000, ErrorCode.INVALID_REQUEST, "must be an integer"),
        (BROKER, "٣", ErrorCode.INVALID_REQUEST, "must be an integer"),
        (BROKER_LOGGER, "0", ErrorCode.INVALID_REQUEST, "log.level"),
        (CLIENT_METRICS, "all", ErrorCode.INVALID_REQUEST, "not supported"),
        (GROUP, "", ErrorCode.INVALID_REQUEST, "must not be empty"),
        (0, "x", ErrorCode.INVALID_REQUEST, "Unknown resource type 0"),
        (99, "x", ErrorCode.INVALID_REQUEST, "Unknown resource type 99"),
    ],
)
def test_a_resource_that_cannot_be_described_says_why(
    client: Client, kind: int, name: str, code: ErrorCode, said: str
) -> None:
    [result, other] = describe(client, wanted(kind, name), wanted(BROKER, BROKER_ID, "num.partitions"))
    assert result.error_code == code
    assert said in result.error_message
    assert result.configs == []
    assert other.error_code == 0
    assert len(other.configs) == 1


def test_a_group_has_the_configs_of_every_type(client: Client) -> None:
    found = configs_of(client, GROUP, "billing", synonyms=True)
    assert {name: (each.value, each.config_source, each.read_only) for name, each in found.items()} == {
        "consumer.heartbeat.interval.ms": ("5000", DEFAULT, False),
        "consumer.session.timeout.ms": ("45000", DEFAULT, False),
        "share.auto.offset.reset": ("latest", DEFAULT, False),
        "share.heartbeat.interval.ms": ("5000", DEFAULT, False),
        "share.isolation.level": ("read_uncommitted", DEFAULT, False),
        "share.record.lock.duration.ms": ("30000", DEFAULT, False),
        "share.session.timeout.ms": ("45000", DEFAULT, False),
        "streams.heartbeat.interval.ms": ("5000", DEFAULT, False),
        "streams.initial.rebalance.delay.ms": ("3000", DEFAULT, False),
        "streams.num.standby.replicas": ("0", DEFAULT, False),
        "streams.session.timeout.ms": ("45000", DEFAULT, False),
    }
    assert chain(found["consumer.session.timeout.ms"]) == [
        ("group.consumer.session.timeout.ms", "45000", DEFAULT)
    ]
    # Some have no setting of the broker.
    assert chain(found["share.auto.offset.reset"]) == [("share.auto.offset.reset", "latest", DEFAULT)]


def test_a_resource_that_is_asked_for_twice_is_answered_twice(client: Client, topic: str) -> None:
    client.create(topic)
    first, second = describe(client, wanted(TOPIC, topic, "retention.ms"), wanted(TOPIC, topic, "segment.ms"))
    assert [each.name for each in first.configs] == ["retention.ms"]
    assert [each.name for each in second.configs] == ["segment.ms"]


def test_no_topic_is_created_by_asking(client: Client, topic: str) -> None:
    describe(client, wanted(TOPIC, topic))
    [again] = describe(client, wanted(TOPIC, topic))
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    client.create(topic)
    assert value(client, TOPIC, topic, "storage.format") == "record"


def test_a_resource_is_answered_a_limited_number_of_times(client: Client) -> None:
    results = describe(client, *[wanted(BROKER, BROKER_ID, "num.partitions")] * (REPEATS_MAX + 2))
    codes = [each.error_code for each in results]
    assert codes == [ErrorCode.NONE] * REPEATS_MAX + [ErrorCode.INVALID_REQUEST] * 2
    assert f"more than {REPEATS_MAX} times" in results[-1].error_message
