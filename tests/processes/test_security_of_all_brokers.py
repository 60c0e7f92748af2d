"""Users, rights and quotas that are changed by one broker and count at the other, for connected clients too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from korvet.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from tests.handlers.quotas import set_quotas
from tests.support import redis_servers
from tests.support.batches import batch
from tests.support.broker import Broker, korvet_cluster
from tests.support.processes import wait_until
from tests.support.sasl_client import SaslClient, delete_password, set_password
from tests.support.topic_client import Client, produce_request

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:0",
    "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,ADMIN:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "connection.failed.authentication.delay.ms": "1",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # who comes by ADMIN
}
PASSWORD, NEXT_PASSWORD = "secret-of-this-test", "next-secret-of-this-test"


class Cluster(NamedTuple):
    """An administrator at one broker, and the other broker."""

    admin: Client
    other: Broker

    def connect(self, user: str) -> SaslClient:
        """Log in to the other broker."""
        return SaslClient(self.other.at("SASL_PLAINTEXT")).authenticated(user, PASSWORD)

    def logs_in(self, user: str, password: str) -> bool:
        """Whether the other broker lets a user in by that password."""
        with SaslClient(self.other.at("SASL_PLAINTEXT")) as client:
            answer: Any = client.log_in(user, password)
            return bool(answer.error_code == ErrorCode.NONE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the brokers, of a topic `orders`."""
    flags = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    directory = tmp_path_factory.mktemp("cluster")
    with (
        redis_servers.server() as url,
        korvet_cluster(directory, url, *flags, listen=()) as (one, other),
        Client(one.at("ADMIN")) as admin,
    ):
        admin.create("orders")
        yield Cluster(admin, other)


@pytest.fixture
def user(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Give a user of the test's own."""
    name = str(request.node.name)
    set_password(cluster.admin, name, PASSWORD)
    wait_until(lambda: cluster.logs_in(name, PASSWORD), "the other broker knows the user")
    return name


def produced(client: Client, size: int = 1) -> tuple[int, bool]:
    """Return the error code, and whether the client is throttled."""
    response: Any = client.call(produce_request("orders", batch(b"x" * size)), 8)
    [[partition]] = [each.partition_responses for each in response.responses]
    return partition.error_code, response.throttle_time_ms > 0


def allow(admin: Client, user: str) -> None:
    allowed = AclCreation(
        resource_type=AclResourceType.TOPIC,
        resource_name="orders",
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=AclOperation.WRITE,
        permission_type=AclPermissionType.ALLOW,
    )
    assert admin.call(CreateAclsRequest(creations=[allowed]), 3).results[0].error_code == 0


def allow_no_more(admin: Client, user: str) -> None:
    of_user = DeleteAclsFilter(
        resource_type_filter=AclResourceType.TOPIC,
        resource_name_filter="orders",
        pattern_type_filter=PatternType.LITERAL,
        principal_filter=f"User:{user}",
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=AclPermissionType.ANY,
    )
    [result] = admin.call(DeleteAclsRequest(filters=[of_user]), 3).filter_results
    assert len(result.matching_acls) == 1


def test_a_right_counts_for_a_client_that_is_connected_to_the_other_broker(
    cluster: Cluster, user: str
) -> None:
    denied, done = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
    with cluster.connect(user) as client:
        assert produced(client) == (denied, False)
        for _ in range(3):
            allow(cluster.admin, user)
            wait_until(lambda: produced(client)[0] == done, "the user may write")
            allow_no_more(cluster.admin, user)
            wait_until(lambda: produced(client)[0] == denied, "the user may write no more")


def test_a_password_counts_at_the_other_broker(cluster: Cluster, user: str) -> None:
    set_password(cluster.admin, user, NEXT_PASSWORD)
    wait_until(lambda: cluster.logs_in(user, NEXT_PASSWORD), "the password is the next one")
    assert not cluster.logs_in(user, PASSWORD)
    delete_password(cluster.admin, user)
    wait_until(lambda: not cluster.logs_in(user, NEXT_PASSWORD), "there is no such user any more")


def test_a_quota_counts_for_a_client_that_is_connected_to_the_other_broker(
    cluster: Cluster, user: str
) -> None:
    allow(cluster.admin, user)
    entity = (("user", user),)
    with cluster.connect(user) as client:
        wait_until(lambda: produced(client) == (ErrorCode.NONE, False), "the user may write")
        set_quotas(cluster.admin, entity, producer_byte_rate=100)
        wait_until(lambda: produced(client, 2000) == (ErrorCode.NONE, True), "the user is throttled")
    set_quotas(cluster.admin, entity, producer_byte_rate=None)

    def is_free() -> bool:
        with cluster.connect(user) as again:  # the connection of before is muted
            return produced(again, 2000) == (ErrorCode.NONE, False)

    wait_until(is_free, "the user is throttled no more")
