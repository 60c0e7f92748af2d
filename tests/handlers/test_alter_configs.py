"""AlterConfigs by bytes: what is not named goes, what is fixed stays, and what cannot be is refused."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers.configs import (
    BROKER,
    DEFAULT,
    DYNAMIC_TOPIC,
    TOPIC,
    change,
    config,
    configs_of,
    replace,
    reset,
    value,
)
from tests.support.topic_client import Client

OWN, ALL = "0", ""


@pytest.mark.parametrize("version", range(3))
def test_every_version_sets_all_configs_of_a_topic(client: Client, topic: str, version: int) -> None:
    client.create(topic, segment_ms="9", storage_format="batch")
    [answer] = replace(client, reset(TOPIC, topic, {"retention.bytes": "5000"}), version=version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.resource_type, answer.resource_name) == (TOPIC, topic)
    found = configs_of(client, TOPIC, topic)
    set_on_it = {name for name, each in found.items() if each.config_source == DYNAMIC_TOPIC}
    assert set_on_it == {"retention.bytes", "offset.sequence.bits", "redis.placement", "storage.format"}
    assert found["storage.format"].value == "batch"


def test_all_that_was_described_can_be_set(client: Client, topic: str) -> None:
    client.create(topic, segment_ms="9")
    before = {name: each.value for name, each in configs_of(client, TOPIC, topic).items()}
    [answer] = replace(client, reset(TOPIC, topic, before))
    assert (answer.error_code, answer.error_message) == (0, None)
    assert {name: each.value for name, each in configs_of(client, TOPIC, topic).items()} == before


def test_validate_only_changes_nothing(client: Client, topic: str) -> None:
    client.create(topic, segment_ms="9")
    resources = [reset(TOPIC, topic, {}), reset(BROKER, OWN, {"log.roll.ms": "5"})]
    answers = replace(client, *resources, validate_only=True)
    assert [each.error_code for each in answers] == [0, 0]
    assert value(client, TOPIC, topic, "segment.ms") == "9"
    assert config(client, BROKER, OWN, "log.roll.ms").config_source == DEFAULT
    [answer] = replace(client, reset(TOPIC, topic, {"segment.ms": "x"}), validate_only=True)
    assert answer.error_code == ErrorCode.INVALID_CONFIG


def test_a_broker_is_set_reset(client: Client) -> None:
    try:
        change(client, BROKER, OWN, {"log.roll.ms": "5", "log.retention.bytes": "6"})
        [answer] = replace(client, reset(BROKER, OWN, {"log.roll.ms": "7"}))
        assert answer.error_code == 0
        assert value(client, BROKER, OWN, "log.roll.ms") == "7"
        assert config(client, BROKER, OWN, "log.retention.bytes").config_source == DEFAULT
        [answer] = replace(client, reset(BROKER, ALL, {"log.roll.ms": "8"}))
        assert answer.error_code == 0
        assert value(client, BROKER, ALL, "log.roll.ms") == "8"
        assert value(client, BROKER, OWN, "log.roll.ms") == "7"
    finally:
        replace(client, reset(BROKER, OWN, {}), reset(BROKER, ALL, {}))
    assert configs_of(client, BROKER, ALL) == {}
    assert config(client, BROKER, OWN, "log.roll.ms").config_source == DEFAULT


@pytest.mark.parametrize(
    ("kind", "name", "given", "code"),
    [
        (TOPIC, "no-such-topic", {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", {}, ErrorCode.INVALID_REQUEST),
        (BROKER, OWN, {"no.such": "1"}, ErrorCode.INVALID_CONFIG),
        (BROKER, OWN, {"log.roll.ms": None}, ErrorCode.INVALID_REQUEST),
        (99, "x", {}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_resource_that_cannot_be_set_says_why(
    client: Client, kind: int, name: str, given: dict[str, str | None], code: ErrorCode
) -> None:
    [answer] = replace(client, reset(kind, name, given))
    assert answer.error_code == code
    assert answer.error_message
    assert config(client, BROKER, OWN, "log.roll.ms").config_source == DEFAULT


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"retention.ms": None}, ErrorCode.INVALID_REQUEST),
        ({"storage.format": "batch"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_topic_on_which_something_cannot_be_set_stays_as_it_is(
    client: Client, topic: str, given: dict[str, str | None], code: ErrorCode
) -> None:
    client.create(topic, segment_ms="9")
    [answer] = replace(client, reset(TOPIC, topic, {"segment.ms": "8", **given}))
    assert answer.error_code == code
    assert answer.error_message
    assert value(client, TOPIC, topic, "segment.ms") == "9"


def test_what_is_named_twice_is_refused(client: Client, topic: str) -> None:
    client.create(topic, segment_ms="9")
    twice = reset(TOPIC, topic, {"segment.ms": "8"})
    twice.configs *= 2
    [answer] = replace(client, twice)
    assert (answer.error_code, "segment.ms" in answer.error_message) == (ErrorCode.INVALID_REQUEST, True)
    resource = reset(TOPIC, topic, {"segment.ms": "8"})
    for answer in replace(client, resource, resource):
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert value(client, TOPIC, topic, "segment.ms") == "9"
