"""`korvet groups`: lists, describes and deletes consumer groups, and resets their committed offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import click

from korvet.admin.connection import parse_address
from korvet.admin.errors import AdminError
from korvet.admin.groups import GroupDescription
from korvet.admin.lag import CountedLags, PartitionProgress, counted_lags, progress_of
from korvet.admin.offsets import EARLIEST, LATEST, OffsetReset, ShiftBy, Target, ToOffset, ToTimestamp
from korvet.admin.types import TopicPartition
from korvet.cli.options import GROUP, broker_options, connected, parse_time_of, parse_topics, yes_option
from korvet.cli.output import (
    NONE,
    cell,
    confirm,
    print_json,
    print_outcomes,
    print_table,
    printable,
    report_failures,
)
from korvet.cli.run import CommandGroup

_OPS_PORT = 9093
_OFFSET = click.IntRange(0, 2**63 - 1)
_SHIFT = click.IntRange(-(2**63) + 1, 2**63 - 1)
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)
# Kafka's GroupState; Korvet's groups have the first five. A broker accepts any word, so a slip would list nothing.
_STATES = (
    *("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"),
    *("Assigning", "Reconciling", "NotReady"),
)


class _GroupState(click.Choice):  # type: ignore[type-arg]  # before click 8.2 it takes none
    """A state in any case; click's own message has all of them in lower case."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:  # noqa: ARG002 - as click has it
        """Return the message for a word that is no state."""
        return f"{value!r} is none of {', '.join(_STATES)}"


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe and delete consumer groups, and reset their offsets; of any Kafka cluster."""


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=_GroupState(_STATES, case_sensitive=False),
    metavar="STATE",
    help="Only groups in this state, as Empty; may be repeated.",
)
@broker_options
def list_groups(bootstrap_server: str, timeout: float, states: tuple[str, ...], *, as_json: bool) -> None:
    """List the groups with their states."""
    with connected(bootstrap_server, timeout) as admin:
        found = admin.groups.list(states=states)
    if as_json:
        print_json(
            [
                {
                    "group": each.group_id,
                    "state": each.state,
                    "protocol_type": each.protocol_type,
                    "type": each.type,
                }
                for each in found
            ]
        )
    else:
        rows = [(each.group_id, each.state or NONE, each.protocol_type or NONE) for each in found]
        print_table(("Group", "State", "Protocol type"), rows)


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP)
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option(
    "--members", is_flag=True, help="Print one line for each member, instead of for each partition."
)
@click.option(
    "--metrics",
    "ops",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of a Korvet broker's /metrics, for the lag as counted there; may be repeated.",
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
    """Show state, members, offsets and lag of groups.

    Lag is in records, from the committed offset to the end of the log. It is "-" if offsets do not show it: for a topic
    in storage format `record` whose end the group has not reached. With --metrics it is what the cluster has counted,
    at most log.figures.interval.ms ago, with the age of the oldest of these records in seconds. Give all brokers, since
    one of them counts for all.
    """
    if all_groups == bool(group_ids):
        raise click.UsageError("name groups, or give --all-groups")
    with connected(bootstrap_server, timeout) as admin:
        wanted = [each.group_id for each in admin.groups.list()] if all_groups else group_ids
        outcomes = admin.groups.describe(wanted)
        found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
        counted = _counted(ops, timeout)
        progress = progress_of(
            admin, [] if members and not as_json else found, counted.records, counted.seconds
        )
    rows = {name: [_row(each) for each in some] for name, some in progress.items()}
    if as_json:
        print_json([_as_object(each, rows[each.group_id]) for each in found])
    else:
        for each in found:
            protocol = f", {each.protocol}" if each.protocol else ""
            count = f"{len(each.members)} member{'' if len(each.members) == 1 else 's'}"
            click.echo(printable(f"{each.group_id}: {each.state}, {count}{protocol}"))
            if members:
                _print_members(each)
            else:
                _print_partitions(rows[each.group_id], ages=bool(ops))
    report_failures("group", outcomes)


def _counted(ops: Sequence[str], timeout: float) -> CountedLags:
    """Return what the brokers at these addresses have counted. Raises AdminError."""
    try:
        addresses = [parse_address(each, _OPS_PORT) for each in ops]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from error
    found = CountedLags({}, {})
    for address in addresses:
        counted = counted_lags(address, timeout)
        found.records.update(counted.records)
        found.seconds.update(counted.seconds)
    return found


def _row(progress: PartitionProgress) -> dict[str, Any]:
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
            "partitions": None if each.partitions is None else list(map(str, each.partitions)),
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


def _print_members(group: GroupDescription) -> None:
    rows = [
        (
            each.member_id,
            each.instance_id or NONE,
            each.client_id,
            each.client_host,
            NONE if each.partitions is None else " ".join(map(str, each.partitions)),
        )
        for each in group.members
    ]
    print_table(("Member", "Instance", "Client", "Host", "Partitions"), rows)


def _print_partitions(rows: Sequence[dict[str, Any]], *, ages: bool) -> None:
    columns = {name: name.capitalize() for name in ("topic", "partition", "committed", "end", "lag")}
    if ages:
        columns["lag_seconds"] = "Seconds"
        rows = [row | {"lag_seconds": _seconds(row["lag_seconds"])} for row in rows]
    columns["member"] = "Member"
    numbers = ("Partition", "Committed", "End", "Lag", "Seconds")
    print_table(list(columns.values()), [[cell(row[name]) for name in columns] for row in rows], numbers)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP, required=True)
@yes_option
@broker_options
def delete(
    bootstrap_server: str, timeout: float, group_ids: tuple[str, ...], *, yes: bool, as_json: bool
) -> None:
    """Delete groups that have no members, with all their committed offsets."""
    question = f"Delete {', '.join(group_ids)} with all committed offsets?"
    confirm(question, "nothing is deleted", yes=yes)
    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.groups.delete(group_ids)
    print_outcomes("group", "deleted", outcomes, as_json=as_json)


@groups.command("reset-offsets")
@click.argument("group_id", metavar="GROUP", type=GROUP)
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end: only records that arrive from now on.")
@click.option("--to-offset", type=_OFFSET, metavar="N", help="To an offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record at or after a time, as ISO 8601; UTC without a zone.",
)
@click.option("--to-timestamp", type=_OFFSET, metavar="MS", help="The same, in ms since 1970.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="The same, for this long before now.")
@click.option("--shift-by", type=_SHIFT, metavar="N", help="Forward by N offsets, or back if N is negative.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T[:0,1]",
    help="A topic, or some partitions of it; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--execute/--dry-run", help="Commit the new offsets, or only show them, which is the default.")
@broker_options
def reset_offsets(
    bootstrap_server: str,
    timeout: float,
    group_id: str,
    topics: tuple[str, ...],
    *,
    all_topics: bool,
    execute: bool,
    as_json: bool,
    **targets: Any,  # noqa: ANN401 - the flags that `_target` takes
) -> None:
    """Reset the committed offsets of a group without members; without --execute only show the new offsets.

    An offset outside the log becomes the nearest one inside. Offsets of topics in storage format `record` are not
    dense: a shift by N there is not a shift by N records.
    """
    if all_topics == bool(topics):
        raise click.UsageError("name topics with --topic, or give --all-topics")
    target = _target(targets)
    named = None if all_topics else parse_topics("--topic", topics)
    failed = {}
    with connected(bootstrap_server, timeout) as admin:
        resets = admin.offsets.plan_reset(group_id, named, target)
        if execute:
            outcomes = admin.offsets.alter(group_id, {key: each.after for key, each in resets.items()})
            failed = {key: error for key, error in outcomes.items() if error is not None}
    shown = {key: each for key, each in resets.items() if key not in failed}
    if as_json:
        _print_resets_as_json(group_id, shown, executed=execute)
    else:
        rows = [
            (key.topic, str(key.partition), cell(each.before), str(each.after)) for key, each in shown.items()
        ]
        titles = ("Topic", "Partition", "Before", "After")
        print_table(titles, rows, numbers=titles[1:])
        if not execute:
            click.echo("Dry run: nothing is changed without --execute.")
    report_failures("partition", {str(key): error for key, error in failed.items()})


def _print_resets_as_json(
    group_id: str, resets: Mapping[TopicPartition, OffsetReset], *, executed: bool
) -> None:
    rows = [
        {"topic": key.topic, "partition": key.partition, "before": each.before, "after": each.after}
        for key, each in resets.items()
    ]
    print_json({"group": group_id, "executed": executed, "offsets": rows})


def _target(targets: Mapping[str, Any]) -> Target:
    """Return the one target among the flags, which are given by their names."""
    makers: dict[str, Callable[[Any], Target]] = {
        "to_earliest": lambda _: ToTimestamp(EARLIEST),
        "to_latest": lambda _: ToTimestamp(LATEST),
        "to_offset": ToOffset,
        "to_datetime": lambda text: ToTimestamp(parse_time_of("--to-datetime", text)),
        "to_timestamp": ToTimestamp,
        "by_duration": lambda text: ToTimestamp(max(0, int(time.time() * 1000) - _duration_ms(text))),
        "shift_by": ShiftBy,
    }
    given = {name: value for name, value in targets.items() if value is not None and value is not False}
    if len(given) != 1:
        # In the order of `makers`: click passes the flags that are given first.
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in makers)
        raise click.UsageError(f"give one of {flags}")
    [(name, value)] = given.items()
    return makers[name](value)


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--by-duration takes P1DT2H30M10S or parts of it, not {text!r}")
    parts = {name: float(value) for name, value in match.groupdict(default="0").items()}
    try:
        return timedelta(**parts) // timedelta(milliseconds=1)
    except OverflowError as error:
        raise click.UsageError(f"--by-duration {text} is too long") from error
