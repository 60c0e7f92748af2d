"""`korvet lake expire`: lets go what logs are not to keep, and deletes files that no table names."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.bootstrap import confirmed, print_table, shown, yes_option
from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options
from korvet.cli.lake_rounds import rounds, rounds_options
from korvet.cli.progress import amount
from korvet.cli.run import FAILED

if TYPE_CHECKING:
    from korvet.lake.expiry import Round
    from korvet.lake.reader import TopicOfLake
    from korvet.lake.tables import Stored

_HOURS_MIN = 24


@click.command()
@lake_options
@click.option(
    "--vacuum-hours",
    "hours",
    type=click.IntRange(min=_HOURS_MIN),
    default=_HOURS_MIN,
    show_default=True,
    metavar="HOURS",
    help="Delete files that no table names since so long: they may still be read, or about to be named.",
)
@click.option("--remove-gone", is_flag=True, help="Delete the tables of topics that are gone.")
@yes_option
@rounds_options
def expire(
    hours: int,
    interval: float | None,
    *,
    remove_gone: bool,
    yes: bool,
    once: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> int:
    """Let logs keep what retention.ms and retention.bytes say, in Redis and the lake together.

    Files leave in the order of their offsets: the log starts behind them first, then they leave the table, and later
    the disk. Tables of topics that are gone are told of, and stay without --remove-gone. Exit code 1 where something
    could not be done.
    """
    if remove_gone and interval is not None:
        raise click.UsageError("--interval excludes --remove-gone")
    wanted = lake_of(**where)
    if remove_gone and wanted.topics:
        raise click.UsageError("--topic excludes --remove-gone: it names topics that are there")

    def work() -> int:
        done = _expire(wanted, hours, dry_run=dry_run)
        removed: dict[TopicOfLake, Stored] = {}
        try:
            if remove_gone and not dry_run:
                removed = _remove(wanted, done.gone, yes=yes)
        finally:
            # Again and again, only what is worth a line.
            if interval is None or done.moved:
                _tell(done, removed, as_json=as_json, dry_run=dry_run)
        return _failures_told(done)

    with failures_of_lake_told():
        return rounds(work, interval, once=once, dry_run=dry_run)


def _expire(wanted: Lake, hours: int, *, dry_run: bool) -> Round:
    from korvet.lake.expiry import Expiry  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - the same

    tables = Tables(wanted.uri, wanted.storage_options)
    expiry = Expiry(wanted.source, tables, dry_run=dry_run)
    return expiry.round(wanted.topics, hours, time.time_ns() // 1_000_000)


def _remove(wanted: Lake, gone: list[TopicOfLake], *, yes: bool) -> dict[TopicOfLake, Stored]:
    from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.tables import remove  # noqa: PLC0415 - the same

    if not gone:
        return {}
    names = ", ".join("/".join(each) for each in gone)
    confirmed(f"Delete {names} below {wanted.uri} with all records?", "no table is deleted", yes=yes)
    tables = Tables(wanted.uri, wanted.storage_options)
    return {each: remove(tables, each) for each in gone}


def _tell(done: Round, removed: dict[TopicOfLake, Stored], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        gone = [{"topic": each.topic, "id": each.topic_id, "removed": each in removed} for each in done.gone]
        click.echo(msgspec.json.encode(msgspec.to_builtins(done) | {"gone": gone}))
        return
    titles = ("Topic", "Partition", "Start", "Expired files", "Records", "Size")
    rows = [
        (each.topic, *map(str, (each.partition, each.start, each.files, each.rows)), amount(each.bytes))
        for each in done.expired
        if each.error is None
    ]
    print_table(titles, rows, numbers=titles[1:])
    count = sum(each.files for each in done.vacuumed)
    files = "1 file" if count == 1 else f"{count} files"
    click.echo(f"{'would delete' if dry_run else 'deleted'} {files} that no table names")
    for each in done.gone:
        what = "no topic has it any more: see --remove-gone"
        if each in removed:
            what = f"deleted, {amount(removed[each].bytes)}"
        click.echo(shown(f"table {'/'.join(each)}: {what}"))


def _failures_told(done: Round) -> int:
    for each in done.expired:
        if each.error is not None:
            place = each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"
            click.echo(shown(f"Error: {place}: {each.error}"), err=True)
    for one in done.vacuumed:
        if one.error is not None:
            click.echo(shown(f"Error: {one.topic}: {one.error}"), err=True)
    return FAILED if done.failed else 0
