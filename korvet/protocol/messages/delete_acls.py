"""DeleteAcls (key 31), versions 1-3, flexible from 2. An administrator deletes all ACLs that match (KIP-140).

Version 0 is gone since Kafka 4.0. Version 1 adds the type of the pattern (KIP-290), 3 the resource type for users
(KIP-373).
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.types import PatternType
from korvet.protocol.wire import int8, int16, string


class DeleteAclsFilter(Part, kw_only=True):
    """Which ACLs: null, and ANY (1) for types, match each."""

    resource_type_filter: int8
    resource_name_filter: string | None
    pattern_type_filter: int8 = PatternType.LITERAL
    principal_filter: string | None
    host_filter: string | None
    operation: int8
    permission_type: int8


class DeleteAclsRequest(Message, kw_only=True):
    api = Api(key=31, versions=(1, 3), flexible=2)

    filters: list[DeleteAclsFilter]


class DeleteAclsMatchingAcl(Part, kw_only=True):
    """An ACL that was deleted, or the error with which it was not."""

    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string
    pattern_type: int8 = PatternType.LITERAL
    principal: string
    host: string
    operation: int8
    permission_type: int8


class DeleteAclsFilterResult(Part, kw_only=True):
    error_code: int16 = 0
    error_message: string | None
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Response, kw_only=True):
    """The result of each filter, in the order of the request."""

    filter_results: list[DeleteAclsFilterResult] = []
