"""ACLs by libraries: made by an administrator while others are connected, and what those may do then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.clients.librdkafka import outcome
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.sasl_broker import PASSWORD, USER, bootstrap, sasl_broker
from tests.support.topic_client import Client

NAME = "orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker where who has not logged in is a super user."""
    more = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}
    with sasl_broker(tmp_path_factory.mktemp("broker"), more=more) as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    host, port = broker.at("ADMIN")
    return AdminClient({"bootstrap.servers": f"{host}:{port}"})


def acl(kind: ResourceType, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind,
        NAME,
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "127.0.0.1",
        operation,
        AclPermissionType.ALLOW,
    )


def of_user(broker: Broker) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


def received(consumer: Consumer) -> int | None:
    """Return the error of the next poll, 0 for a record."""
    message = consumer.poll(1.0)
    if message is None:
        return None
    error = message.error()
    return 0 if error is None else error.code()


def test_rights_are_given_and_taken_while_clients_are_connected(broker: Broker, admin: AdminClient) -> None:
    with Client(broker.at("ADMIN")) as client:
        client.create(NAME)
    producer = Producer(of_user(broker) | {"topic.metadata.refresh.interval.ms": 500})
    assert outcome(producer, NAME) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    rights = [
        acl(ResourceType.TOPIC, AclOperation.WRITE),
        acl(ResourceType.TOPIC, AclOperation.READ),
        acl(ResourceType.GROUP, AclOperation.READ),
    ]
    for created in admin.create_acls(rights).values():
        created.result(WAIT_SECONDS_MAX)
    # The types of the library do not know that each field may be left open.
    anything: Any = None
    every = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert set(admin.describe_acls(every).result(WAIT_SECONDS_MAX)) == set(rights)
    wait_until(lambda: outcome(producer, NAME) == 0, "the producer is allowed to write")
    consumer = Consumer(of_user(broker) | {"group.id": NAME, "auto.offset.reset": "earliest"})
    consumer.subscribe([NAME])
    wait_until(lambda: received(consumer) == 0, "the consumer is allowed to read")
    [removed] = admin.delete_acls([every]).values()
    assert set(removed.result(WAIT_SECONDS_MAX)) == set(rights)
    # Every worker refuses, on the connections that are open, as soon as it has read the announcement.
    wait_until(
        lambda: outcome(producer, NAME) == KafkaError.TOPIC_AUTHORIZATION_FAILED, "the producer is refused"
    )
    refused = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
    wait_until(lambda: received(consumer) in refused, "the consumer is refused")
    consumer.close()
    user = AdminClient(of_user(broker))
    [created] = user.create_acls(rights[:1]).values()
    with pytest.raises(KafkaException) as raised:
        created.result(WAIT_SECONDS_MAX)
    assert raised.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    lines = [line for line in broker.log().splitlines() if "authorization denied" in line]
    assert any(f"principal=User:{USER}" in line and "api=Produce" in line for line in lines)
