"""The rules of ACLs, against a second, slow writing of what Kafka documents, and filters of ACLs likewise."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.security.acls import Acl, AclFilter, AclIndex, ResourcePattern, Rule, canonical_host, check

ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
ANY = 1
OPERATIONS = [item for item in AclOperation if item > AclOperation.ALL]

# Few of each, so that they meet.
names = st.sampled_from(["*", "a", "ab", "abc", "b", "hardcode"])
types = st.sampled_from([TOPIC, GROUP])
principals = st.sampled_from(["User:alice", "User:bob", "User:*", "Group:*"])
hosts = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
operations = st.sampled_from([AclOperation.ALL, *OPERATIONS])
permissions = st.sampled_from([ALLOW, DENY])
patterns = st.sampled_from([LITERAL, PREFIXED])
acls = st.builds(
    Acl,
    st.builds(ResourcePattern, types, patterns, names),
    st.builds(Rule, principals, hosts, operations, permissions),
)


def one(
    permission: AclPermissionType,
    operation: AclOperation,
    name: str = "orders",
    pattern: PatternType = LITERAL,
    *,
    principal: str = "User:alice",
    host: str = "*",
) -> Acl:
    return Acl(ResourcePattern(TOPIC, pattern, name), Rule(principal, host, operation, permission))


def granted(rule: Rule) -> set[AclOperation]:
    """Return what a rule is about, with what its permission implies (Kafka's documentation of operations)."""
    if rule.operation is AclOperation.ALL:
        return set(OPERATIONS)
    implied: dict[str, str] = {}
    if rule.permission is ALLOW:
        implied = dict.fromkeys(("READ", "WRITE", "DELETE", "ALTER"), "DESCRIBE")
        implied["ALTER_CONFIGS"] = "DESCRIBE_CONFIGS"
    return {rule.operation, AclOperation[implied.get(rule.operation.name, rule.operation.name)]}


def is_about(resource: ResourcePattern, kind: AclResourceType, name: str) -> bool:
    """Whether a pattern stands for a resource: by a regular expression, where the index cuts prefixes."""
    expression = re.escape(resource.name)
    if resource.pattern is PREFIXED:
        expression += ".*"
    elif resource.name == "*":
        expression = ".*"
    return resource.type is kind and re.fullmatch(expression, name, re.DOTALL) is not None


def expected(
    given_acls: list[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: AclResourceType,
    name: str,
) -> bool | None:
    """Decide by looking at every ACL."""
    about = [acl for acl in given_acls if is_about(acl.resource, kind, name)]
    if not about:
        return None
    permissions_found = {
        acl.rule.permission
        for acl in about
        if acl.rule.principal in {principal, "User:*"}
        and fnmatchcase(host, acl.rule.host)
        and operation in granted(acl.rule)
    }
    return permissions_found == {ALLOW}


@given(st.lists(acls, max_size=8), principals, hosts, st.sampled_from(OPERATIONS), types, names)
@example([one(ALLOW, AclOperation.READ)], "User:alice", "10.0.0.1", AclOperation.DESCRIBE, TOPIC, "orders")
@example([one(DENY, AclOperation.READ)], "User:alice", "10.0.0.1", AclOperation.DESCRIBE, TOPIC, "orders")
def test_a_decision_is_that_of_looking_at_every_acl(
    given_acls: list[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: AclResourceType,
    name: str,
) -> None:
    decided = AclIndex(given_acls).decide(principal, host, operation, kind, name)
    assert decided is expected(given_acls, principal, host, operation, kind, name)


@given(st.lists(acls, max_size=8), principals, hosts, st.sampled_from(OPERATIONS), types)
def test_a_right_on_any_resource_is_one_that_some_allowed_pattern_still_has(
    given_acls: list[Acl], principal: str, host: str, operation: AclOperation, kind: AclResourceType
) -> None:
    """KIP-679: an allowing ACL counts unless one that denies covers its whole pattern."""
    about = [
        acl
        for acl in given_acls
        if acl.resource.type is kind
        and acl.rule.operation in (operation, AclOperation.ALL)
        and acl.rule.principal in {principal, "User:*"}
        and fnmatchcase(host, acl.rule.host)
    ]
    denied = [item.resource for item in about if item.rule.permission is DENY]

    def covers(wide: ResourcePattern, narrow: ResourcePattern) -> bool:
        if (wide.pattern, wide.name) == (LITERAL, "*"):
            return True
        if narrow == ResourcePattern(kind, LITERAL, "*"):
            return False  # it stands for more than any prefix
        if wide.pattern is PREFIXED:
            return narrow.name.startswith(wide.name)
        return wide == narrow

    result = any(
        not any(covers(wide, item.resource) for wide in denied)
        for item in about
        if item.rule.permission is ALLOW
    )
    assert AclIndex(given_acls).decide_any(principal, host, operation, kind) is result


def test_a_literal_star_is_every_resource_and_a_prefixed_star_is_not() -> None:
    read = AclOperation.READ
    assert AclIndex([one(ALLOW, read, "*")]).decide("User:alice", "h", read, TOPIC, "orders") is True
    assert (
        AclIndex([one(ALLOW, read, "*", PREFIXED)]).decide("User:alice", "h", read, TOPIC, "orders") is None
    )


def test_hosts_are_compared_as_addresses() -> None:
    assert canonical_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert canonical_host("0:0:0:0:0:0:0:1") == "::1"  # as Java writes it
    read = AclOperation.READ
    index = AclIndex([one(ALLOW, read, host="0:0:0:0:0:0:0:1")])
    assert index.decide("User:alice", "::1", read, TOPIC, "orders") is True
    assert index.decide("User:alice", "::2", read, TOPIC, "orders") is False


filters = st.builds(
    AclFilter,
    st.sampled_from([AclResourceType.ANY, TOPIC, GROUP]),
    st.sampled_from([PatternType.ANY, PatternType.MATCH, LITERAL, PREFIXED]),
    st.none() | names,
    st.none() | principals,
    st.none() | hosts,
    st.sampled_from([AclOperation.ANY, *OPERATIONS]),
    st.sampled_from([AclPermissionType.ANY, ALLOW, DENY]),
)


@given(filters, acls)
def test_a_filter_means_what_all_its_fields_mean(meant: AclFilter, acl: Acl) -> None:
    if meant.pattern is PatternType.MATCH and meant.name is not None:
        # MATCH finds what decides about that resource, and so its literal * too.
        kind = acl.resource.type if meant.type is AclResourceType.ANY else meant.type
        resource = is_about(acl.resource, kind, meant.name)
    else:
        resource = (
            meant.type in (AclResourceType.ANY, acl.resource.type)
            and meant.pattern in (PatternType.ANY, PatternType.MATCH, acl.resource.pattern)
            and meant.name in (None, acl.resource.name)
        )
    rule = all(
        wanted in (None, ANY, has)
        for wanted, has in zip(
            (meant.principal, meant.host, meant.operation, meant.permission), acl.rule, strict=True
        )
    )
    assert meant.matches(acl) is (resource and rule)


@pytest.mark.parametrize(
    ("acl", "message"),
    [
        (one(ALLOW, AclOperation.ANY), "Invalid operation ANY"),
        (one(AclPermissionType.ANY, AclOperation.READ), "Invalid permissionType ANY"),
        (one(ALLOW, AclOperation.READ, pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (one(ALLOW, AclOperation.READ, ""), "Invalid empty resource name"),
        (
            one(ALLOW, AclOperation.READ, principal="alice"),
            "Could not parse principal from `alice` (no colon is present separating the principal type from",
        ),
        (one(ALLOW, AclOperation.READ, "x" * 1001), "at most 1000 characters"),
        (
            Acl(
                ResourcePattern(AclResourceType.ANY, LITERAL, "x"),
                Rule("User:a", "*", AclOperation.READ, ALLOW),
            ),
            "Invalid resourceType ANY",
        ),
        (
            Acl(
                ResourcePattern(AclResourceType.CLUSTER, LITERAL, "mine"),
                Rule("User:a", "*", AclOperation.READ, ALLOW),
            ),
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
    ],
)
def test_what_cannot_be_an_acl_is_refused(acl: Acl, message: str) -> None:
    with pytest.raises(KafkaError, match=re.escape(message)) as raised:
        check(acl)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
