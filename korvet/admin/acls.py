"""Requests about ACLs: list, create and delete them (KIP-140, KIP-290). Reached as `AdminClient.acls`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from korvet.admin.errors import error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient
from korvet.admin.types import Outcomes
from korvet.protocol.messages import create_acls, delete_acls, describe_acls
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType

E = TypeVar("E", bound=IntEnum)


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

    The pattern type MATCH means ACLs about any pattern that the resource's name matches; ANY, those of that name.
    """

    resource_type: AclResourceType = AclResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY


class Acls:
    """The requests about ACLs. Without an authorizer a broker refuses them with SECURITY_DISABLED."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def describe(self, meant: AclBindingFilter | None = None) -> list[AclBinding]:
        """Return the ACLs that are meant, or all. Raises AdminError.

        >>> every = admin.acls.describe()
        """
        meant = meant or AclBindingFilter()
        request = describe_acls.DescribeAclsRequest(
            resource_type_filter=meant.resource_type,
            resource_name_filter=meant.resource_name,
            pattern_type_filter=meant.pattern_type,
            principal_filter=meant.principal,
            host_filter=meant.host,
            operation=meant.operation,
            permission_type=meant.permission,
        )
        response = self._client.call_any(request, describe_acls.DescribeAclsResponse)
        raise_error_in(response.error_code, response.error_message)
        return [
            AclBinding(
                _known(AclResourceType, resource.resource_type),
                _known(PatternType, resource.pattern_type),
                resource.resource_name,
                each.principal,
                each.host,
                _known(AclOperation, each.operation),
                _known(AclPermissionType, each.permission_type),
            )
            for resource in response.resources
            for each in resource.acls
        ]

    def create(self, bindings: Iterable[AclBinding]) -> Outcomes[AclBinding, None]:
        """Create ACLs; returns None or an error for each. One that is there already stays."""

        def ask(attempt: Attempt, keys: Sequence[AclBinding]) -> Outcomes[AclBinding, None]:
            creations = [
                create_acls.AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in keys
            ]
            request = create_acls.CreateAclsRequest(creations=creations)
            results = attempt.send(request, create_acls.CreateAclsResponse).results
            return {
                key: error_in(each.error_code, each.error_message)
                for key, each in zip(keys, results, strict=True)
            }

        return self._client.for_each(bindings, self._client.to_controller, ask)

    def delete(self, filters: Iterable[AclBindingFilter]) -> Outcomes[AclBindingFilter, list[AclBinding]]:
        """Delete all ACLs that one of the filters means; returns those that each has deleted, or an error."""

        def ask(
            attempt: Attempt, keys: Sequence[AclBindingFilter]
        ) -> Outcomes[AclBindingFilter, list[AclBinding]]:
            asked = [
                delete_acls.DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in keys
            ]
            request = delete_acls.DeleteAclsRequest(filters=asked)
            results = attempt.send(request, delete_acls.DeleteAclsResponse).filter_results
            return {
                key: error_in(each.error_code, each.error_message) or _deleted(each)
                for key, each in zip(keys, results, strict=True)
            }

        return self._client.for_each(filters, self._client.to_controller, ask)


def _known(kind: type[E], number: int) -> E:
    """Return the value in a response; UNKNOWN for one of a later Kafka."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _deleted(result: delete_acls.DeleteAclsFilterResult) -> list[AclBinding]:
    return [
        AclBinding(
            _known(AclResourceType, each.resource_type),
            _known(PatternType, each.pattern_type),
            each.resource_name,
            each.principal,
            each.host,
            _known(AclOperation, each.operation),
            _known(AclPermissionType, each.permission_type),
        )
        for each in result.matching_acls
        if not each.error_code
    ]
