"""CreateAcls (key 30), versions 1-3, flexible from 2. An administrator allows or denies something (KIP-140).

Version 0 is gone since Kafka 4.0. Version 1 adds the type of the pattern (KIP-290), 3 the resource type for users
(KIP-373).
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.types import PatternType
from korvet.protocol.wire import int8, int16, string


class AclCreation(Part, kw_only=True):
    resource_type: int8
    resource_name: string
    resource_pattern_type: int8 = PatternType.LITERAL
    principal: string
    host: string
    operation: int8
    permission_type: int8


class CreateAclsRequest(Message, kw_only=True):
    api = Api(key=30, versions=(1, 3), flexible=2)

    creations: list[AclCreation]


class AclCreationResult(Part, kw_only=True):
    error_code: int16 = 0
    error_message: string | None


class CreateAclsResponse(Response, kw_only=True):
    """The result of each creation, in the order of the request."""

    results: list[AclCreationResult] = []
