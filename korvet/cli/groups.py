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
from korvet.admin.groups import CLASSIC, CONSUMER, SHARE, STREAMS
from korvet.admin.lag import CountedLags, PartitionProgress, counted_lags, progress_of
from korvet.admin.offsets import EARLIEST, LATEST, ShiftBy, Target, ToOffset, ToTimestamp
from korvet.admin.types import TIME_CODED_FROM, TopicPartition
from korvet.cli.options import (
    GROUP,
    AdminGroup,
    option,
    parse_time_of,
    parse_topics,
    repeated,
    without_errors,
    yes_option,
)
from korvet.cli.output import confirm, json_wanted, print_outcomes, printable, printed_json, report_failures
from korvet.cli.tables import Column, as_objects, number, numbers, print_result, tabulate

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


def _if_any(text: str) -> str | None:
    return text or None


_LISTED = (
    Column("group", "group_id"),
    Column("state", text=_if_any),
    Column("protocol_type", text=_if_any),
    Column("type", text=_if_any),
)
_MEMBER = (
    Column("member", "member_id"),
    Column("instance", "instance_id"),
    Column("client", "client_id"),
    Column("host", "client_host"),
    Column(
        "partitions",
        lambda member: None if member.partitions is None else list(map(str, member.partitions)),
        text=" ".join,
    ),
)
_PROGRESS = (
    Column("topic"),
    *numbers("partition", "start", "committed", "end", "lag"),
    number("lag_seconds", title="Seconds"),
    Column("member"),
)
_RESET = (Column("topic"), *numbers("partition", "before", "after"))
_groups_argument = click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP)


class _GroupState(click.Choice):  # type: ignore[type-arg]  # before click 8.2 it takes none
    """A state in any case; click's own message has all of them in lower case."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:  # noqa: ARG002 - as click has it
        return f"{value!r} is none of {', '.join(_STATES)}"


@click.group(cls=AdminGroup)
def groups() -> None:
    """List, describe and delete groups, and reset committed offsets; of any Kafka cluster."""


@groups.command("list")
@repeated(
    "--state STATE",
    "Only groups in this state, as Empty",
    _GroupState(_STATES, case_sensitive=False),
    name="states",
)
@repeated(
    "--type TYPE",
    "Only groups of this type: classic, consumer, share or streams",
    click.Choice((CLASSIC, CONSUMER, SHARE, STREAMS), case_sensitive=False),
    name="types",
)
def list_groups(admin: AdminClient, states: tuple[str, ...], types: tuple[str, ...]) -> None:
    """List the groups with their states and types."""
    listed = admin.groups.list(states=states, types=types)
    print_result(listed, _LISTED, empty="no such groups" if states or types else "no groups")


@groups.command()
@_groups_argument
@option("--all-groups", "All groups.")
@option("--members", "Print one line for each member, instead of for each partition.")
@repeated(
    "--metrics HOST:PORT", "Address of a Korvet broker's /metrics, for the lag as counted there", name="ops"
)
def describe(
    admin: AdminClient, group_ids: tuple[str, ...], ops: tuple[str, ...], *, all_groups: bool, members: bool
) -> None:
    """Show state, members, offsets and lag of groups.

    Lag is the number of records from the committed offset to the end of the log. "-": the topic has
    offset.encoding=time, and the group has not reached the end. "up to N": the group has committed nothing in the
    partition; its auto.offset.reset says if it reads all N records or none. With --metrics the lag is the last count
    of the cluster, with the age in seconds of the oldest record of the lag; "uncounted": not counted yet. Counts are
    as old as log.figures.interval.ms, in large clusters up to five minutes. Name the metrics of all brokers: one of
    them counts for all.

    For a share group the offset is the group's start: its first record that is not acknowledged. The lag counts
    the unacknowledged records from there on, records that members hold now included.
    """
    if all_groups == bool(group_ids):
        raise click.UsageError("name groups, or give --all-groups")
    wanted = [group.group_id for group in admin.groups.list()] if all_groups else group_ids
    outcomes = admin.groups.describe(wanted)
    described = list(without_errors(outcomes).values())
    counted = _counted(ops, admin.deadline().left())
    only_members = members and not json_wanted()
    progress = progress_of(admin, [] if only_members else described, counted.records, counted.seconds)
    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "type": group.type,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "members": as_objects(group.members, _MEMBER),
            "offsets": [
                _row(partition, is_share=group.type == SHARE)
                for partition in progress.get(group.group_id, ())
            ],
        }
        for group in described
    ]
    if not printed_json(rows):
        for row in rows:
            _print_group(row, members=members, ages=bool(ops))
        _print_times([] if members else rows)
    report_failures("group", outcomes)


def _counted(ops: Sequence[str], timeout: float) -> CountedLags:
    """Return what the brokers at these addresses have counted. Raises AdminError."""
    try:
        addresses = [parse_address(text, _OPS_PORT) for text in ops]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from error
    total = CountedLags({}, {})
    for address in addresses:
        counted = counted_lags(address, timeout)
        total.records.update(counted.records)
        total.seconds.update(counted.seconds)
    return total


def _row(progress: PartitionProgress, *, is_share: bool) -> dict[str, Any]:
    offset, member = progress.committed, progress.member
    committed = None if is_share else offset
    return {
        **progress.partition._asdict(),
        "start": offset.offset if offset and is_share else None,
        "committed": committed.offset if committed else None,
        "metadata": committed.metadata if committed else None,
        "end": progress.end,
        "lag": progress.lag,
        "lag_seconds": progress.lag_seconds,
        "uncommitted": progress.uncommitted,
        "member": member.member_id if member else None,
    }


def _print_group(group: Mapping[str, Any], *, members: bool, ages: bool) -> None:
    protocol = f", {group['protocol']}" if group["protocol"] else ""
    count = f"{len(group['members'])} member{'' if len(group['members']) == 1 else 's'}"
    click.echo(printable(f"{group['group']}: {group['state']}, {count}{protocol}"))
    if members:
        tabulate(group["members"], _MEMBER, empty="no members")
        return
    is_share = group["type"] == SHARE
    shown = ["topic", "partition", "start" if is_share else "committed", "end", "lag"]
    shown += ["lag_seconds"] * ages + ["member"] * (not is_share)
    rows = [row | _lag_cells(row, ages=ages) for row in group["offsets"]]
    empty = f"no {'starts' if is_share else 'committed offsets'} and no assigned partitions"
    tabulate(rows, _PROGRESS, empty=empty, shown=shown)


def _lag_cells(row: Mapping[str, Any], *, ages: bool) -> dict[str, str]:
    """Return what a table shows of a row's lag where it is not the number."""
    cells: dict[str, str] = {}
    if ages and row["lag_seconds"] is not None:
        cells["lag_seconds"] = f"{row['lag_seconds']:.1f}"
    elif ages and (row["committed"], row["start"]) != (None, None) and row["end"] is not None:
        # A broker could count it and has not: it may take log.figures.interval.ms.
        cells = {name: _UNCOUNTED for name in ("lag", "lag_seconds") if row[name] is None}
    if row["uncommitted"] is not None:
        cells["lag"] = f"up to {row['uncommitted']}"
    return cells


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


@groups.command()
@click.argument("group_ids", metavar="GROUP...", nargs=-1, type=GROUP, required=True)
@yes_option
def delete(admin: AdminClient, group_ids: tuple[str, ...], *, yes: bool) -> None:
    """Delete groups that have no members, with their committed offsets; for share groups with all acknowledgements."""
    confirm(f"Delete {', '.join(group_ids)} with all committed offsets?", "nothing is deleted", yes=yes)
    print_outcomes("group", "deleted", admin.groups.delete(group_ids))


@groups.command("reset-offsets")
@click.argument("group_id", metavar="GROUP", type=GROUP)
@option("--to-earliest", "To the first record.")
@option("--to-latest", "To the end: only records that arrive from now on.")
@option("--to-offset N", "To an offset.", _OFFSET)
@option("--to-datetime TIME", "To the first record at or after a time, as ISO 8601; UTC without a zone.")
@option("--to-timestamp MS", "The same, in ms since 1970.", _OFFSET)
@option("--by-duration PnDTnHnMnS", "The same, for this long before now.")
@option("--shift-by N", "Forward by N offsets, or back if N is negative.", _SHIFT)
@repeated("--topic T[:0,1]", "A topic, or some partitions of it", name="topics")
@option("--all-topics", "All partitions with a committed offset.")
@option("--execute/--dry-run", "Commit the new offsets, or only show them, which is the default.")
def reset_offsets(
    admin: AdminClient,
    group_id: str,
    topics: tuple[str, ...],
    *,
    all_topics: bool,
    execute: bool,
    **targets: Any,  # noqa: ANN401 - the flags that `_target` takes
) -> None:
    """Reset the committed offsets of a group without members; without --execute only show the new offsets.

    For a share group it moves the start: all records from there on are delivered, acknowledged ones too. An offset
    outside the log becomes the nearest one inside. With offset.encoding=time offsets have gaps: a shift by N is not
    a shift by N records.
    """
    if all_topics == bool(topics):
        raise click.UsageError("name topics with --topic, or give --all-topics")
    named = None if all_topics else parse_topics("--topic", topics)
    resets = admin.offsets.plan_reset(group_id, named, _target(targets))
    outcomes: Mapping[TopicPartition, AdminError | None] = {}
    if execute:
        outcomes = admin.offsets.reset(group_id, resets)
    rows = [
        key._asdict() | msgspec.structs.asdict(reset)
        for key, reset in resets.items()
        if outcomes.get(key) is None
    ]
    if not printed_json({"group": group_id, "executed": execute, "offsets": rows}):
        tabulate(rows, _RESET, empty="no committed offsets")
        if not execute:
            click.echo("Dry run: nothing is changed without --execute.")
    report_failures("partition", outcomes)


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
