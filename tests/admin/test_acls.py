"""ACLs by the admin client, from a broker without an authorizer; tests/cli/test_acls.py has one with it."""

from __future__ import annotations

import pytest

from korvet.admin.acls import AclBinding
from korvet.admin.client import AdminClient
from korvet.admin.errors import BrokerError
from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType

READ_ORDERS = AclBinding(
    AclResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def test_without_an_authorizer_there_are_no_acls(admin: AdminClient) -> None:
    with pytest.raises(BrokerError, match="SECURITY_DISABLED"):
        admin.acls.describe()
    outcome = admin.acls.create([READ_ORDERS])[READ_ORDERS]
    assert isinstance(outcome, BrokerError)
    assert outcome.code is ErrorCode.SECURITY_DISABLED
