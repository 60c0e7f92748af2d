"""Configs with real administrators: confluent-kafka and kafka-python describe and alter topics and brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package does not say what it exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType as PythonType
from kafka.errors import InvalidConfigurationError, InvalidRequestError, UnknownTopicOrPartitionError

from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until

OWN = "0"
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    """Give a topic, named after the test."""
    name = str(request.node.name)[:100].replace("[", "-").replace("]", "")
    reading.create_topic(broker.bootstrap, name, 1)
    return name


@pytest.fixture
def confluent(broker: Broker) -> AdminClient:
    """Give confluent-kafka's administrator."""
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python(broker: Broker) -> Iterator[Any]:
    """Give kafka-python's administrator."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, Any]:
    """Return all configs of a resource as confluent-kafka returns them; their sources are plain numbers."""
    [future] = admin.describe_configs([ConfigResource(kind, name)]).values()
    found: dict[str, Any] = future.result(WAIT_SECONDS_MAX)
    return found


Operations = Mapping[str, tuple[AlterConfigOpType, str | None]]


def altered(
    admin: AdminClient, kind: ResourceType, name: str, operations: Operations, **options: Any
) -> ConfluentError | None:
    """Alter one resource with confluent-kafka; returns the error, if there is one."""
    entries = [
        ConfigEntry(key, value, incremental_operation=operation)
        for key, (operation, value) in operations.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    [future] = admin.incremental_alter_configs([resource], **options).values()
    try:
        future.result(WAIT_SECONDS_MAX)
    except KafkaException as raised:
        error: ConfluentError = raised.args[0]
        return error
    return None


def replaced(
    admin: AdminClient, kind: ResourceType, name: str, configs: Mapping[str, str]
) -> ConfluentError | None:
    """Replace all configs of one resource with confluent-kafka's old call; returns the error, if there is one."""
    with pytest.deprecated_call():
        [future] = admin.alter_configs([ConfigResource(kind, name, set_config=dict(configs))]).values()
    try:
        future.result(WAIT_SECONDS_MAX)
    except KafkaException as raised:
        error: ConfluentError = raised.args[0]
        return error
    return None


def size_error(broker: Broker, topic: str, size: int) -> str | None:
    """Produce a record of that size with confluent-kafka; returns the name of the error, if there is one."""
    errors: list[ConfluentError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v" * size, on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    [error] = errors
    return None if error is None else str(error.name())


def test_confluent_alters_a_topic_and_producers_feel_it(
    broker: Broker, confluent: AdminClient, topic: str
) -> None:
    assert size_error(broker, topic, 500) is None
    operations = {"max.message.bytes": (SET, "400"), "cleanup.policy": (APPEND, "compact")}
    assert altered(confluent, TOPIC, topic, operations) is None
    found = described(confluent, TOPIC, topic)
    assert (found["max.message.bytes"].value, found["cleanup.policy"].value) == ("400", "delete,compact")
    assert found["max.message.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert [each.value for each in found["max.message.bytes"].synonyms.values()] == ["400", "1048588"]
    assert found["storage.format"].is_read_only
    operations = {"cleanup.policy": (SUBTRACT, "compact"), "max.message.bytes": (SET, "400")}
    assert altered(confluent, TOPIC, topic, operations) is None
    # librdkafka may have asked any worker: each of them knows the limit within milliseconds.
    wait_until(lambda: size_error(broker, topic, 500) == "MSG_SIZE_TOO_LARGE", "producers are refused")
    assert altered(confluent, TOPIC, topic, {"max.message.bytes": (DELETE, None)}) is None
    wait_until(lambda: size_error(broker, topic, 500) is None, "producers are served")


def test_confluent_alters_a_broker(confluent: AdminClient, topic: str) -> None:
    try:
        assert altered(confluent, BROKER, OWN, {"log.roll.ms": (SET, "200")}) is None
        wait_until(
            lambda: described(confluent, TOPIC, topic)["segment.ms"].value == "200", "every worker knows it"
        )
        entry = described(confluent, BROKER, OWN)["log.roll.ms"]
        assert (entry.value, entry.source) == ("200", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    finally:
        assert altered(confluent, BROKER, OWN, {"log.roll.ms": (DELETE, None)}) is None
    wait_until(lambda: described(confluent, BROKER, OWN)["log.roll.ms"].is_default, "it is as before")
    url = described(confluent, BROKER, OWN)["redis.url"]
    assert (url.is_sensitive, url.value) == (True, None)


def test_confluent_replaces_configs_of_a_topic_with_the_old_call(confluent: AdminClient, topic: str) -> None:
    assert replaced(confluent, TOPIC, topic, {"segment.ms": "5", "retention.bytes": "6"}) is None
    assert replaced(confluent, TOPIC, topic, {"retention.bytes": "7"}) is None
    wait_until(
        lambda: described(confluent, TOPIC, topic)["retention.bytes"].value == "7", "every worker knows it"
    )
    assert described(confluent, TOPIC, topic)["segment.ms"].is_default
    error = replaced(confluent, TOPIC, topic, {"segment.ms": "x"})
    assert error is not None
    assert error.code() == ConfluentError.INVALID_CONFIG


@pytest.mark.parametrize(
    ("resource", "operations", "code"),
    [
        ((TOPIC, "no-such-topic"), {"segment.ms": (SET, "1")}, ConfluentError.UNKNOWN_TOPIC_OR_PART),
        ((TOPIC, ""), {"no.such": (SET, "1")}, ConfluentError.INVALID_CONFIG),
        ((TOPIC, ""), {"segment.ms": (SET, "x")}, ConfluentError.INVALID_CONFIG),
        ((TOPIC, ""), {"segment.ms": (APPEND, "1")}, ConfluentError.INVALID_CONFIG),
        ((TOPIC, ""), {"storage.format": (SET, "batch")}, ConfluentError.INVALID_CONFIG),
        ((TOPIC, ""), {"remote.storage.enable": (SET, "true")}, ConfluentError.INVALID_CONFIG),
        ((BROKER, OWN), {"no.such": (SET, "1")}, ConfluentError.INVALID_CONFIG),
        ((BROKER, OWN), {"num.partitions": (SET, "1")}, ConfluentError.INVALID_REQUEST),
        ((BROKER, OWN), {"log.roll.ms": (SET, "x")}, ConfluentError.INVALID_REQUEST),
        ((ResourceType.GROUP, "billing"), {"a": (SET, "1")}, ConfluentError.INVALID_CONFIG),
    ],
)
def test_confluent_gets_the_reason_of_each_refusal(
    confluent: AdminClient, topic: str, resource: tuple[ResourceType, str], operations: Operations, code: int
) -> None:
    kind, name = resource
    name = name or topic
    for validate_only in (True, False):
        error = altered(confluent, kind, name, operations, validate_only=validate_only)
        assert error is not None
        assert error.code() == code
        assert error.str()
    assert described(confluent, TOPIC, topic)["segment.ms"].is_default


def test_confluent_gets_an_error_for_a_topic_that_does_not_exist(confluent: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        described(confluent, TOPIC, "no-such-topic")
    assert refused.value.args[0].code() == ConfluentError.UNKNOWN_TOPIC_OR_PART


def python_configs(admin: Any, kind: PythonType, name: str, **options: Any) -> dict[str, Any]:
    """Return the configs of a resource as kafka-python returns them."""
    [of_kind] = admin.describe_configs([PythonResource(kind, name)], **options).values()
    found: dict[str, Any] = of_kind[name]
    return found


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_alters_and_resets_a_topic(python: Any, topic: str, incremental: bool) -> None:  # noqa: FBT001 - pytest gives it
    for configs in ({"segment.ms": "5", "retention.bytes": "6"}, {"retention.bytes": "7"}):
        resource = PythonResource(PythonType.TOPIC, topic, configs)
        python.alter_configs([resource], incremental=incremental)
        key = "retention.bytes"
        wait_until(
            lambda: python_configs(python, PythonType.TOPIC, topic)[key]["value"] == configs[key],  # noqa: B023 - called before the next round
            "every worker knows it",
        )
    # The client returns what it has read, since it must name all configs.
    assert python_configs(python, PythonType.TOPIC, topic)["segment.ms"]["value"] == "5"
    python.reset_configs([PythonResource(PythonType.TOPIC, topic, ["segment.ms"])], incremental=incremental)
    wait_until(
        lambda: "segment.ms" not in python_configs(python, PythonType.TOPIC, topic), "every worker knows it"
    )
    assert python_configs(python, PythonType.TOPIC, topic)["retention.bytes"]["value"] == "7"


def test_kafka_python_alters_a_broker(python: Any) -> None:
    resource = PythonResource(PythonType.BROKER, OWN, {"log.roll.ms": "200"})
    try:
        python.alter_configs([resource])
        wait_until(
            lambda: python_configs(python, PythonType.BROKER, OWN)["log.roll.ms"]["value"] == "200",
            "every worker knows it",
        )
    finally:
        python.reset_configs([PythonResource(PythonType.BROKER, OWN, ["log.roll.ms"])])
    wait_until(lambda: "log.roll.ms" not in python_configs(python, PythonType.BROKER, OWN), "it is as before")


def test_kafka_python_gets_the_reason_of_each_refusal(python: Any, topic: str) -> None:
    def refusal(kind: PythonType, name: str, configs: dict[str, str]) -> Any:
        resource = PythonResource(kind, name, configs)
        [of_kind] = python.alter_configs([resource], raise_on_unknown=False).values()
        return of_kind[name]

    assert InvalidConfigurationError.__name__ in str(refusal(PythonType.TOPIC, topic, {"no.such": "1"}))
    assert InvalidRequestError.__name__ in str(refusal(PythonType.BROKER, OWN, {"num.partitions": "1"}))
    missing = refusal(PythonType.TOPIC, "no-such-topic", {"segment.ms": "1"})
    assert UnknownTopicOrPartitionError.__name__ in str(missing)


def test_kafka_python_lists_what_has_configs(python: Any, topic: str) -> None:
    listed = python.list_config_resources()
    assert listed["broker"] == [OWN]
    assert topic in listed["topic"]
    assert python.list_config_resources(["BROKER"]) == {"broker": [OWN]}
