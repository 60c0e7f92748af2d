"""`korvet groups`: lists, describes and deletes consumer groups, and moves what they have committed.

Knows flags and tables; what is asked stands in `korvet.admin`, and `reset-offsets` in a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.bootstrap import (
    broker_options,
    confirmed,
    connected,
    failures_told,
    print_table,
    shown,
    yes_option,
)
from korvet.cli.group import Group
from korvet.cli.names import GROUP
from korvet.cli.reset_offsets import reset_offsets

if TYPE_CHECKING:
    from korvet.admin import GroupDescription
    from korvet.admin.metrics import Lags
    from korvet.admin.progress import Progress

_UNKNOWN = "-"
_OPS_PORT = 9093
# Kafka's GroupState; Korvet's groups know the first five. A broker takes any word, and a slip would list nothing.
_STATES = (
    *("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"),
    *("Assigning", "Reconciling", "NotReady"),
)


class _State(click.Choice):  # type: ignore[type-arg]  # before click 8.2 it takes none
    """A state in any case; click's own message has all of them in lower case."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:  # noqa: ARG002 - as click has it
        """Return what is told of a word that is no state."""
        return f"{value!r} is none of {', '.join(_STATES)}"


@click.group(cls=Group)
def groups() -> None:
    """List, describe and delete consumer groups, and move their offsets; of any Kafka broker."""


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=_State(_STATES, case_sensitive=False),
    metavar="STATE",
    help="Only groups in this state, as Empty; may be repeated.",
)
@broker_options
def list_groups(bootstrap_server: str, timeout: float, states: tuple[str, ...], *, as_json: bool) -> None:
    """List the groups with their states."""
    with connected(bootstrap_server, timeout) as admin:
        found = admin.groups.list(states=states)
    if as_json:
        rows = [
            {
                "group": each.group_id,
                "state": each.state,
                "protocol_type": each.protocol_type,
                "type": each.type,
            }
            for each in found
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        cells = [(each.group_id, each.state or _UNKNOWN, each.protocol_type or _UNKNOWN) for each in found]
        print_table(("Group", "State", "Protocol type"), cells)


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP)
@click.option("--all-groups", is_flag=True, help="Every group there is.")
@click.option("--members", is_flag=True, help="One line for each member, instead of for each partition.")
@click.option(
    "--metrics",
    "ops",
    multiple=True,
    metavar="HOST:PORT",
    help="Where a broker of Korvet tells its metrics: lag as last counted there; may be repeated.",
)
@broker_options
def describe(
    bootstrap_server: str,
    timeout: float,
    group_ids: tuple[str, ...],
    ops: tuple[str, ...],
    *,
    all_groups: bool,
    members: bool,
    as_json: bool,
) -> None:
    """Show state, members and offsets of groups, and how far they are behind.

    Lag is in records, from the committed offset to the end of the log; "-" where the protocol does not tell it: for a
    topic in storage format `record` whose end the group has not reached. With --metrics it is what the cluster has
    counted, at most log.figures.interval.ms ago, with the age of the first of these records in seconds: give all
    brokers, since one of them counts for all.
    """
    if all_groups == bool(group_ids):
        raise click.UsageError("name groups, or give --all-groups")
    from korvet.admin import AdminError  # noqa: PLC0415 - other commands start without it
    from korvet.admin.progress import progress_of  # noqa: PLC0415 - the same

    with connected(bootstrap_server, timeout) as admin:
        asked = [each.group_id for each in admin.groups.list()] if all_groups else group_ids
        outcomes = admin.groups.describe(asked)
        found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
        wanted = [] if members and not as_json else found
        counted = _counted(ops, timeout)
        progress = progress_of(admin, wanted, counted.records, counted.seconds)
    rows = {name: [_row(each) for each in some] for name, some in progress.items()}
    if as_json:
        objects = [_as_object(each, rows[each.group_id]) for each in found]
        click.echo(json.dumps(objects, indent=2))
    else:
        for each in found:
            _print_group(each, rows.get(each.group_id, ()), members=members, ages=bool(ops))
    failures_told("group", {name: each for name, each in outcomes.items() if isinstance(each, AdminError)})


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP, required=True)
@yes_option
@broker_options
def delete(
    bootstrap_server: str, timeout: float, group_ids: tuple[str, ...], *, yes: bool, as_json: bool
) -> None:
    """Delete groups that have no members, with all that they have committed."""
    question = f"Delete {', '.join(group_ids)} with all committed offsets?"
    confirmed(question, "nothing is deleted", yes=yes)
    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.groups.delete(group_ids)
    failed = {name: error for name, error in outcomes.items() if error is not None}
    if as_json:
        rows = [
            {"group": name, "error": None if error is None else str(error)}
            for name, error in outcomes.items()
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for name in outcomes:
            if name not in failed:
                click.echo(f"deleted {shown(name)}")
    failures_told("group", failed)


groups.add_command(reset_offsets)


def _counted(ops: Sequence[str], timeout: float) -> Lags:
    """Return what the brokers at these addresses have counted; raises AdminError."""
    from korvet.admin import metrics  # noqa: PLC0415 - the same
    from korvet.admin.client import address_of  # noqa: PLC0415 - other commands start without it

    try:
        addresses = [address_of(each, _OPS_PORT) for each in ops]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from error
    found = metrics.Lags({}, {})
    for address in addresses:
        told = metrics.group_lags(address, timeout)
        found.records.update(told.records)
        found.seconds.update(told.seconds)
    return found


def _row(progress: Progress) -> dict[str, Any]:
    """Return the values of a partition by name, None where there is none."""
    committed, member = progress.committed, progress.member
    return {
        "topic": progress.partition.topic,
        "partition": progress.partition.partition,
        "committed": committed.offset if committed else None,
        "metadata": committed.metadata if committed else None,
        "end": progress.end,
        "lag": progress.lag,
        "lag_seconds": progress.lag_seconds,
        "member": member.member_id if member else None,
    }


def _as_object(group: GroupDescription, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    members = [
        {
            "member": each.member_id,
            "instance": each.instance_id,
            "client": each.client_id,
            "host": each.client_host,
            "partitions": None if each.partitions is None else [str(place) for place in each.partitions],
        }
        for each in group.members
    ]
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "members": members,
        "offsets": list(rows),
    }


def _print_group(
    group: GroupDescription, rows: Sequence[dict[str, Any]], *, members: bool, ages: bool
) -> None:
    protocol = f", {group.protocol}" if group.protocol else ""
    count = f"{len(group.members)} member{'' if len(group.members) == 1 else 's'}"
    click.echo(shown(f"{group.group_id}: {group.state}, {count}{protocol}"))
    if members:
        titles: tuple[str, ...] = ("Member", "Instance", "Client", "Host", "Partitions")
        cells = [
            (
                each.member_id,
                each.instance_id or _UNKNOWN,
                each.client_id,
                each.client_host,
                _UNKNOWN if each.partitions is None else " ".join(map(str, each.partitions)),
            )
            for each in group.members
        ]
        print_table(titles, cells)
        return
    columns = {name: name.capitalize() for name in ("topic", "partition", "committed", "end", "lag")}
    if ages:
        columns["lag_seconds"] = "Seconds"
    columns["member"] = "Member"
    told = [tuple(_cell(row[name]) for name in columns) for row in rows]
    numbers = ("Partition", "Committed", "End", "Lag", "Seconds")
    print_table(list(columns.values()), told, numbers=numbers)


def _cell(value: object) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.1f}" if isinstance(value, float) else str(value)
