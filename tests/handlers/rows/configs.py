"""Rows of DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from typing import Any

from korvet import __version__
from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, ConfigOperation, ConfigType, ResourceType
from tests.handlers import apis
from tests.handlers.scene import CLUSTER, GROUP, TOPIC, Scene
from tests.handlers.table import Fields, Row, Rows, Where, said

DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
UNKNOWN, NO_NAME, INVALID, NO_CONFIG = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_CONFIG,
)
DYNAMIC_TOPIC, DEFAULT = 1, 5
"""Where a value comes from, as in the protocol."""
RESOURCES = {
    TOPIC: (ResourceType.TOPIC, "orders", "retention.ms"),
    GROUP: (ResourceType.GROUP, "billing", "consumer.session.timeout.ms"),
    CLUSTER: (ResourceType.BROKER, "0", "log.retention.ms"),
}
"""A resource of each kind, and a config of it."""
ALTERED, DESCRIBED = "responses.error_code", "results.error_code"


def described(kind: int = ResourceType.TOPIC, name: str = "orders", *keys: str, **fields: Any) -> Fields:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    return {"resources": [resource]} | fields


def altered(
    kind: int = ResourceType.TOPIC,
    name: str = "orders",
    key: str = "retention.ms",
    value: str | None = "60000",
    operation: int = ConfigOperation.SET,
    **fields: Any,
) -> Fields:
    config = {"name": key, "value": value, "config_operation": operation}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    return {"resources": [resource]} | fields


def without_operations(request: Fields) -> Fields:
    """Return a change as AlterConfigs has it."""
    return request | {
        "resources": [
            resource
            | {"configs": [{"name": one["name"], "value": one["value"]} for one in resource["configs"]]}
            for resource in request["resources"]
        ]
    }


def of_broker(name: str, key: str, value: str | None, operation: int = ConfigOperation.SET) -> Fields:
    return altered(ResourceType.BROKER, name, key, value, operation)


def logger(name: str, level: str | None, operation: int = ConfigOperation.SET, broker: str = "0") -> Fields:
    return altered(ResourceType.BROKER_LOGGER, broker, name, level, operation)


def cannot_be_altered(code: ErrorCode, request: Fields, text: str) -> Row:
    return Row(request, {"responses.error_message": said(text)}, code, ALTERED)


def has_retention(scene: Scene) -> None:
    scene.do(apis.IncrementalAlterConfigs, **altered(value="5"))


TOO_FEW, TOO_MANY = "must be greater than or equal to ", "must be less than or equal to "
NOT_OF_GROUPS = (
    ("classic.session.timeout.ms", "50000", "Unknown group config name"),
    ("streams.num.standby.replicas", "3", TOO_MANY + "group.streams.max.standby"),
    ("streams.num.standby.replicas", "-1", "streams.num.standby.replicas"),
    ("share.session.timeout.ms", "44999", TOO_FEW + "group.share.min.session"),
    ("consumer.session.timeout.ms", "60001", TOO_MANY + "group.consumer.max.session"),
    ("consumer.heartbeat.interval.ms", "4999", TOO_FEW + "group.consumer.min."),
    ("consumer.heartbeat.interval.ms", "soon", "Invalid value 'soon'"),
    ("share.record.lock.duration.ms", "60001", TOO_MANY + "group.share.max.record"),
    ("share.auto.offset.reset", "by_duration:-PT1S", "latest, earliest, or by_duration"),
    ("share.isolation.level", "serializable", "read_committed, read_uncommitted"),
)
CANNOT_BE_ALTERED = (
    (UNKNOWN, altered(name="missing"), "not host"),
    (NO_NAME, altered(name="a/b"), "other than ASCII"),
    (INVALID, altered(name=""), "Default topic resources"),
    (NO_CONFIG, altered(key="no.such.config"), "Unknown topic config name: no.such.config"),
    (NO_CONFIG, altered(key="redis.slot.tags", value="0aB"), "Unknown topic config name"),
    (NO_CONFIG, altered(value="soon"), "Invalid value 'soon' for configuration retention.ms"),
    (NO_CONFIG, altered(value="-2"), "retention.ms: it must be a whole number from -1"),
    (INVALID, altered(value=None), "Null value not supported for"),
    (NO_CONFIG, altered(key="storage.format", value="record"), "fixed when a topic is created"),
    (INVALID, of_broker("77", "log.roll.ms", "1"), "received 77"),
    (INVALID, of_broker("0", "no.such", "1"), "Unknown broker config name: no.such"),
    (INVALID, of_broker("0", "redis.url", "redis://x"), "dynamically: redis.url"),
    (INVALID, of_broker("", "inter.broker.protocol.version", "3.9"), "dynamically: inter.broker"),
    (INVALID, of_broker("", "log.retention.ms", "0"), "negative, which is without limit, or 1 at"),
    (INVALID, of_broker("0", "log.retention.ms", ""), "a whole number from -"),
    (INVALID, of_broker("0", "compression.type", "best"), "one of producer, uncompressed"),
    (INVALID, of_broker("", "log.roll.ms", None), "Null value"),
    (INVALID, of_broker("", "memory.throttle.percent", "99"), "99 is more than memory.refuse.percent = 95"),
    (INVALID, of_broker("0", "leader.replication.throttled.rate", "-1"), "throttled.rate"),
    (INVALID, altered(ResourceType.CLIENT_METRICS, "all", "metrics", "*"), "not supported"),
    (INVALID, altered(ResourceType.GROUP, "", "a", "1"), "must not be empty"),
    *(
        (NO_CONFIG, altered(ResourceType.GROUP, "billing", key, value), text)
        for key, value, text in NOT_OF_GROUPS
    ),
    (INVALID, altered(99), "Unknown resource type 99"),
)
NO_OPERATIONS = (
    (INVALID, logger("root", "DEBUG", broker="7"), "received 7"),
    (NO_CONFIG, logger("no.such", "INFO"), "Logger no.such does not exist!"),
    (NO_CONFIG, logger("no.such", None, ConfigOperation.DELETE), "Logger no.such does not exist!"),
    (NO_CONFIG, logger("root", "debug"), "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"),
    (INVALID, logger("root", None, ConfigOperation.DELETE), "Removing the log level of the root logger"),
    (INVALID, logger("root", "INFO", ConfigOperation.APPEND), "APPEND operation is not allowed"),
    (INVALID, altered(operation=4), "Unknown operation type 4"),
    (NO_CONFIG, altered(value="1", operation=ConfigOperation.APPEND), "Can't APPEND to key retention.ms"),
    (NO_CONFIG, altered(key="cleanup.policy", operation=ConfigOperation.APPEND), "a list of compact, delete"),
    (NO_CONFIG, of_broker("0", "log.roll.ms", "1", ConfigOperation.APPEND), "type is not LIST"),
)
ALTERATIONS = tuple(
    Row(
        altered(kind, name, key),
        {"responses": {"resource_type": kind, "resource_name": name}},
        rights=[(ALTER_CONFIGS, resource)],
    )
    for resource, (kind, name, key) in RESOURCES.items()
)

CONFIG_ROWS: Rows = {
    apis.DescribeConfigs: (
        Row(
            described(ResourceType.TOPIC, "orders", "retention.ms", "nonsense", include_synonyms=True),
            {
                "results": {
                    "error_message": None,
                    "resource_type": ResourceType.TOPIC,
                    "resource_name": "orders",
                    "configs": {
                        "name": "retention.ms",
                        "value": "5",
                        "read_only": False,
                        "config_source": DYNAMIC_TOPIC,
                        "is_sensitive": False,
                        "synonyms": {"name": "retention.ms", "value": "5", "source": DYNAMIC_TOPIC},
                        "config_type": ConfigType.LONG,
                        "documentation": None,
                    },
                }
            },
            before=has_retention,
        ),
        *(
            Row(
                described(ResourceType.BROKER, "0", name),
                {"results.configs": {"value": value, "read_only": True, "config_source": DEFAULT}},
            )
            for name, value in (
                ("inter.broker.protocol.version", "4.2-IV1"),
                ("korvet.version", __version__),
                ("korvet.format", "2"),
            )
        ),
        *(
            Row(
                described(kind, name, key, include_documentation=True),
                {"results.configs": {"name": key, "synonyms": [], "documentation": Where(bool)}},
                rights=[(DESCRIBE_CONFIGS, resource)],
            )
            for resource, (kind, name, key) in RESOURCES.items()
        ),
        *(
            Row(request, {"results": {"error_message": Where(bool), "configs": []}}, code, DESCRIBED)
            for code, request in (
                (UNKNOWN, described(name="missing")),
                (NO_NAME, described(name="a/b")),
                *((INVALID, described(ResourceType.BROKER, name)) for name in ("77", "-1", "9" * 5000, "٣")),
                (INVALID, described(ResourceType.BROKER_LOGGER, "7")),
                (INVALID, described(ResourceType.GROUP, "")),
                (INVALID, described(99)),
            )
        ),
    ),
    apis.AlterConfigs: (
        *(row._replace(request=without_operations(row.request)) for row in ALTERATIONS),
        *(
            cannot_be_altered(code, without_operations(request), text)
            for code, request, text in CANNOT_BE_ALTERED
        ),
        cannot_be_altered(INVALID, without_operations(logger("root", "INFO")), "Unknown resource type 8"),
        Row({"resources": without_operations(altered())["resources"] * 2}, error=INVALID, at=ALTERED),
    ),
    apis.IncrementalAlterConfigs: (
        *ALTERATIONS,
        Row(altered(value="soon", operation=ConfigOperation.DELETE), before=has_retention),
        *(
            Row(altered(kind, name, key, None, ConfigOperation.DELETE))
            for kind, name, _key in RESOURCES.values()
            for key in ("no.such", "offset.sequence.bits", "num.partitions")
        ),
        Row(altered(key="cleanup.policy", value="compact", operation=ConfigOperation.APPEND)),
        *(cannot_be_altered(*row) for row in (*CANNOT_BE_ALTERED, *NO_OPERATIONS)),
        Row({"resources": altered()["resources"] * 2}, error=INVALID, at=ALTERED),
    ),
    apis.ListConfigResources: (
        Row(
            {},
            {
                "config_resources": [
                    {"resource_name": "orders", "resource_type": ResourceType.TOPIC},
                    {"resource_name": "0", "resource_type": ResourceType.BROKER},
                    {"resource_name": "0", "resource_type": ResourceType.BROKER_LOGGER},
                    {"resource_name": "billing", "resource_type": ResourceType.GROUP},
                ]
            },
            versions=(1, 1),
            before=lambda scene: scene.do(apis.IncrementalAlterConfigs, **altered(*RESOURCES[GROUP])),
        ),
        Row({}, {"config_resources": []}, versions=(0, 0), rights=[(DESCRIBE_CONFIGS, CLUSTER)]),
        Row(
            {"resource_types": [ResourceType.BROKER]},
            {"config_resources.resource_name": "0"},
            versions=(1, 1),
        ),
        Row(
            {"resource_types": [ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS]},
            {"config_resources": {"resource_name": "0", "resource_type": ResourceType.BROKER_LOGGER}},
            versions=(1, 1),
        ),
        Row(
            {"resource_types": [3]}, {"config_resources": []}, ErrorCode.UNSUPPORTED_VERSION, versions=(1, 1)
        ),
    ),
}
