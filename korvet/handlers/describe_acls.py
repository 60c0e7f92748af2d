"""DescribeAcls (key 29), versions 1-3: the ACLs that match a filter, as of now.

None matches a number that no type, operation or permission has; 0, the name of such a number, is refused.

Errors: INVALID_REQUEST, SECURITY_DISABLED.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import groupby
from typing import TypeVar

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, on_cluster
from korvet.protocol.messages import delete_acls
from korvet.protocol.messages import describe_acls as wire
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.security.acls import AclFilter
from korvet.security.authorizer import Authorizer

E = TypeVar("E", bound=IntEnum)


def handle(
    request: wire.DescribeAclsRequest, _caller: Caller, services: Services
) -> wire.DescribeAclsResponse:
    authorizer = authorizer_of(services)
    numbers = (request.resource_type_filter, request.pattern_type_filter, request.operation)
    if 0 in (*numbers, request.permission_type):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The filter contains UNKNOWN elements.")
    resources = []
    for resource, acls in groupby(authorizer.list_acls(acl_filter(request)), key=lambda acl: acl.resource):
        described = [
            wire.AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for _, rule in acls
        ]
        resources.append(
            wire.DescribeAclsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                pattern_type=resource.pattern,
                acls=described,
            )
        )
    return wire.DescribeAclsResponse(error_message=None, resources=resources)


def authorizer_of(services: Services) -> Authorizer:
    """Return the authorizer; raises KafkaError SECURITY_DISABLED if there is none."""
    if services.authorizer is None:
        message = "No Authorizer is configured (authorizer.class.name)."
        raise KafkaError(ErrorCode.SECURITY_DISABLED, message)
    return services.authorizer


def acl_filter(asked: wire.DescribeAclsRequest | delete_acls.DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        enum_of(AclResourceType, asked.resource_type_filter),
        enum_of(PatternType, asked.pattern_type_filter),
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        enum_of(AclOperation, asked.operation),
        enum_of(AclPermissionType, asked.permission_type),
    )


def enum_of(kind: type[E], number: int) -> E:
    """Return the value of that number, UNKNOWN for one that this version does not know."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


register(handle, refuse_whole(wire.DescribeAclsResponse), rights=[on_cluster(DESCRIBE)])
