"""`korvet groups`: lists, describes and deletes consumer groups, and moves what they have committed.

Knows flags and tables; what is asked stands in `korvet.admin`, and `reset-offsets` in a file of its own.

`korvet groups reset-offsets`: moves what a group has committed, once it was shown and is wished for.

Knows how a target is written; what it comes to is worked out in `korvet.admin.reset`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from korvet.cli import arguments as places
from korvet.cli.arguments import GROUP, milliseconds_of
from korvet.cli.bootstrap import (
    Group,
    broker_options,
    confirmed,
    connected,
    failures_told,
    print_table,
    shown,
    yes_option,
)

if TYPE_CHECKING:
    from korvet.admin.reset import Move, Target
    from korvet.admin.types import TopicPartition

_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)
_OFFSET = click.IntRange(0, 2**63 - 1)
_SHIFT = click.IntRange(-(2**63) + 1, 2**63 - 1)


@click.command("reset-offsets")
@click.argument("group_id", metavar="GROUP", type=GROUP)
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end: only what comes from now on.")
@click.option("--to-offset", type=_OFFSET, metavar="N", help="To an offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record from a time on, as ISO 8601; UTC without a zone.",
)
@click.option("--to-timestamp", type=_OFFSET, metavar="MS", help="The same, in ms since 1970.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="The same, so long before now.")
@click.option("--shift-by", type=_SHIFT, metavar="N", help="So many offsets forth, or back where negative.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T[:0,1]",
    help="A topic, or some partitions of it; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All that the group has committed.")
@click.option("--execute/--dry-run", help="Do it, or only show what would be done, which is the default.")
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
    **targets: Any,  # noqa: ANN401 - one of each kind, told apart by name
) -> None:
    """Move the committed offsets of a group without members; without --execute only show what would be done.

    An offset before the first record or behind the end becomes the nearest one inside the log. Offsets of topics in
    storage format `record` are not dense: a shift there is no number of records.
    """
    if all_topics == bool(topics):
        raise click.UsageError("name topics with --topic, or give --all-topics")
    target = target_of(targets)
    wished = None if all_topics else places.topics("--topic", topics)
    from korvet.admin import reset  # noqa: PLC0415 - other commands start without it

    failed = {}
    with connected(bootstrap_server, timeout) as admin:
        reset.check_movable(admin, group_id)
        moves = reset.plan(admin, group_id, reset.scope(admin, group_id, wished), target)
        if execute:
            outcomes = admin.offsets.alter(group_id, {place: move.after for place, move in moves.items()})
            failed = {place: error for place, error in outcomes.items() if error is not None}
    done = {place: move for place, move in moves.items() if place not in failed}
    _print(group_id, done, executed=execute, as_json=as_json)
    failures_told("partition", {str(place): error for place, error in failed.items()})


def target_of(targets: Mapping[str, Any]) -> Target:
    """Return the one target that the flags name, by their names; raises UsageError for none, several or a bad one."""
    from korvet.admin import reset  # noqa: PLC0415 - other commands start without it
    from korvet.admin.offsets import EARLIEST, LATEST  # noqa: PLC0415 - other commands start without it

    makers: dict[str, Callable[[Any], Target]] = {
        "to_earliest": lambda _: reset.ToTimestamp(EARLIEST),
        "to_latest": lambda _: reset.ToTimestamp(LATEST),
        "to_offset": reset.ToOffset,
        "to_datetime": lambda text: reset.ToTimestamp(_datetime_ms(text)),
        "to_timestamp": reset.ToTimestamp,
        "by_duration": lambda text: reset.ToTimestamp(max(0, int(time.time() * 1000) - _duration_ms(text))),
        "shift_by": reset.ShiftBy,
    }
    given = {name: value for name, value in targets.items() if value is not None and value is not False}
    if len(given) != 1:
        # As `makers` has them: click passes what is given first.
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in makers)
        raise click.UsageError(f"give one of {flags}")
    [(name, value)] = given.items()
    return makers[name](value)


def _datetime_ms(text: str) -> int:
    try:
        return milliseconds_of(text)
    except ValueError as error:
        message = f"--to-datetime takes 2026-01-31T12:00:00+01:00, from 1970 on, not {text!r}"
        raise click.UsageError(message) from error


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--by-duration takes P1DT2H30M10S or parts of it, not {text!r}")
    parts = {name: float(value) for name, value in match.groupdict(default="0").items()}
    try:
        return timedelta(**parts) // timedelta(milliseconds=1)
    except OverflowError as error:
        raise click.UsageError(f"--by-duration {text} is longer than a calendar is") from error


def _print(group_id: str, moves: Mapping[TopicPartition, Move], *, executed: bool, as_json: bool) -> None:
    if as_json:
        rows = [
            {"topic": place.topic, "partition": place.partition, "before": move.before, "after": move.after}
            for place, move in moves.items()
        ]
        click.echo(json.dumps({"group": group_id, "executed": executed, "offsets": rows}, indent=2))
        return
    cells = [
        (place.topic, str(place.partition), "-" if move.before is None else str(move.before), str(move.after))
        for place, move in moves.items()
    ]
    print_table(("Topic", "Partition", "Before", "After"), cells, numbers=("Partition", "Before", "After"))
    if not executed:
        click.echo("Nothing is changed: this is what --execute would do.")


if TYPE_CHECKING:
    from korvet.admin.groups import GroupDescription
    from korvet.admin.lag import Lags, Progress

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
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it
    from korvet.admin.lag import progress_of  # noqa: PLC0415 - the same

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
    from korvet.admin import lag as metrics  # noqa: PLC0415 - the same
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
