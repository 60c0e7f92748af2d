"""`korvet groups reset-offsets`: moves what a group has committed, once it was shown and is wished for.

Knows how a target is written; what it comes to is worked out in `korvet.admin.reset`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from korvet.cli import places
from korvet.cli.bootstrap import broker_options, connected, failures_told, print_table
from korvet.cli.names import GROUP
from korvet.cli.times import milliseconds_of

if TYPE_CHECKING:
    from korvet.admin import TopicPartition
    from korvet.admin.reset import Move, Target

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
    from korvet.admin import EARLIEST, LATEST, reset  # noqa: PLC0415 - other commands start without it

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
