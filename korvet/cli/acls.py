"""`korvet acls` lists, adds and removes ACLs, with the options of Kafka's kafka-acls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

import click

from korvet.admin.acls import AclBinding, AclBindingFilter
from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError
from korvet.cli.options import Command, add_options, repeated_option, with_admin, yes_option
from korvet.cli.output import confirm, print_json, print_outcomes, print_table, report_failures
from korvet.cli.run import CommandGroup
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


_OPERATIONS = {_title(each): each for each in AclOperation if each > AclOperation.ANY}


def _check_principals(
    _ctx: click.Context, _param: click.Parameter, principals: tuple[str, ...]
) -> tuple[str, ...]:
    for each in principals:
        if not all(each.partition(":")):
            raise click.BadParameter(f"{each!r} is not TYPE:NAME, as in User:alice")
    return principals


def _principal_option(*names: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        *names,
        multiple=True,
        metavar="TYPE:NAME",
        callback=_check_principals,
        help=f"{text}; may be repeated.",
    )


def _resource_options(*pattern_types: str) -> list[Any]:
    return [
        repeated_option("--topic", "-t", "topics", metavar="NAME", text="A topic, or * for all"),
        repeated_option("--group", "-g", "groups", metavar="NAME", text="A group, or * for all"),
        repeated_option("--transactional-id", "transactional_ids", metavar="ID", text="A transactional id"),
        click.option("--cluster", "on_cluster", is_flag=True, help="The cluster."),
        click.option(
            "--resource-pattern-type",
            "pattern_type",
            type=click.Choice(pattern_types, case_sensitive=False),
            default="literal",
            show_default=True,
            help="How the names stand for resources.",
        ),
    ]


_rule_options = [
    _principal_option("--allow-principal", "allowed", text="Whom to allow it"),
    _principal_option("--deny-principal", "denied", text="Whom to deny it"),
    repeated_option("--allow-host", "allowed_hosts", metavar="IP", text="From where, any address by default"),
    repeated_option("--deny-host", "denied_hosts", metavar="IP", text="From where not, any by default"),
    repeated_option(
        "--operation",
        "operations",
        metavar="NAME",
        kind=click.Choice([*_OPERATIONS], case_sensitive=False),
        text="What, as in Read or DescribeConfigs, All by default",
    ),
    click.option("--producer", is_flag=True, help="Write, Describe and Create, for topics."),
    click.option("--consumer", is_flag=True, help="Read and Describe, for topics; Read, for groups."),
    click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster too."),
]


@click.group(cls=CommandGroup)
def acls() -> None:
    """List, add and remove ACLs; of any Kafka cluster with an authorizer."""


def _for_list(command: Command) -> Command:
    return add_options(command, *_resource_options("literal", "prefixed", "any", "match"))


def _for_remove(command: Command) -> Command:
    return add_options(command, *_resource_options("literal", "prefixed", "any", "match"), *_rule_options)


def _for_add(command: Command) -> Command:
    return add_options(command, *_resource_options("literal", "prefixed"), *_rule_options)


@acls.command("list")
@_for_list
@_principal_option("--principal", "principals", text="Only ACLs of this principal")
@with_admin
def list_(admin: AdminClient, principals: tuple[str, ...], *, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - the options
    """List ACLs: all, or those about the resources that are named.

    With --resource-pattern-type match, all ACLs that decide about these resources.
    """
    found: dict[AclBinding, None] = {}
    for meant in _filters(given):
        for principal in principals or (None,):
            found |= dict.fromkeys(admin.acls.describe(meant._replace(principal=principal)))
    if as_json:
        print_json([_as_object(each) for each in found])
        return
    titles = ("Resource", "Name", "Pattern", "Principal", "Host", "Operation", "Permission")
    print_table(titles, [[*_as_object(each).values()] for each in found])


@acls.command()
@_for_add
@with_admin
def add(admin: AdminClient, *, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - the options
    """Add ACLs: for each resource, principal, host and operation that is named, one."""
    outcomes = admin.acls.create(_bindings(given))
    print_outcomes("acl", "added", {str(key): error for key, error in outcomes.items()}, as_json=as_json)


@acls.command()
@_for_remove
@yes_option
@with_admin
def remove(admin: AdminClient, *, yes: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - the options
    """Remove ACLs: those that the same options would add, or without a principal all about the resources."""
    filters = (
        [AclBindingFilter(*each) for each in _bindings(given)]
        if given["allowed"] or given["denied"]
        else _filters(given)
    )
    if filters == [AclBindingFilter()]:
        raise click.UsageError("Name a resource: --topic, --group, --transactional-id or --cluster.")
    found = list(dict.fromkeys(each for meant in filters for each in admin.acls.describe(meant)))
    if found:
        confirm(f"Remove {len(found)} ACLs?", "Removed nothing", yes=yes)
    outcomes = admin.acls.delete(filters)
    removed = {
        str(each): None for some in outcomes.values() if not isinstance(some, AdminError) for each in some
    }
    if not removed and not as_json:
        click.echo("no ACL matches")
    print_outcomes("acl", "removed", removed, as_json=as_json)
    report_failures("", {str(key): each for key, each in outcomes.items() if isinstance(each, AdminError)})


def _resources(given: dict[str, Any]) -> list[_Named]:
    return [
        *((AclResourceType.TOPIC, each) for each in given["topics"]),
        *((AclResourceType.GROUP, each) for each in given["groups"]),
        *((AclResourceType.TRANSACTIONAL_ID, each) for each in given["transactional_ids"]),
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
    return list(
        dict.fromkeys(
            # There is but one cluster: its name is no prefix.
            AclBinding(
                kind,
                PatternType.LITERAL if kind is AclResourceType.CLUSTER else pattern,
                name,
                principal,
                host,
                operation,
                permission,
            )
            for (kind, name), operation in _rights(given)
            for principal, host, permission in principals
        )
    )


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
        return list(product(resources, [_OPERATIONS[each] for each in given["operations"] or ("All",)]))
    roles = [role for role, wanted in ((_PRODUCER, producer), (_CONSUMER, consumer)) if wanted]
    rights = [
        (each, operation) for role in roles for each in resources for operation in role.get(each[0], ())
    ]
    if given["idempotent"]:
        rights.append((_THE_CLUSTER, AclOperation.IDEMPOTENT_WRITE))
    return rights


def _as_object(binding: AclBinding) -> dict[str, str]:
    return {
        "resource": _title(binding.resource_type),
        "name": binding.resource_name,
        "pattern": binding.pattern_type.name.lower(),
        "principal": binding.principal,
        "host": binding.host,
        "operation": _title(binding.operation),
        "permission": binding.permission.name.lower(),
    }
