"""CreateAcls (key 30), versions 1-3: adds ACLs; one that is there already stays as it is.

Those about one resource pattern are added in one step. When the response is sent the worker that sends it acts on them,
and every other one within milliseconds.

Errors: INVALID_REQUEST, POLICY_VIOLATION, SECURITY_DISABLED.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_fields
from korvet.handlers.describe_acls import authorizer_of, enum_of
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.protocol.messages import create_acls as wire
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.security.acls import Acl, ResourcePattern, Rule

CREATIONS_MAX = 10_000
"""ACLs of one request, as in Kafka's controller."""


def handle(request: wire.CreateAclsRequest, _caller: Caller, services: Services) -> wire.CreateAclsResponse:
    """Add the ACLs; the failure of one leaves the others unaffected."""
    authorizer = authorizer_of(services)
    if len(request.creations) > CREATIONS_MAX:
        message = f"One request may create {CREATIONS_MAX} ACLs."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    errors = authorizer.add([_acl(creation) for creation in request.creations])
    return wire.CreateAclsResponse(results=[_result(error) for error in errors])


def _acl(creation: wire.AclCreation) -> Acl:
    return Acl(
        ResourcePattern(
            enum_of(AclResourceType, creation.resource_type),
            enum_of(PatternType, creation.resource_pattern_type),
            creation.resource_name,
        ),
        Rule(
            creation.principal,
            creation.host,
            enum_of(AclOperation, creation.operation),
            enum_of(AclPermissionType, creation.permission_type),
        ),
    )


def _result(error: KafkaError | None) -> wire.AclCreationResult:
    return wire.AclCreationResult(**error_fields(error))


register(
    handle,
    lambda request, _caller, error: wire.CreateAclsResponse(
        results=[_result(error) for _ in request.creations]
    ),
    rights=[on_cluster(ALTER)],
    changes=lambda request, response: (
        (str(_acl(creation)), result.error_code)
        for creation, result in zip(request.creations, response.results, strict=True)
    ),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
