"""Rows of DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_configs import AlterConfigsRequest
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest
from korvet.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.protocol.types import AclOperation, ConfigOperation, ConfigType, ResourceType
from tests.handlers.scene import CLUSTER, GROUP, TOPIC, Scene
from tests.handlers.table import Fields, Row, Rows, Where

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


def cannot_be_altered(code: ErrorCode, request: Fields) -> Row:
    return Row(request, {"responses": [{"error_message": Where(bool)}]}, code, ALTERED)


def has_retention(scene: Scene) -> None:
    scene.do(IncrementalAlterConfigsRequest, **altered(value="5"))


CANNOT_BE_ALTERED = (
    (UNKNOWN, altered(name="missing")),
    (NO_NAME, altered(name="a/b")),
    (INVALID, altered(name="")),
    (NO_CONFIG, altered(key="no.such.config")),
    (NO_CONFIG, altered(value="soon")),
    (NO_CONFIG, altered(key="storage.format", value="record")),
    (INVALID, altered(ResourceType.BROKER, "77", "log.roll.ms", "1")),
    (INVALID, altered(ResourceType.BROKER, "0", "redis.url", "redis://x")),
    (INVALID, altered(ResourceType.BROKER_LOGGER, "0", "root", "DEBUG")),
    (INVALID, altered(ResourceType.CLIENT_METRICS, "all", "metrics", "*")),
    (INVALID, altered(ResourceType.GROUP, "", "a", "1")),
    (NO_CONFIG, altered(ResourceType.GROUP, "billing", "consumer.session.timeout.ms", "1")),
    (INVALID, altered(99)),
)
ALTERATIONS = tuple(
    Row(
        altered(kind, name, key),
        {"responses": [{"resource_type": kind, "resource_name": name}]},
        rights=[(ALTER_CONFIGS, resource)],
    )
    for resource, (kind, name, key) in RESOURCES.items()
)

CONFIG_ROWS: Rows = {
    DescribeConfigsRequest: (
        Row(
            described(ResourceType.TOPIC, "orders", "retention.ms", "nonsense", include_synonyms=True),
            {
                "results": [
                    {
                        "error_message": None,
                        "resource_type": ResourceType.TOPIC,
                        "resource_name": "orders",
                        "configs": [
                            {
                                "name": "retention.ms",
                                "value": "5",
                                "read_only": False,
                                "config_source": DYNAMIC_TOPIC,
                                "is_sensitive": False,
                                "synonyms": [
                                    {"name": "retention.ms", "value": "5", "source": DYNAMIC_TOPIC},
                                    {"name": "log.retention.ms", "value": "604800000", "source": DEFAULT},
                                ],
                                "config_type": ConfigType.LONG,
                                "documentation": None,
                            }
                        ],
                    }
                ]
            },
            before=has_retention,
        ),
        *(
            Row(
                described(kind, name, key, include_documentation=True),
                {"results": [{"configs": [{"name": key, "synonyms": [], "documentation": Where(bool)}]}]},
                rights=[(DESCRIBE_CONFIGS, resource)],
            )
            for resource, (kind, name, key) in RESOURCES.items()
        ),
        *(
            Row(request, {"results": [{"error_message": Where(bool), "configs": []}]}, code, DESCRIBED)
            for code, request in (
                (UNKNOWN, described(name="missing")),
                (NO_NAME, described(name="a/b")),
                (INVALID, described(ResourceType.BROKER, "77")),
                (INVALID, described(ResourceType.BROKER_LOGGER, "0")),
                (INVALID, described(ResourceType.GROUP, "")),
                (INVALID, described(99)),
            )
        ),
    ),
    AlterConfigsRequest: (
        *(row._replace(request=without_operations(row.request)) for row in ALTERATIONS),
        *(cannot_be_altered(code, without_operations(request)) for code, request in CANNOT_BE_ALTERED),
        Row({"resources": without_operations(altered())["resources"] * 2}, error=INVALID, at=ALTERED),
    ),
    IncrementalAlterConfigsRequest: (
        *ALTERATIONS,
        Row(altered(value="soon", operation=ConfigOperation.DELETE), before=has_retention),
        Row(altered(key="cleanup.policy", value="compact", operation=ConfigOperation.APPEND)),
        *(cannot_be_altered(code, request) for code, request in CANNOT_BE_ALTERED),
        cannot_be_altered(INVALID, altered(operation=4)),
        cannot_be_altered(INVALID, altered(value=None)),
        cannot_be_altered(NO_CONFIG, altered(value="1", operation=ConfigOperation.APPEND)),
        Row({"resources": altered()["resources"] * 2}, error=INVALID, at=ALTERED),
    ),
    ListConfigResourcesRequest: (
        Row(
            {},
            {
                "config_resources": [
                    {"resource_name": "orders", "resource_type": ResourceType.TOPIC},
                    {"resource_name": "0", "resource_type": ResourceType.BROKER},
                    {"resource_name": "billing", "resource_type": ResourceType.GROUP},
                ]
            },
            versions=(1, 1),
            before=lambda scene: scene.do(IncrementalAlterConfigsRequest, **altered(*RESOURCES[GROUP])),
        ),
        Row({}, {"config_resources": []}, versions=(0, 0), rights=[(DESCRIBE_CONFIGS, CLUSTER)]),
        Row(
            {"resource_types": [ResourceType.BROKER]},
            {"config_resources": [{"resource_name": "0"}]},
            versions=(1, 1),
        ),
        Row(
            {"resource_types": [ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS]},
            {"config_resources": []},
            versions=(1, 1),
        ),
        Row(
            {"resource_types": [3]}, {"config_resources": []}, ErrorCode.UNSUPPORTED_VERSION, versions=(1, 1)
        ),
    ),
}
