"""DescribeAcls (key 29), versions 1-3, flexible from 2. An administrator lists ACLs (KIP-140).

Version 0 is gone since Kafka 4.0. Version 1 adds the type of the pattern (KIP-290), 3 the resource type for users
(KIP-373).
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode
from korvet.protocol.types import PatternType
from korvet.protocol.wire import int8, string


class DescribeAclsRequest(Message, kw_only=True):
    """Which ACLs: null, and ANY (1) for types, match each."""

    api = Api(key=29, versions=(1, 3), flexible=2)

    resource_type_filter: int8
    resource_name_filter: string | None
    pattern_type_filter: int8 = PatternType.LITERAL
    principal_filter: string | None
    host_filter: string | None
    operation: int8
    permission_type: int8


class AclDescription(Part, kw_only=True):
    principal: string
    host: string
    operation: int8
    permission_type: int8


class DescribeAclsResource(Part, kw_only=True):
    """A resource pattern and the ACLs about it that match."""

    resource_type: int8
    resource_name: string
    pattern_type: int8 = PatternType.LITERAL
    acls: list[AclDescription]


class DescribeAclsResponse(ResponseWithCode, kw_only=True):
    error_message: string | None
    resources: list[DescribeAclsResource] = []
