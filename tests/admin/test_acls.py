"""ACLs by the admin client, from a broker with an authorizer and from one without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.admin.acls import AclBinding, AclBindingFilter
from korvet.admin.client import AdminClient
from korvet.admin.errors import BrokerError
from korvet.admin.types import settled
from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from tests.support.in_process import broker_in_process

READ_ORDERS = AclBinding(
    AclResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
ORDERS = AclBindingFilter(resource_name="orders")


@pytest.fixture
def guarded(redis_server: str) -> Iterator[AdminClient]:
    """Give a client of a broker with an authorizer, where it is a super user."""
    settings = {
        "namespace": "guarded",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with broker_in_process(redis_server, settings) as broker, AdminClient(broker.bootstrap) as client:
        yield client


def test_acls_are_created_listed_and_deleted(guarded: AdminClient) -> None:
    wrong = READ_ORDERS._replace(principal="alice")
    outcomes = guarded.acls.create([READ_ORDERS, wrong])
    assert outcomes[READ_ORDERS] is None
    error = outcomes[wrong]
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert guarded.acls.describe() == [READ_ORDERS]
    assert guarded.acls.describe(ORDERS) == [READ_ORDERS]
    assert guarded.acls.describe(AclBindingFilter(resource_name="others")) == []
    assert settled(guarded.acls.delete([ORDERS])) == {ORDERS: [READ_ORDERS]}
    assert settled(guarded.acls.delete([ORDERS])) == {ORDERS: []}


def test_without_an_authorizer_there_are_no_acls(admin: AdminClient) -> None:
    with pytest.raises(BrokerError, match="SECURITY_DISABLED"):
        admin.acls.describe()
    outcome = admin.acls.create([READ_ORDERS])[READ_ORDERS]
    assert isinstance(outcome, BrokerError)
    assert outcome.code is ErrorCode.SECURITY_DISABLED
