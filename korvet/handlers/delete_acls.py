"""DeleteAcls (key 31), versions 1-3: deletes the ACLs that match any of the filters, and returns them.

Errors: INVALID_REQUEST, POLICY_VIOLATION, SECURITY_DISABLED.
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_fields
from korvet.handlers.describe_acls import acl_filter, authorizer_of
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.protocol.messages import delete_acls as wire
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.security.acls import Acl, ResourcePattern, Rule
from korvet.turns import in_turns

FILTERS_MAX = 1_000
"""Filters of one request: each goes through all ACLs."""


def handle(request: wire.DeleteAclsRequest, _caller: Caller, services: Services) -> wire.DeleteAclsResponse:
    """Delete what matches each filter; the failure of one leaves the others unaffected."""
    authorizer = authorizer_of(services)
    if len(request.filters) > FILTERS_MAX:
        message = f"One request may have {FILTERS_MAX} filters."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)

    deleted: dict[Acl, None] = {}

    def delete(asked: wire.DeleteAclsFilter) -> wire.DeleteAclsFilterResult:
        wanted = acl_filter(asked)
        # As in Kafka: what an earlier filter of the request has deleted is in the result of this one too.
        matched = {acl: None for acl in in_turns(deleted) if wanted.matches(acl)}
        removed, error = authorizer.remove(wanted)
        matched |= dict.fromkeys(removed)
        deleted.update(matched)
        matching = [
            wire.DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=resource.type,
                resource_name=resource.name,
                pattern_type=resource.pattern,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for resource, rule in in_turns(matched)
        ]
        # Clients leave the ACLs beside an error alone; they are for the audit log.
        return wire.DeleteAclsFilterResult(**error_fields(error), matching_acls=matching)

    results = each_done(request.filters, delete, _failed)
    return wire.DeleteAclsResponse(filter_results=results)


def _failed(_asked: wire.DeleteAclsFilter, error: KafkaError) -> wire.DeleteAclsFilterResult:
    return wire.DeleteAclsFilterResult(**error_fields(error))


def _changes(_request: wire.DeleteAclsRequest, response: wire.DeleteAclsResponse) -> Iterator[Outcome]:
    for result in response.filter_results:
        if result.error_code:
            yield "filter", result.error_code
        for acl in result.matching_acls:
            resource = ResourcePattern(
                AclResourceType(acl.resource_type), PatternType(acl.pattern_type), acl.resource_name
            )
            operation, permission = AclOperation(acl.operation), AclPermissionType(acl.permission_type)
            yield str(Acl(resource, Rule(acl.principal, acl.host, operation, permission))), acl.error_code


register(
    handle,
    lambda request, _caller, error: wire.DeleteAclsResponse(
        filter_results=[_failed(asked, error) for asked in request.filters]
    ),
    rights=[on_cluster(ALTER)],
    changes=_changes,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
