"""`korvet acls` lists, adds and removes ACLs, with the options of Kafka's kafka-acls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

import click

from korvet.admin.acls import AclBinding, AclBindingFilter
from korvet.admin.client import AdminClient
from korvet.cli.options import AdminGroup, Command, add_options, option, repeated, without_errors, yes_option
from korvet.cli.output import confirm, json_wanted, print_outcomes, report_failures
from korvet.cli.tables import Column, print_result, texts
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType

_Named: TypeAlias = tuple[AclResourceType, str]
"""A resource, or a pattern of resources, by its type and name."""

_THE_CLUSTER = (AclResourceType.CLUSTER, "kafka-cluster")
_READ, _WRITE, _CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
_DESCRIBE = AclOperation.DESCRIBE

_PRODUCER = {
    AclResourceType.TOPIC: (_WRITE, _DESCRIBE, _CREATE),
    AclResourceType.TRANSACTIONAL_ID: (_WRITE, _DESCRIBE),
}
_CONSUMER = {AclResourceType.TOPIC: (_READ, _DESCRIBE), AclResourceType.GROUP: (_READ,)}
"""What the roles of --producer and --consumer may do, as in Kafka's tool."""


def _title(value: AclOperation | AclResourceType) -> str:
    """Write DESCRIBE_CONFIGS as DescribeConfigs."""
    return value.name.title().replace("_", "")


_OPERATIONS = {_title(operation): operation for operation in AclOperation if operation > AclOperation.ANY}
_ACL = (
    Column("resource", lambda acl: _title(acl.resource_type)),
    Column("name", "resource_name"),
    Column("pattern", lambda acl: acl.pattern_type.name.lower()),
    *texts("principal", "host"),
    Column("operation", lambda acl: _title(acl.operation)),
    Column("permission", lambda acl: acl.permission.name.lower()),
)


def _check_principals(
    _ctx: click.Context, _param: click.Parameter, principals: tuple[str, ...]
) -> tuple[str, ...]:
    for principal in principals:
        if not all(principal.partition(":")):
            raise click.BadParameter(f"{principal!r} is not TYPE:NAME, as in User:alice")
    return principals


def _principal_option(flag: str, text: str, *, name: str) -> Callable[[Command], Command]:
    return repeated(f"{flag} TYPE:NAME", text, name=name, callback=_check_principals)


def _resource_options(*pattern_types: str) -> list[Any]:
    patterns = click.Choice(pattern_types, case_sensitive=False)
    return [
        repeated("-t, --topic NAME", "A topic, or * for all", name="topics"),
        repeated("-g, --group NAME", "A group, or * for all", name="groups"),
        repeated("--transactional-id ID", "A transactional id", name="transactional_ids"),
        option("--cluster", "The cluster.", name="on_cluster"),
        option(
            "--resource-pattern-type",
            "literal: the name of one resource; prefixed: the beginning of names.",
            patterns,
            name="pattern_type",
            default="literal",
        ),
    ]


_rule_options = [
    _principal_option("--allow-principal", "Principal to allow, for example User:alice", name="allowed"),
    _principal_option("--deny-principal", "Principal to deny, for example User:bob", name="denied"),
    repeated("--allow-host IP", "Address from which it is allowed, any by default", name="allowed_hosts"),
    repeated("--deny-host IP", "Address from which it is denied, any by default", name="denied_hosts"),
    repeated(
        "--operation NAME",
        "Operation, for example Read or DescribeConfigs; All by default",
        click.Choice([*_OPERATIONS], case_sensitive=False),
        name="operations",
    ),
    option("--producer", "The operations of a producer: Write, Describe and Create on the topics."),
    option(
        "--consumer", "The operations of a consumer: Read and Describe on the topics, Read on the groups."
    ),
    option("--idempotent", "With --producer: IdempotentWrite on the cluster too."),
]


@click.group(cls=AdminGroup)
def acls() -> None:
    """List, add and remove ACLs; of any Kafka cluster with an authorizer."""


def _for_list(command: Command) -> Command:
    return add_options(command, *_resource_options("literal", "prefixed", "any", "match"))


def _for_remove(command: Command) -> Command:
    return _for_list(add_options(command, *_rule_options))


def _for_add(command: Command) -> Command:
    return add_options(command, *_resource_options("literal", "prefixed"), *_rule_options)


@acls.command("list")
@_for_list
@_principal_option("--principal", "Only ACLs of this principal", name="principals")
def list_(admin: AdminClient, principals: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - the options
    """List ACLs: all, or those about the resources that are named.

    List all ACLs, or the ACLs of the named resources.

    With --resource-pattern-type any it lists both kinds of ACLs with these names, with match every ACL that applies to
    the resources: literal, prefixed and *.
    """
    described: dict[AclBinding, None] = {}
    for acl_filter, principal in product(_filters(given), principals or (None,)):
        described |= dict.fromkeys(admin.acls.describe(acl_filter._replace(principal=principal)))
    print_result(described, _ACL)


@acls.command()
@_for_add
def add(admin: AdminClient, **given: Any) -> None:  # noqa: ANN401 - the options
    """Add ACLs: one for each combination of the named resources, principals, hosts and operations."""
    print_outcomes("acl", "added", admin.acls.create(_bindings(given)))


@acls.command()
@_for_remove
@yes_option
def remove(admin: AdminClient, *, yes: bool, **given: Any) -> None:  # noqa: ANN401 - the options
    """Remove the ACLs that `add` with the same options adds; without a principal, all ACLs of the resources."""
    filters = (
        [AclBindingFilter(*binding) for binding in _bindings(given)]
        if given["allowed"] or given["denied"]
        else _filters(given)
    )
    if filters == [AclBindingFilter()]:
        raise click.UsageError("Name a resource: --topic, --group, --transactional-id or --cluster.")
    if matching := {acl for acl_filter in filters for acl in admin.acls.describe(acl_filter)}:
        confirm(f"Remove {len(matching)} ACLs?", "Removed nothing", yes=yes)
    outcomes = admin.acls.delete(filters)
    removed = dict.fromkeys(acl for matched in without_errors(outcomes).values() for acl in matched)
    if not removed and not json_wanted():
        click.echo("no ACL matches")
    print_outcomes("acl", "removed", removed)
    report_failures("", outcomes)


def _resources(given: dict[str, Any]) -> list[_Named]:
    return [
        *product([AclResourceType.TOPIC], given["topics"]),
        *product([AclResourceType.GROUP], given["groups"]),
        *product([AclResourceType.TRANSACTIONAL_ID], given["transactional_ids"]),
        *([_THE_CLUSTER] if given["on_cluster"] else []),
    ]


def _filters(given: dict[str, Any]) -> list[AclBindingFilter]:
    pattern = PatternType[given["pattern_type"].upper()]
    return [AclBindingFilter(kind, pattern, name) for kind, name in _resources(given)] or [AclBindingFilter()]


def _bindings(given: dict[str, Any]) -> list[AclBinding]:
    """Return the ACLs that the options stand for; raises UsageError where they stand for none."""
    principals = [
        (principal, host, permission)
        for names, hosts, permission in (
            (given["allowed"], given["allowed_hosts"], AclPermissionType.ALLOW),
            (given["denied"], given["denied_hosts"], AclPermissionType.DENY),
        )
        for principal, host in product(names, hosts or ("*",))
    ]
    if not principals:
        raise click.UsageError("Give --allow-principal or --deny-principal.")
    pattern = PatternType[given["pattern_type"].upper()]
    bindings = []
    for (kind, name), operation in _rights(given):
        # There is but one cluster: its name is no prefix.
        match = PatternType.LITERAL if kind is AclResourceType.CLUSTER else pattern
        bindings += [
            AclBinding(kind, match, name, principal, host, operation, permission)
            for principal, host, permission in principals
        ]
    return list(dict.fromkeys(bindings))


def _rights(given: dict[str, Any]) -> list[tuple[_Named, AclOperation]]:
    resources = _resources(given)
    producer, consumer = given["producer"], given["consumer"]
    kinds = {kind for kind, _ in resources}
    if given["idempotent"] and not producer:
        raise click.UsageError("--idempotent goes with --producer.")
    if producer and not kinds & _PRODUCER.keys():
        raise click.UsageError("--producer needs --topic or --transactional-id.")
    if consumer and not kinds >= _CONSUMER.keys():
        raise click.UsageError("--consumer needs --topic and --group.")
    if not resources:
        raise click.UsageError("Name a resource: --topic, --group, --transactional-id or --cluster.")
    if not producer and not consumer:
        return list(product(resources, [_OPERATIONS[name] for name in given["operations"] or ("All",)]))
    rights = []
    for role in [_PRODUCER] * producer + [_CONSUMER] * consumer:
        for resource in resources:
            rights += [(resource, operation) for operation in role.get(resource[0], ())]
    if given["idempotent"]:
        rights.append((_THE_CLUSTER, AclOperation.IDEMPOTENT_WRITE))
    return rights
