"""`korvet groups`: lists, describes and deletes groups, and resets their committed offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.connection import parse_address
from korvet.admin.errors import AdminError
from korvet.admin.groups import CLASSIC, CONSUMER, SHARE, STREAMS, GroupDescription
from korvet.admin.lag import CountedLags, PartitionProgress, counted_lags, progress_of
from korvet.admin.offsets import EARLIEST, LATEST, ShiftBy, Target, ToOffset, ToTimestamp
from korvet.admin.types import TIME_CODED_FROM, TopicPartition
from korvet.cli.options import (
    GROUP,
    parse_time_of,
    parse_topics,
    repeated_option,
    with_admin,
    yes_option,
)
from korvet.cli.output import (
    confirm,
    print_json,
    print_outcomes,
    print_rows,
    printable,
    report_failures,
)
from korvet.cli.run import CommandGroup

_OPS_PORT = 9093
_UNCOUNTED = "uncounted"
_OFFSET = click.IntRange(0, 2**63 - 1)
_SHIFT = click.IntRange(-(2**63) + 1, 2**63 - 1)
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)
# Kafka's GroupState; Korvet's groups have all but the last. A broker accepts any word, so a slip would list nothing.
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
    """List, describe and delete groups, and reset committed offsets; of any Kafka cluster."""


@groups.command("list")
@repeated_option(
    "--state",
    "states",
    metavar="STATE",
    text="Only groups in this state, as Empty",
    kind=_GroupState(_STATES, case_sensitive=False),
)
@repeated_option(
    "--type",
    "types",
    metavar="TYPE",
    text="Only groups of this type: classic, consumer, share or streams",
    kind=click.Choice((CLASSIC, CONSUMER, SHARE, STREAMS), case_sensitive=False),
)
@with_admin
def list_groups(
    admin: AdminClient, states: tuple[str, ...], types: tuple[str, ...], *, as_json: bool
) -> None:
    """List the groups with their states and types."""
    rows = [
        {
            "group": each.group_id,
            "state": each.state,
            "protocol_type": each.protocol_type,
            "type": each.type,
        }
        for each in admin.groups.list(states=states, types=types)
    ]
    if as_json:
        print_json(rows)
    else:
        columns = {"group": "Group", "state": "State", "protocol_type": "Protocol type", "type": "Type"}
        shown = [{name: row[name] or None for name in columns} for row in rows]
        print_rows(columns, shown, empty="no such groups" if states or types else "no groups")


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP)
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option(
    "--members", is_flag=True, help="Print one line for each member, instead of for each partition."
)
@repeated_option(
    "--metrics",
    "ops",
    metavar="HOST:PORT",
    text="Address of a Korvet broker's /metrics, for the lag as counted there",
)
@with_admin
def describe(
    admin: AdminClient,
    group_ids: tuple[str, ...],
    ops: tuple[str, ...],
    *,
    all_groups: bool,
    members: bool,
    as_json: bool,
) -> None:
    """Show state, members, offsets and lag of groups.

    Lag is in records, from the committed offset to the end of the log. It is "-" if offsets do not show it: for a topic
    with offset.encoding=time whose end the group has not reached. Where nothing is committed it is "up to" the records
    of the log: the group starts at the first of them or after the last, as its auto.offset.reset says. With --metrics
    it is what the cluster has counted, at most log.figures.interval.ms ago, or 10 ms for each
    partition of the cluster if that is longer, and five minutes at most, with the age of the oldest of these records
    in seconds; "uncounted" if it has not been counted yet. Give all brokers, since one of them counts for all.

    A share group has a start in place of a committed offset: the first record that it is not done with. Its lag is what
    its broker counts: the records from there on that it is not done with, those that members have now among them.
    """
    if all_groups == bool(group_ids):
        raise click.UsageError("name groups, or give --all-groups")
    wanted = [each.group_id for each in admin.groups.list()] if all_groups else group_ids
    outcomes = admin.groups.describe(wanted)
    found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
    counted = _counted(ops, click.get_current_context().params["timeout"])
    progress = progress_of(admin, [] if members and not as_json else found, counted.records, counted.seconds)
    rows = [_as_object(each, progress.get(each.group_id, ())) for each in found]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            protocol = f", {row['protocol']}" if row["protocol"] else ""
            count = f"{len(row['members'])} member{'' if len(row['members']) == 1 else 's'}"
            click.echo(printable(f"{row['group']}: {row['state']}, {count}{protocol}"))
            if members:
                _print_members(row["members"])
            else:
                _print_partitions(row["offsets"], ages=bool(ops), is_share=row["type"] == SHARE)
        _print_times([] if members else rows)
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


def _row(progress: PartitionProgress, *, is_share: bool) -> dict[str, Any]:
    at, member = progress.committed, progress.member
    committed = None if is_share else at
    return {
        **progress.partition._asdict(),
        "start": at.offset if at and is_share else None,
        "committed": committed.offset if committed else None,
        "metadata": committed.metadata if committed else None,
        "end": progress.end,
        "lag": progress.lag,
        "lag_seconds": progress.lag_seconds,
        "uncommitted": progress.uncommitted,
        "member": member.member_id if member else None,
    }


def _as_object(group: GroupDescription, progress: Sequence[PartitionProgress]) -> dict[str, Any]:
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
        "type": group.type,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "members": members,
        "offsets": [_row(each, is_share=group.type == SHARE) for each in progress],
    }


def _print_members(members: Sequence[dict[str, Any]]) -> None:
    columns = {name: name.capitalize() for name in ("member", "instance", "client", "host", "partitions")}
    rows = [
        each if each["partitions"] is None else each | {"partitions": " ".join(each["partitions"])}
        for each in members
    ]
    print_rows(columns, rows, empty="no members")


def _print_partitions(rows: Sequence[dict[str, Any]], *, ages: bool, is_share: bool) -> None:
    at = "start" if is_share else "committed"
    columns = {name: name.capitalize() for name in ("topic", "partition", at, "end", "lag")}
    if ages:
        columns["lag_seconds"] = "Seconds"
        rows = [
            row | _not_counted(row)
            if row["lag_seconds"] is None
            else row | {"lag_seconds": f"{row['lag_seconds']:.1f}"}
            for row in rows
        ]
    rows = [
        row if row["uncommitted"] is None else row | {"lag": f"up to {row['uncommitted']}"} for row in rows
    ]
    if not is_share:
        columns["member"] = "Member"
    numbers = ("Partition", "Start", "Committed", "End", "Lag", "Seconds")
    empty = f"no {'starts' if is_share else 'committed offsets'} and no assigned partitions"
    print_rows(columns, rows, numbers, empty=empty)


def _print_times(groups: Sequence[dict[str, Any]]) -> None:
    """Say of which topics in the tables the offsets are times."""
    rows = [row for group in groups if group["type"] != SHARE for row in group["offsets"]]
    topics = sorted(
        {row["topic"] for row in rows if row["end"] is not None and row["end"] >= TIME_CODED_FROM}
    )
    if topics:
        click.echo(
            f"Lag counts records. Offsets of {printable(', '.join(topics))} are times (offset.encoding=time): "
            "end minus committed offset is not a number of records."
        )


def _not_counted(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what a row shows for what a broker could count and has not: it may take log.figures.interval.ms."""
    if (row["committed"] is None and row["start"] is None) or row["end"] is None:
        return {}
    return {name: _UNCOUNTED for name in ("lag", "lag_seconds") if row[name] is None}


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP, required=True)
@yes_option
@with_admin
def delete(admin: AdminClient, group_ids: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """Delete groups that have no members, with all their committed offsets; of share groups all that they have read."""
    question = f"Delete {', '.join(group_ids)} with all committed offsets?"
    confirm(question, "nothing is deleted", yes=yes)
    print_outcomes("group", "deleted", admin.groups.delete(group_ids), as_json=as_json)


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
@repeated_option("--topic", "topics", metavar="T[:0,1]", text="A topic, or some partitions of it")
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--execute/--dry-run", help="Commit the new offsets, or only show them, which is the default.")
@with_admin
def reset_offsets(
    admin: AdminClient,
    group_id: str,
    topics: tuple[str, ...],
    *,
    all_topics: bool,
    execute: bool,
    as_json: bool,
    **targets: Any,  # noqa: ANN401 - the flags that `_target` takes
) -> None:
    """Reset the committed offsets of a group without members; without --execute only show the new offsets.

    Of a share group it moves the starts: all from there on is delivered, also what was acknowledged before.
    An offset outside the log becomes the nearest one inside. With offset.encoding=time offsets are not
    dense: a shift by N there is not a shift by N records.
    """
    if all_topics == bool(topics):
        raise click.UsageError("name topics with --topic, or give --all-topics")
    target = _target(targets)
    named = None if all_topics else parse_topics("--topic", topics)
    resets = admin.offsets.plan_reset(group_id, named, target)
    outcomes: Mapping[TopicPartition, AdminError | None] = {}
    if execute:
        outcomes = admin.offsets.reset(group_id, resets)
    rows = [
        key._asdict() | msgspec.structs.asdict(each)
        for key, each in resets.items()
        if outcomes.get(key) is None
    ]
    if as_json:
        print_json({"group": group_id, "executed": execute, "offsets": rows})
    else:
        columns = {name: name.capitalize() for name in ("topic", "partition", "before", "after")}
        print_rows(columns, rows, ("Partition", "Before", "After"), empty="no committed offsets")
        if not execute:
            click.echo("Dry run: nothing is changed without --execute.")
    report_failures("partition", {str(key): outcome for key, outcome in outcomes.items()})


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
