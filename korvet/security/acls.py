"""ACLs, and what they decide: the rules of Kafka's StandardAuthorizer (KIP-11, KIP-290, KIP-679).

An ACL is about a resource pattern: a name (LITERAL), every name that begins with one (PREFIXED), or every name (LITERAL
`*`). Of the ACLs about a resource those count whose principal, host and operation match: one that denies decides, else
one that allows, else nothing is allowed. Only what is allowed implies more: DESCRIBE by READ, WRITE, DELETE and ALTER,
DESCRIBE_CONFIGS by ALTER_CONFIGS, everything by ALL. A resource without any ACL is for the caller to decide.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.turns import in_turns

WILDCARD = "*"
"""As a literal resource name and as a host: any."""
ANYONE = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
TEXT_CHARS_MAX = 1_000
"""Of a principal, a host or a resource name; a topic's name has 249 at the most."""


def _operations(names: str) -> tuple[AclOperation, ...]:
    return tuple(AclOperation[name] for name in names.split())


OPERATIONS = {
    AclResourceType.TOPIC: _operations(
        "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"
    ),
    AclResourceType.GROUP: _operations("READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"),
    AclResourceType.CLUSTER: _operations(
        "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE"
    ),
}
"""What Kafka knows for each kind of resource whose authorized operations clients may ask for (KIP-430)."""

_IMPLIED_BY = {
    AclOperation.DESCRIBE: _operations("READ WRITE DELETE ALTER"),
    AclOperation.DESCRIBE_CONFIGS: _operations("ALTER_CONFIGS"),
}


class ResourcePattern(NamedTuple):
    """The resources that an ACL is about; both types are LITERAL or PREFIXED, and none of the filters' values."""

    type: AclResourceType
    pattern: PatternType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name}:{self.pattern.name}:{self.name}"


class Rule(NamedTuple):
    """Whom an ACL allows or denies what, from which host (Kafka's AccessControlEntry)."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermissionType


class Acl(NamedTuple):
    """A rule and what it is about (Kafka's AclBinding)."""

    resource: ResourcePattern
    rule: Rule

    def __str__(self) -> str:
        principal, host, operation, permission = self.rule
        return f"{permission.name} {principal} from {host} {operation.name} on {self.resource}"


class AclFilter(NamedTuple):
    """Which ACLs are meant: each field as in an ACL, None or ANY for every value (Kafka's AclBindingFilter).

    Pattern type MATCH: ACLs with a pattern that matches the name; ANY: ACLs with exactly this name.
    """

    type: AclResourceType = AclResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY

    def matches(self, acl: Acl) -> bool:
        rule = acl.rule
        return (
            self.matches_resource(acl.resource)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (AclPermissionType.ANY, rule.permission)
        )

    def matches_resource(self, resource: ResourcePattern) -> bool:
        """Whether ACLs about these resources may be among those that are meant."""
        if self.type not in (AclResourceType.ANY, resource.type):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == resource.name
        if resource.pattern is PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name in (self.name, WILDCARD)


def check(acl: Acl) -> None:
    """Raise KafkaError INVALID_REQUEST for what cannot be an ACL."""
    (resource_type, pattern, name), (principal, host, operation, permission) = acl
    cluster = resource_type is AclResourceType.CLUSTER
    no_colon = "no colon is present separating the principal type from the principal name"
    rules = {
        f"Invalid resourceType {resource_type.name}": resource_type > AclResourceType.ANY,
        f"Invalid patternType {pattern.name}": pattern in (PatternType.LITERAL, PatternType.PREFIXED),
        f"Invalid operation {operation.name}": operation > AclOperation.ANY,
        f"Invalid permissionType {permission.name}": permission > AclPermissionType.ANY,
        "Invalid empty resource name": bool(name),
        f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}": name == CLUSTER_NAME
        or not cluster,
        f"Could not parse principal from `{principal[:80]}` ({no_colon})": ":" in principal,
        f"Names, principals and hosts have at most {TEXT_CHARS_MAX} characters": (
            max(map(len, (name, principal, host))) <= TEXT_CHARS_MAX
        ),
    }
    for wrong, holds in rules.items():
        if not holds:
            raise KafkaError(ErrorCode.INVALID_REQUEST, wrong)


@lru_cache(maxsize=10_000)
def _canonical(host: str) -> str:
    address = ipaddress.ip_address(host)
    return str(getattr(address, "ipv4_mapped", None) or address)


def canonical_host(host: str) -> str:
    """Return an address in its one short form, as clients' hosts are compared with those of ACLs."""
    try:
        return _canonical(host)
    except ValueError:
        return host


class AclIndex:
    """All ACLs, by what they are about. `rules` has them as they were given."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.rules: dict[ResourcePattern, Sequence[Rule]] = {}
        self._literal: dict[tuple[AclResourceType, str], list[Rule]] = {}
        self._prefixed: dict[tuple[AclResourceType, str], list[Rule]] = {}
        self._prefixes_of_length: Counter[int] = Counter()
        self._prefix_lengths: list[int] = []
        by_resource: dict[ResourcePattern, list[Rule]] = {}
        for resource, rule in in_turns(acls):
            by_resource.setdefault(resource, []).append(rule)
        for resource, rules in in_turns(by_resource.items()):
            self.replace(resource, rules)

    def replace(self, resource: ResourcePattern, rules: Sequence[Rule]) -> None:
        """Replace the ACLs about a resource pattern by these, or by none."""
        resource_type, pattern, name = resource
        indexed = [rule._replace(host=canonical_host(rule.host)) for rule in in_turns(rules)]
        if pattern is PatternType.PREFIXED:
            self._prefixes_of_length[len(name)] += (len(rules) > 0) - (resource in self.rules)
            if (self._prefixes_of_length[len(name)] > 0) != (len(name) in self._prefix_lengths):
                self._prefix_lengths = sorted(+self._prefixes_of_length)
        by_name = self._prefixed if pattern is PatternType.PREFIXED else self._literal
        if rules:
            self.rules[resource], by_name[resource_type, name] = rules, indexed
        else:
            self.rules.pop(resource, None)
            by_name.pop((resource_type, name), None)

    def list_acls(self) -> Iterator[Acl]:
        """Yield all ACLs, those about one resource pattern together, in the order of their names."""
        for resource in in_turns(sorted(self.rules, key=str)):
            for rule in in_turns(self.rules.get(resource, ())):
                yield Acl(resource, rule)

    def decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool | None:
        """Return whether the principal may do that from the host; None if there is no ACL about the resource."""
        allowed = None
        for rule in self._about(resource_type, name):
            allowed = allowed or False
            if rule.principal not in (principal, ANYONE) or rule.host not in (host, WILDCARD):
                continue
            if rule.permission is AclPermissionType.DENY:
                if rule.operation in (operation, AclOperation.ALL):
                    return False
            elif rule.operation in (operation, AclOperation.ALL, *_IMPLIED_BY.get(operation, ())):
                allowed = True
        return allowed

    def decide_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        """Return whether an ACL allows that for some resource of the type, and none denies it there (KIP-679).

        As in Kafka no operation implies another here, but by ALL.
        """

        def names(
            of: dict[tuple[AclResourceType, str], list[Rule]], permission: AclPermissionType
        ) -> set[str]:
            return {
                name
                for (kind, name), rules in of.items()
                if kind is resource_type
                for rule in rules
                if rule.permission is permission
                and rule.principal in (principal, ANYONE)
                and rule.host in (host, WILDCARD)
                and rule.operation in (operation, AclOperation.ALL)
            }

        denied = names(self._literal, AclPermissionType.DENY)
        if WILDCARD in denied:
            return False
        literal = names(self._literal, AclPermissionType.ALLOW)
        if WILDCARD in literal:
            return True
        denied_prefixes = names(self._prefixed, AclPermissionType.DENY)
        candidates = (literal - denied) | names(self._prefixed, AclPermissionType.ALLOW)
        return any(
            not any(name[:length] in denied_prefixes for length in range(1, len(name) + 1))
            for name in candidates
        )

    def _about(self, resource_type: AclResourceType, name: str) -> Iterator[Rule]:
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        for length in self._prefix_lengths:
            if length > len(name):
                break
            yield from self._prefixed.get((resource_type, name[:length]), ())


def bits(operations: Iterable[AclOperation]) -> int:
    """Return a set of operations as an int32 with a bit for each (KIP-430)."""
    return sum(1 << operation for operation in operations)
