"""Configs of topics, brokers and groups: what is described, what a change does, and why one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from korvet.config.group_configs import GROUP_CONFIGS
from korvet.config.settings import SETTINGS
from korvet.config.topic_configs import TOPIC_CONFIGS
from korvet.errors import ErrorCode
from korvet.handlers.describe_configs import REPEATS_MAX
from korvet.protocol.messages.alter_configs import AlterConfigsRequest
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest
from korvet.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.protocol.types import ConfigOperation, ConfigType, ResourceType
from tests.handlers.scene import Scene

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP
LOGGER, METRICS = ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, GROUP_CONFIG = 1, 2, 3, 4, 5, 8
"""Where a value comes from, as in the protocol."""
OWN, ALL = "0", ""
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
NO_CONFIG, INVALID = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST


@pytest.fixture
def scene(redis_url: str) -> Iterator[Scene]:
    """Give a worker's handlers with the topic `orders`, on which `segment.ms` is set."""
    with closing(Scene(redis_url)) as made:
        made.create("orders", segment_ms="9", offset_sequence_bits="10")
        yield made


def described(scene: Scene, kind: int = TOPIC, name: str = "orders", **fields: Any) -> dict[str, Any]:
    """Return the configs of a resource by their names."""
    keys = fields.pop("keys", None)
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    [result] = scene.do(DescribeConfigsRequest, resources=[resource], include_synonyms=True, **fields).results
    return {config.name: config for config in result.configs}


def value(scene: Scene, kind: int, name: str, key: str) -> tuple[str | None, int]:
    """Return the value of a config, and where it comes from."""
    found = described(scene, kind, name)[key]
    return found.value, found.config_source


def changed(scene: Scene, kind: int, name: str, *changes: tuple[str, int, str | None], **fields: Any) -> Any:
    """Change configs; returns error and message."""
    configs = [{"name": key, "config_operation": how, "value": given} for key, how, given in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [answer] = scene.ask(IncrementalAlterConfigsRequest, resources=[resource], **fields).responses
    return answer.error_code, answer.error_message


def replaced(scene: Scene, kind: int, name: str, given: dict[str, str | None], **fields: Any) -> int:
    """Set all configs of a resource; returns the error."""
    configs = [{"name": key, "value": text} for key, text in given.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [answer] = scene.ask(AlterConfigsRequest, resources=[resource], **fields).responses
    code: int = answer.error_code
    return code


def chain(config: Any) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def test_a_topic_has_all_configs_and_their_kafka_types(scene: Scene) -> None:
    found = described(scene, include_documentation=True)
    assert list(found) == list(TOPIC_CONFIGS)
    assert all(config.documentation for config in found.values())
    assert not any(config.is_sensitive for config in found.values())
    fixed = {"offset.sequence.bits", "redis.placement", "storage.format"}
    assert {name for name, config in found.items() if config.read_only} == fixed
    types = {
        "cleanup.policy": ConfigType.LIST,
        "compression.type": ConfigType.STRING,
        "max.message.bytes": ConfigType.INT,
        "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
        "preallocate": ConfigType.BOOLEAN,
        "retention.ms": ConfigType.LONG,
    }
    assert {name: found[name].config_type for name in types} == types
    assert described(scene, keys=[]).keys() == found.keys()
    assert list(described(scene, keys=["segment.ms", "nonsense"])) == ["segment.ms"]


def test_synonyms_are_the_places_that_a_value_may_come_from(scene: Scene) -> None:
    scene.create("other", delete_retention_ms="5", segment_bytes="77")
    found = described(scene, name="other")
    assert chain(found["delete.retention.ms"]) == [
        ("delete.retention.ms", "5", DYNAMIC_TOPIC),
        ("log.cleaner.delete.retention.ms", "86400000", DEFAULT),
    ]
    assert chain(found["segment.bytes"]) == [
        ("segment.bytes", "77", DYNAMIC_TOPIC),
        ("segment.bytes", "1073741824", DEFAULT),
    ]
    groups = described(scene, GROUP, "billing")
    assert groups.keys() == GROUP_CONFIGS.keys()
    assert chain(groups["consumer.session.timeout.ms"]) == [
        ("group.consumer.session.timeout.ms", "45000", DEFAULT)
    ]
    # Some have no setting of the broker.
    assert chain(groups["share.auto.offset.reset"]) == [("share.auto.offset.reset", "latest", DEFAULT)]


def test_a_broker_describes_all_its_settings_but_no_secret(scene: Scene) -> None:
    found = described(scene, BROKER, OWN, include_documentation=True)
    fixed = {name for name, definition in SETTINGS.items() if not definition.dynamic}
    assert {name for name, config in found.items() if config.read_only} == fixed
    assert all(config.documentation and config.synonyms for config in found.values())
    assert chain(found["group.initial.rebalance.delay.ms"]) == [
        ("group.initial.rebalance.delay.ms", "0", STATIC),
        ("group.initial.rebalance.delay.ms", "3000", DEFAULT),
    ]
    for name in ("listeners", "advertised.listeners"):
        assert (found[name].value, found[name].config_source) == ("PLAINTEXT://127.0.0.1:9092", STATIC)
    secret = {name for name, definition in SETTINGS.items() if definition.secret}
    assert {name for name, config in found.items() if config.is_sensitive} == secret
    assert {name for name, config in found.items() if config.value is None} == secret
    assert [synonym.value for synonym in found["redis.url"].synonyms] == [None, None]
    assert described(scene, BROKER, ALL) == {}


@pytest.mark.parametrize("name", ["one", "-1", "9" * 5000, "٣", "1"])
def test_a_broker_is_named_by_its_own_number(scene: Scene, name: str) -> None:
    resource = {"resource_type": BROKER, "resource_name": name}
    [result] = scene.ask(DescribeConfigsRequest, resources=[resource]).results
    assert (result.error_code, result.configs) == (INVALID, [])
    assert ("received 1" if name == "1" else "must be an integer") in result.error_message


def test_a_resource_is_answered_a_limited_number_of_times(scene: Scene) -> None:
    resource = {"resource_type": BROKER, "resource_name": OWN, "configuration_keys": ["num.partitions"]}
    results = scene.ask(DescribeConfigsRequest, resources=[resource] * (REPEATS_MAX + 2)).results
    assert [result.error_code for result in results] == [ErrorCode.NONE] * REPEATS_MAX + [INVALID] * 2
    assert f"more than {REPEATS_MAX} times" in results[-1].error_message


def test_lists_are_appended_to_and_subtracted_from(scene: Scene) -> None:
    def changes(kind: int, name: str, key: str, how: int, given: str) -> str | None:
        assert changed(scene, kind, name, (key, how, given)) == (0, None)
        return value(scene, kind, OWN if kind == BROKER else name, key)[0]

    assert changes(TOPIC, "orders", "cleanup.policy", APPEND, "compact") == "delete,compact"
    assert changes(TOPIC, "orders", "cleanup.policy", APPEND, "compact,delete") == "delete,compact"
    assert changes(TOPIC, "orders", "cleanup.policy", SUBTRACT, "delete") == "compact"
    throttled = "leader.replication.throttled.replicas"
    assert changes(TOPIC, "orders", throttled, APPEND, "0:1, 1:1") == "0:1,1:1"
    assert changes(BROKER, ALL, "log.cleanup.policy", APPEND, "compact") == "delete,compact"
    assert changes(BROKER, OWN, "log.cleanup.policy", SUBTRACT, "delete") == "compact"
    formats = "storage.format.topics"
    assert changes(BROKER, ALL, formats, APPEND, "metrics.*=batch,audit=record") is not None
    assert changes(BROKER, ALL, formats, SUBTRACT, "audit=record") == "metrics.*=batch"
    assert changed(scene, TOPIC, "orders", (throttled, SET, "0:" + "1" * 32_000)) == (0, None)
    code, message = changed(scene, TOPIC, "orders", (throttled, APPEND, "1:" + "1" * 1000))
    assert (code, "at most 32767 bytes" in message) == (NO_CONFIG, True)


def test_a_brokers_own_setting_lies_over_that_of_all_and_that_over_its_start(scene: Scene) -> None:
    for name, text in ((ALL, "300"), (OWN, "200")):
        assert changed(scene, BROKER, name, ("log.roll.ms", SET, text)) == (0, None)
    assert changed(scene, TOPIC, "orders", ("segment.ms", DELETE, None)) == (0, None)
    assert chain(described(scene, BROKER, OWN)["log.roll.ms"]) == [
        ("log.roll.ms", "200", DYNAMIC_BROKER),
        ("log.roll.ms", "300", DYNAMIC_DEFAULT),
        ("log.roll.ms", "604800000", DEFAULT),
    ]
    assert chain(described(scene, BROKER, ALL)["log.roll.ms"]) == [("log.roll.ms", "300", DYNAMIC_DEFAULT)]
    assert value(scene, TOPIC, "orders", "segment.ms") == ("200", DYNAMIC_BROKER)
    assert changed(scene, BROKER, OWN, ("log.roll.ms", DELETE, None)) == (0, None)
    assert value(scene, TOPIC, "orders", "segment.ms") == ("300", DYNAMIC_DEFAULT)
    assert changed(scene, BROKER, ALL, ("log.roll.ms", DELETE, None)) == (0, None)
    assert value(scene, TOPIC, "orders", "segment.ms")[1] == DEFAULT
    assert described(scene, BROKER, ALL) == {}


def test_a_group_has_configs_until_they_are_deleted(scene: Scene) -> None:
    name, key = "group {of} orders", "consumer.session.timeout.ms"

    def listed() -> list[str]:
        answer = scene.do(ListConfigResourcesRequest, resource_types=[GROUP])
        return [resource.resource_name for resource in answer.config_resources]

    assert changed(scene, GROUP, "billing") == (0, None)
    assert changed(scene, GROUP, name, (key, SET, "50000")) == (0, None)
    assert value(scene, GROUP, name, key) == ("50000", GROUP_CONFIG)
    assert value(scene, GROUP, "another", key) == ("45000", DEFAULT)
    assert listed() == [name]
    assert changed(scene, GROUP, name, (key, DELETE, None)) == (0, None)
    assert (value(scene, GROUP, name, key), listed()) == (("45000", DEFAULT), [])


def test_settings_that_contradict_each_other_are_taken_only_together(scene: Scene) -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    assert changed(scene, BROKER, OWN, (least, SET, "100"), (most, SET, "200")) == (0, None)
    code, message = changed(scene, BROKER, OWN, (most, SET, "99"))
    assert (code, "is more than" in message) == (INVALID, True)
    # For the other brokers it would be in order, but not for this one.
    assert changed(scene, BROKER, OWN, (least, DELETE, None)) == (0, None)
    code, message = changed(scene, BROKER, ALL, (least, SET, "201"))
    assert (code, "is more than" in message) == (INVALID, True)


def test_every_dynamic_setting_can_be_set_to_what_it_is(scene: Scene) -> None:
    before = {name: config.value for name, config in described(scene, BROKER, OWN).items()}
    dynamic = {name: before[name] for name, definition in SETTINGS.items() if definition.dynamic}
    assert len(dynamic) > 20
    for name in (ALL, OWN):
        assert changed(scene, BROKER, name, *((key, SET, text) for key, text in dynamic.items())) == (0, None)
    after = described(scene, BROKER, OWN)
    assert {name: config.value for name, config in after.items()} == before
    assert {after[name].config_source for name in dynamic} == {DYNAMIC_BROKER}


def test_what_is_only_validated_is_not_changed(scene: Scene) -> None:
    for kind, name, key in ((TOPIC, "orders", "retention.bytes"), (BROKER, OWN, "log.retention.bytes")):
        assert changed(scene, kind, name, (key, SET, "5000"), validate_only=True) == (0, None)
        assert replaced(scene, kind, name, {key: "5000"}, validate_only=True) == 0
        assert value(scene, kind, name, key)[1] == DEFAULT
        refusal = NO_CONFIG if kind == TOPIC else INVALID
        assert changed(scene, kind, name, (key, SET, "many"), validate_only=True)[0] == refusal
        assert replaced(scene, kind, name, {key: "many"}, validate_only=True) == refusal


def test_a_replacement_deletes_what_it_does_not_name_but_what_is_fixed(scene: Scene) -> None:
    assert replaced(scene, TOPIC, "orders", {"retention.bytes": "5000"}) == 0
    own = {name for name, config in described(scene).items() if config.config_source == DYNAMIC_TOPIC}
    assert own == {"retention.bytes", "offset.sequence.bits", "redis.placement", "storage.format"}
    every = {name: config.value for name, config in described(scene).items()}
    assert replaced(scene, TOPIC, "orders", every) == 0
    assert {name: config.value for name, config in described(scene).items()} == every
    assert changed(scene, BROKER, OWN, ("log.roll.ms", SET, "5"), ("log.retention.bytes", SET, "6")) == (
        0,
        None,
    )
    assert replaced(scene, BROKER, OWN, {"log.roll.ms": "7"}) == 0
    assert value(scene, BROKER, OWN, "log.roll.ms") == ("7", DYNAMIC_BROKER)
    assert value(scene, BROKER, OWN, "log.retention.bytes")[1] == DEFAULT
    refused: list[tuple[dict[str, str | None], int]]
    refused = [({"retention.ms": None}, INVALID), ({"storage.format": "record"}, NO_CONFIG)]
    for given, code in refused:
        assert replaced(scene, TOPIC, "orders", given) == code
        assert value(scene, TOPIC, "orders", "retention.bytes") == ("5000", DYNAMIC_TOPIC)


REFUSED_OF_TOPIC = [
    ([("no.such.config", SET, "1")], NO_CONFIG, "Unknown topic config name: no.such.config"),
    ([("no.such.config", DELETE, None)], NO_CONFIG, "Unknown topic config name: no.such.config"),
    ([("retention.ms", SET, "long")], NO_CONFIG, "Invalid value 'long' for configuration retention.ms"),
    ([("retention.ms", SET, "-2")], NO_CONFIG, "retention.ms: it must be a whole number from -1"),
    ([("cleanup.policy", APPEND, "keep")], NO_CONFIG, "a list of compact, delete"),
    ([("retention.ms", APPEND, "1")], NO_CONFIG, "Can't APPEND to key retention.ms"),
    ([("retention.ms", SUBTRACT, "1")], NO_CONFIG, "Can't SUBTRACT to key retention.ms"),
    ([("retention.ms", SET, None)], INVALID, "Null value not supported for"),
    ([("cleanup.policy", APPEND, None)], INVALID, "Null value not supported for"),
    ([("retention.ms", 4, "1")], INVALID, "Unknown operation type 4"),
    ([("retention.ms", SET, "1")] * 2, INVALID, "Named more than once: retention.ms"),
    ([("remote.storage.enable", SET, "true")], NO_CONFIG, "this broker has no archive"),
    ([("storage.format", SET, "record")], NO_CONFIG, "fixed when a topic is created"),
    ([("offset.sequence.bits", DELETE, None)], NO_CONFIG, "fixed when a topic is created"),
    ([("redis.placement", SET, "even")], NO_CONFIG, "fixed when a topic is created"),
    ([("redis.slot.tags", SET, "0aB")], NO_CONFIG, "Unknown topic config name"),
    (
        [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "9")],
        NO_CONFIG,
        "min.compaction.lag.ms=10 is more than max.compaction.lag.ms=9",
    ),
]


@pytest.mark.parametrize(("changes", "code", "said"), REFUSED_OF_TOPIC)
def test_a_change_of_a_topic_that_cannot_be_is_refused_whole(
    scene: Scene, changes: list[tuple[str, int, str | None]], code: ErrorCode, said: str
) -> None:
    found, message = changed(scene, TOPIC, "orders", ("segment.ms", SET, "77"), *changes)
    assert (found, said in message) == (code, True)
    assert value(scene, TOPIC, "orders", "segment.ms") == ("9", DYNAMIC_TOPIC)
    assert changed(scene, TOPIC, "orders", ("storage.format", SET, "batch")) == (0, None), "it is that"


TOO_FEW, TOO_MANY = "must be greater than or equal to ", "must be less than or equal to "
REFUSED = [
    (TOPIC, "missing", ("segment.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not host"),
    (TOPIC, "", ("segment.ms", SET, "1"), INVALID, "Default topic resources"),
    (TOPIC, "a/b", ("segment.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION, "other than ASCII"),
    (BROKER, "x", ("log.roll.ms", SET, "1"), INVALID, "must be an integer"),
    (BROKER, OWN, ("no.such", SET, "1"), NO_CONFIG, "Unknown broker config name: no.such"),
    (BROKER, ALL, ("no.such", DELETE, None), NO_CONFIG, "Unknown broker config name: no.such"),
    (BROKER, OWN, ("listen", SET, "x:1"), INVALID, "dynamically: listen"),
    (BROKER, OWN, ("num.partitions", DELETE, None), INVALID, "dynamically: num.partitions"),
    (BROKER, ALL, ("log.retention.ms", SET, "-2"), INVALID, "a whole number from -1"),
    (BROKER, OWN, ("log.retention.ms", SET, ""), INVALID, "a whole number from -1"),
    (BROKER, OWN, ("compression.type", SET, "best"), INVALID, "one of producer, uncompressed"),
    (BROKER, OWN, ("log.roll.ms", APPEND, "1"), NO_CONFIG, "type is not LIST"),
    (BROKER, ALL, ("log.roll.ms", SET, None), INVALID, "Null value"),
    (
        BROKER,
        ALL,
        ("memory.throttle.percent", SET, "99"),
        INVALID,
        "99 is more than memory.refuse.percent = 95",
    ),
    (BROKER, OWN, ("leader.replication.throttled.rate", SET, "-1"), INVALID, "throttled.rate"),
    (LOGGER, OWN, ("root", SET, "DEBUG"), INVALID, "log.level"),
    (METRICS, "all", ("metrics", SET, "*"), INVALID, "not supported"),
    (GROUP, "", ("a", SET, "1"), INVALID, "must not be empty"),
    (GROUP, "g", ("classic.session.timeout.ms", SET, "50000"), NO_CONFIG, "Unknown group config name"),
    (
        GROUP,
        "g",
        ("streams.num.standby.replicas", SET, "3"),
        NO_CONFIG,
        TOO_MANY + "group.streams.max.standby",
    ),
    (GROUP, "g", ("streams.num.standby.replicas", SET, "-1"), NO_CONFIG, "streams.num.standby.replicas"),
    (GROUP, "g", ("share.session.timeout.ms", SET, "44999"), NO_CONFIG, TOO_FEW + "group.share.min.session"),
    (
        GROUP,
        "g",
        ("consumer.session.timeout.ms", SET, "60001"),
        NO_CONFIG,
        TOO_MANY + "group.consumer.max.session",
    ),
    (GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "4999"), NO_CONFIG, TOO_FEW + "group.consumer.min."),
    (GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "soon"), NO_CONFIG, "Invalid value 'soon'"),
    (
        GROUP,
        "g",
        ("share.record.lock.duration.ms", SET, "60001"),
        NO_CONFIG,
        TOO_MANY + "group.share.max.record",
    ),
    (
        GROUP,
        "g",
        ("share.auto.offset.reset", SET, "by_duration:-PT1S"),
        NO_CONFIG,
        "latest, earliest, or by_duration",
    ),
    (
        GROUP,
        "g",
        ("share.isolation.level", SET, "serializable"),
        NO_CONFIG,
        "read_committed, read_uncommitted",
    ),
    (0, "x", ("a", SET, "1"), INVALID, "Unknown resource type 0"),
]


@pytest.mark.parametrize(("kind", "name", "change", "code", "said"), REFUSED)
def test_what_cannot_be_altered_says_why_and_keeps_nothing_else_from_it(
    scene: Scene, kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode, said: str
) -> None:
    resources = [
        {
            "resource_type": of_kind,
            "resource_name": of_name,
            "configs": [{"name": key, "config_operation": how, "value": given}],
        }
        for of_kind, of_name, (key, how, given) in (
            (kind, name, change),
            (TOPIC, "orders", ("segment.ms", SET, "5")),
        )
    ]
    bad, good = scene.ask(IncrementalAlterConfigsRequest, resources=resources).responses
    assert (bad.error_code, said in bad.error_message, good.error_code) == (code, True, 0)
    assert value(scene, TOPIC, "orders", "segment.ms") == ("5", DYNAMIC_TOPIC)
    assert described(scene, BROKER, ALL) == {}


def test_throttles_that_tools_set_for_a_reassignment_are_kept_without_a_meaning(scene: Scene) -> None:
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    assert changed(scene, BROKER, OWN, *((rate, DELETE, None) for rate in rates)) == (0, None)
    assert changed(scene, BROKER, OWN, *((rate, SET, "1000") for rate in rates)) == (0, None)
    assert [value(scene, BROKER, OWN, rate) for rate in rates] == [("1000", DYNAMIC_BROKER)] * 2
