"""`korvet lake status`: how far topics are archived, and how far behind that is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.bootstrap import print_table, shown
from korvet.cli.lake_options import failures_of_lake_told, lake_of, lake_options
from korvet.cli.progress import amount
from korvet.cli.run import FAILED

if TYPE_CHECKING:
    from korvet.lake.status import PartitionStatus

_UNKNOWN = "-"
_TITLES = ("Topic", "Partition", "Start", "In Redis from", "Archived", "End", "Lag", "Lag s", "Files", "Size")


@click.command()
@lake_options
def status(
    *,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> int:
    """Show how far each partition is archived.

    "Lag" counts the records that are not in the table, and "Lag s" is the age of the oldest of them by its timestamp.
    """
    wanted = lake_of(**where)
    with failures_of_lake_told():
        from korvet.lake.status import status as ask  # noqa: PLC0415 - other commands start without Delta

        found = ask(wanted.source, wanted.uri, wanted.storage_options, wanted.topics)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        print_table(_TITLES, [_cells(each) for each in found], numbers=_TITLES[1:])
    failed = [each for each in found if each.error is not None]
    for each in failed:
        click.echo(shown(f"Error: {each.topic}-{each.partition}: {each.error}"), err=True)
    return FAILED if failed else 0


def _cells(each: PartitionStatus) -> tuple[str, ...]:
    seconds = None if each.lag_ms is None else f"{each.lag_ms / 1000:.1f}"
    offsets = (each.start, each.local_start, each.archived, each.end, each.lag_records, seconds)
    told = [_UNKNOWN if value is None else str(value) for value in offsets]
    return (each.topic, str(each.partition), *told, str(each.files), amount(each.bytes))
