"""Requests about ACLs: list, create and delete them (KIP-140, KIP-290). Reached as `AdminClient.acls`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from korvet.admin.errors import error_in
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import Outcomes, enum_in
from korvet.protocol.messages import create_acls, delete_acls, describe_acls
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType

# What requests call the fields of a binding, and of a filter, in their order.
_CREATION = (
    *("resource_type", "resource_pattern_type", "resource_name", "principal", "host"),
    *("operation", "permission_type"),
)
_FILTER = (
    *("resource_type_filter", "pattern_type_filter", "resource_name_filter", "principal_filter"),
    *("host_filter", "operation", "permission_type"),
)


class AclBinding(NamedTuple):
    """An ACL: whom it allows or denies what, and on which resources."""

    resource_type: AclResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermissionType

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} {self.operation.name}"
            f" on {self.resource_type.name}:{self.pattern_type.name}:{self.resource_name}"
        )


class AclBindingFilter(NamedTuple):
    """Which ACLs are meant: None, and ANY, match each value.

    Pattern type MATCH: ACLs with a pattern that matches the resource's name; ANY: ACLs with exactly this name.
    """

    resource_type: AclResourceType = AclResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY


class Acls(Requests):
    """The requests about ACLs. Without an authorizer a broker refuses them with SECURITY_DISABLED."""

    def describe(self, meant: AclBindingFilter | None = None) -> list[AclBinding]:
        """Return the ACLs that are meant, or all. Raises AdminError.

        >>> every = admin.acls.describe()
        """
        request = describe_acls.DescribeAclsRequest(**_named(_FILTER, meant or AclBindingFilter()))
        response = self._client.call(request, describe_acls.DescribeAclsResponse)
        return [_binding(resource, acl) for resource in response.resources for acl in resource.acls]

    def create(self, bindings: Iterable[AclBinding]) -> Outcomes[AclBinding, None]:
        """Create ACLs; returns None or an error for each. One that is there already stays."""

        def ask(attempt: Attempt, keys: Sequence[AclBinding]) -> Outcomes[AclBinding, None]:
            creations = [create_acls.AclCreation(**_named(_CREATION, binding)) for binding in keys]
            request = create_acls.CreateAclsRequest(creations=creations)
            results = attempt.send(request, create_acls.CreateAclsResponse).results
            return {
                key: error_in(result.error_code, result.error_message)
                for key, result in zip(keys, results, strict=True)
            }

        return self._client.for_each(bindings, Route.CONTROLLER, ask)

    def delete(self, filters: Iterable[AclBindingFilter]) -> Outcomes[AclBindingFilter, list[AclBinding]]:
        """Delete the ACLs that match a filter; returns the deleted ACLs of each filter, or its error."""

        def ask(
            attempt: Attempt, keys: Sequence[AclBindingFilter]
        ) -> Outcomes[AclBindingFilter, list[AclBinding]]:
            meant = [delete_acls.DeleteAclsFilter(**_named(_FILTER, key)) for key in keys]
            request = delete_acls.DeleteAclsRequest(filters=meant)
            results = attempt.send(request, delete_acls.DeleteAclsResponse).filter_results
            return {
                key: error_in(result.error_code, result.error_message)
                or [_binding(acl, acl) for acl in result.matching_acls if not acl.error_code]
                for key, result in zip(keys, results, strict=True)
            }

        return self._client.for_each(filters, Route.CONTROLLER, ask)


def _named(names: Iterable[str], values: AclBinding | AclBindingFilter) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


def _binding(
    resource: describe_acls.DescribeAclsResource | delete_acls.DeleteAclsMatchingAcl,
    acl: describe_acls.AclDescription | delete_acls.DeleteAclsMatchingAcl,
) -> AclBinding:
    return AclBinding(
        enum_in(AclResourceType, resource.resource_type),
        enum_in(PatternType, resource.pattern_type),
        resource.resource_name,
        acl.principal,
        acl.host,
        enum_in(AclOperation, acl.operation),
        enum_in(AclPermissionType, acl.permission_type),
    )
