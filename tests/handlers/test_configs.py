"""Configs of topics, brokers and groups: what is described, what a change does, and why one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.config.broker_configs import BROKER_CONFIGS, DYNAMIC_CONFIGS, ONLY_IF_SET
from korvet.config.group_configs import GROUP_CONFIGS
from korvet.config.settings import SETTINGS
from korvet.config.topic_configs import TOPIC_CONFIGS
from korvet.errors import ErrorCode
from korvet.handlers.describe_configs import REPEATS_MAX
from korvet.protocol.types import ConfigOperation, ConfigType, ResourceType
from tests.handlers import apis
from tests.handlers.rows.configs import altered
from tests.handlers.scene import Scene

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP
LOGGER = ResourceType.BROKER_LOGGER
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, GROUP_CONFIG = 1, 2, 3, 4, 5, 8
"""Where a value comes from, as in the protocol."""
OWN, ALL = "0", ""
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
NO_CONFIG, INVALID = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Create the topic `orders`, on which `segment.ms` is set."""
    scene.create("orders", segment_ms="9", offset_sequence_bits="10")
    return scene


def described(scene: Scene, kind: int = TOPIC, name: str = "orders", **fields: Any) -> dict[str, Any]:
    keys = fields.pop("keys", None)
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    [result] = scene.do(apis.DescribeConfigs, resources=[resource], include_synonyms=True, **fields).results
    return {config.name: config for config in result.configs}


def value(scene: Scene, kind: int, name: str, key: str) -> tuple[str | None, int]:
    """Return the value of a config, and where it comes from."""
    result = described(scene, kind, name)[key]
    return result.value, result.config_source


def changed(scene: Scene, kind: int, name: str, *changes: tuple[str, int, str | None], **fields: Any) -> Any:
    """Change configs; returns error and message."""
    configs = [{"name": key, "config_operation": how, "value": given} for key, how, given in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [answer] = scene.ask(apis.IncrementalAlterConfigs, resources=[resource], **fields).responses
    return answer.error_code, answer.error_message


def replaced(scene: Scene, kind: int, name: str, given: dict[str, str | None], **fields: Any) -> int:
    """Set all configs of a resource; returns the error."""
    configs = [{"name": key, "value": text} for key, text in given.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [answer] = scene.ask(apis.AlterConfigs, resources=[resource], **fields).responses
    code: int = answer.error_code
    return code


def chain(config: Any) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def test_a_topic_has_all_configs_and_their_kafka_types(scene: Scene) -> None:
    result = described(scene, include_documentation=True)
    assert list(result) == list(TOPIC_CONFIGS)
    assert all(config.documentation for config in result.values())
    assert not any(config.is_sensitive for config in result.values())
    fixed = {"offset.encoding", "offset.sequence.bits", "redis.placement", "storage.format"}
    assert {name for name, config in result.items() if config.read_only} == fixed
    types = {
        "cleanup.policy": ConfigType.LIST,
        "compression.type": ConfigType.STRING,
        "max.message.bytes": ConfigType.INT,
        "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
        "preallocate": ConfigType.BOOLEAN,
        "retention.ms": ConfigType.LONG,
    }
    assert {name: result[name].config_type for name in types} == types
    assert described(scene, keys=[]).keys() == result.keys()
    assert list(described(scene, keys=["segment.ms", "nonsense"])) == ["segment.ms"]


def test_synonyms_are_the_places_that_a_value_may_come_from(scene: Scene) -> None:
    scene.create("other", delete_retention_ms="5", segment_bytes="2000000", retention_ms="6")
    result = described(scene, name="other")
    assert chain(result["delete.retention.ms"]) == [
        ("delete.retention.ms", "5", DYNAMIC_TOPIC),
        ("log.cleaner.delete.retention.ms", "86400000", DEFAULT),
    ]
    assert chain(result["segment.bytes"]) == [
        ("segment.bytes", "2000000", DYNAMIC_TOPIC),
        ("log.segment.bytes", "1073741824", DEFAULT),
    ]
    assert chain(result["retention.ms"]) == [("retention.ms", "6", DYNAMIC_TOPIC)]
    alone = {name for name, config in result.items() if not config.synonyms}
    encoded = {"offset.encoding"}  # dense in format batch, whatever the broker's default is
    flags = {"remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable"}
    throttled = {f"{role}.replication.throttled.replicas" for role in ("leader", "follower")}
    assert alone == {
        "flush.ms",
        "segment.jitter.ms",
        "segment.ms",
        "lake.partitioning",
        *encoded,
        *flags,
        *throttled,
    }
    groups = described(scene, GROUP, "billing")
    assert groups.keys() == GROUP_CONFIGS.keys()
    assert chain(groups["consumer.session.timeout.ms"]) == [("consumer.session.timeout.ms", "45000", DEFAULT)]
    assert chain(groups["share.auto.offset.reset"]) == [("share.auto.offset.reset", "latest", DEFAULT)]


def test_a_broker_describes_all_its_settings_but_no_secret(scene: Scene) -> None:
    result = described(scene, BROKER, OWN, include_documentation=True)
    fixed = BROKER_CONFIGS.keys() - DYNAMIC_CONFIGS.keys()
    assert {name for name, config in result.items() if config.read_only} == fixed
    assert all(config.documentation for config in result.values())
    assert chain(result["group.initial.rebalance.delay.ms"]) == [
        ("group.initial.rebalance.delay.ms", "0", STATIC),
        ("group.initial.rebalance.delay.ms", "3000", DEFAULT),
    ]
    for name in ("listeners", "advertised.listeners"):
        assert (result[name].value, result[name].config_source) == ("PLAINTEXT://127.0.0.1:9092", STATIC)
    secret = {name for name, definition in SETTINGS.items() if definition.secret}
    assert {name for name, config in result.items() if config.is_sensitive} == secret
    assert {name for name, config in result.items() if config.value is None} == secret
    assert [synonym.value for synonym in result["redis.url"].synonyms] == [None, None]
    assert described(scene, BROKER, ALL) == {}


def test_a_resource_is_answered_a_limited_number_of_times(scene: Scene) -> None:
    resource = {"resource_type": BROKER, "resource_name": OWN, "configuration_keys": ["num.partitions"]}
    results = scene.ask(apis.DescribeConfigs, resources=[resource] * (REPEATS_MAX + 2)).results
    assert [result.error_code for result in results] == [ErrorCode.NONE] * REPEATS_MAX + [INVALID] * 2
    assert f"more than {REPEATS_MAX} times" in results[-1].error_message


def test_a_brokers_own_setting_lies_over_that_of_all_and_that_over_its_start(scene: Scene) -> None:
    for name, text in ((ALL, "300"), (OWN, "200")):
        assert changed(scene, BROKER, name, ("log.roll.ms", SET, text)) == (0, None)
    assert changed(scene, TOPIC, "orders", ("segment.ms", DELETE, None)) == (0, None)
    assert chain(described(scene, BROKER, OWN)["log.roll.ms"]) == [
        ("log.roll.ms", "200", DYNAMIC_BROKER),
        ("log.roll.ms", "300", DYNAMIC_DEFAULT),
        ("log.roll.hours", "168", DEFAULT),
    ]
    assert chain(described(scene, BROKER, ALL)["log.roll.ms"]) == [("log.roll.ms", "300", DYNAMIC_DEFAULT)]
    assert value(scene, TOPIC, "orders", "segment.ms") == ("200", DYNAMIC_BROKER)
    for name in (OWN, ALL):
        assert changed(scene, BROKER, name, ("log.roll.ms", DELETE, None)) == (0, None)
    assert value(scene, TOPIC, "orders", "segment.ms")[1] == DEFAULT


def test_a_group_has_configs_until_they_are_deleted(scene: Scene) -> None:
    name, key = "group {of} orders", "consumer.session.timeout.ms"

    def listed() -> list[str]:
        answer = scene.do(apis.ListConfigResources, resource_types=[GROUP])
        return [resource.resource_name for resource in answer.config_resources]

    assert changed(scene, GROUP, "billing") == (0, None)
    assert changed(scene, GROUP, name, (key, SET, "50000")) == (0, None)
    assert value(scene, GROUP, name, key) == ("50000", GROUP_CONFIG)
    assert value(scene, GROUP, "another", key) == ("45000", DEFAULT)
    assert listed() == [name]
    assert changed(scene, GROUP, name, (key, DELETE, None)) == (0, None)
    assert (value(scene, GROUP, name, key), listed()) == (("45000", DEFAULT), [])


def test_loggers_have_the_levels_that_the_settings_of_the_broker_give_them(scene: Scene) -> None:
    assert changed(scene, BROKER, ALL, ("log.levels", SET, "korvet.log=error")) == (0, None)
    assert changed(scene, LOGGER, OWN, ("korvet.groups", SET, "TRACE"), ("root", SET, "WARN")) == (0, None)
    levels = {name: item.value for name, item in described(scene, LOGGER, OWN).items()}
    shown = [levels[name] for name in ("root", "korvet.groups.membership", "korvet.log")]
    assert shown == ["WARN", "DEBUG", "ERROR"]
    own = "korvet.log=error,korvet.groups=debug"
    assert value(scene, BROKER, OWN, "log.levels") == (own, DYNAMIC_BROKER)
    assert value(scene, BROKER, OWN, "log.level") == ("warning", DYNAMIC_BROKER)
    assert changed(scene, LOGGER, OWN, ("korvet.groups", DELETE, None)) == (0, None)
    assert value(scene, BROKER, OWN, "log.levels") == ("korvet.log=error", DYNAMIC_DEFAULT)


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
    assert DYNAMIC_CONFIGS.keys() - before.keys() == ONLY_IF_SET
    dynamic = {name: before.get(name, "1000") for name in DYNAMIC_CONFIGS}
    for name in (ALL, OWN):
        assert changed(scene, BROKER, name, *((key, SET, text) for key, text in dynamic.items())) == (0, None)
    after = described(scene, BROKER, OWN)
    assert {name: config.value for name, config in after.items()} == before | dynamic
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
    assert own == {"retention.bytes"}
    every = {name: config.value for name, config in described(scene).items()}
    assert replaced(scene, TOPIC, "orders", every) == 0
    assert {name: config.value for name, config in described(scene).items()} == every
    changes = (("log.roll.ms", SET, "5"), ("log.retention.bytes", SET, "6"))
    assert changed(scene, BROKER, OWN, *changes) == (0, None)
    assert replaced(scene, BROKER, OWN, {"log.roll.ms": "7"}) == 0
    assert value(scene, BROKER, OWN, "log.roll.ms") == ("7", DYNAMIC_BROKER)
    assert value(scene, BROKER, OWN, "log.retention.bytes")[1] == DEFAULT
    refused: list[tuple[dict[str, str | None], int]]
    refused = [({"retention.ms": None}, INVALID), ({"storage.format": "record"}, NO_CONFIG)]
    for given, code in refused:
        assert replaced(scene, TOPIC, "orders", given) == code
        assert value(scene, TOPIC, "orders", "retention.bytes") == ("5000", DYNAMIC_TOPIC)


def test_the_layout_of_a_topic_is_set_on_it_only_if_a_client_named_it(scene: Scene) -> None:
    def own(name: str) -> dict[str, str | None]:
        configs = described(scene, name=name).values()
        return {config.name: config.value for config in configs if config.config_source == DYNAMIC_TOPIC}

    scene.create("plain")
    scene.create("named", storage_format="record")
    assert (own("plain"), own("named")) == ({}, {"storage.format": "record"})
    assert own("orders") == {"segment.ms": "9", "offset.sequence.bits": "10"}
    assert changed(scene, TOPIC, "named", ("storage.format", DELETE, None))[0] == NO_CONFIG, "it would change"
    assert changed(scene, TOPIC, "orders", ("offset.sequence.bits", DELETE, None)) == (0, None)
    assert own("orders") == {"segment.ms": "9"}
    assert changed(scene, TOPIC, "plain", ("storage.format", SET, "batch")) == (0, None), "it is that"
    assert own("plain") == {"storage.format": "batch"}
    assert changed(scene, BROKER, ALL, ("offset.sequence.bits", SET, "9")) == (0, None)
    assert value(scene, TOPIC, "orders", "offset.sequence.bits") == ("10", DEFAULT)


def test_a_change_is_made_whole_or_not_at_all(scene: Scene) -> None:
    long, once = ("retention.ms", SET, "long"), ("retention.ms", SET, "1")
    assert changed(scene, TOPIC, "orders", ("segment.ms", SET, "77"), long)[0] == NO_CONFIG
    code, message = changed(scene, TOPIC, "orders", ("segment.ms", SET, "77"), once, once)
    assert (code, message) == (INVALID, "Named more than once: retention.ms")
    assert value(scene, TOPIC, "orders", "segment.ms") == ("9", DYNAMIC_TOPIC)


def test_a_refusal_keeps_no_other_resource_from_its_change(scene: Scene) -> None:
    resources = [*altered(BROKER, ALL, "no.such")["resources"], *altered(key="segment.ms")["resources"]]
    bad, good = scene.ask(apis.IncrementalAlterConfigs, resources=resources).responses
    assert (bad.error_code, good.error_code) == (INVALID, 0)
    assert value(scene, TOPIC, "orders", "segment.ms") == ("60000", DYNAMIC_TOPIC)
    assert described(scene, BROKER, ALL) == {}
