"""`korvet lake compact`: writes the rows of small files anew, into fewer large ones.

`korvet lake expire`: lets go what logs are not to keep, and deletes files that no table names.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options, rounds, rounds_options
from korvet.cli.options import yes_option
from korvet.cli.output import ProgressLine, confirm, format_bytes, print_table, printable
from korvet.cli.run import FAILED
from korvet.spark import is_submitted

if TYPE_CHECKING:
    from korvet.lake.compaction import MergeOutcome, RunMerges


@click.command()
@lake_options
@click.option(
    "--master",
    metavar="URL",
    help="Spread the work over this Spark, as local[*]; by default it is done here, or where spark-submit says.",
)
@rounds_options
def compact(
    master: str | None,
    interval: float | None,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> int:
    """Make few large files of many small ones, with the same rows in the order of their offsets.

    It may be killed at any time, and run while topics are archived and read, and several times at once: at no time is a
    record in the table twice or not at all. What leaves the table stays on the disk until `korvet lake expire` takes
    it. A stream of Delta Lake's own over the table needs the option ignoreDeletes, as it does for retention. Exit code
    1 where files could not be read or written.
    """
    wanted = lake_of(**where)
    with failures_of_lake_told():
        if dry_run:
            return _plan(wanted, as_json=as_json)
        with _runner(wanted, master) as run:
            work = _Work(wanted, run, as_json=as_json, again=interval is not None)
            return rounds(work.round, interval, once=once, dry_run=dry_run)


@contextlib.contextmanager
def _runner(wanted: Lake, master: str | None) -> Iterator[RunMerges | None]:
    if master is None and not is_submitted():
        yield None
        return
    from korvet.spark.jobs import merge_runner  # noqa: PLC0415 - by default it starts without Spark
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    with session("korvet lake compact", master=master) as spark:
        yield merge_runner(spark, wanted.storage_options)


class _Work:
    """One round of compaction, as often as it is asked for."""

    def __init__(self, wanted: Lake, run: RunMerges | None, *, as_json: bool, again: bool) -> None:
        self._wanted = wanted
        self._run = run
        self._as_json = as_json
        self._again = again

    def round(self) -> int:
        """Compact, print what was done, and return the exit code."""
        from korvet.lake.compaction import compact_topics  # noqa: PLC0415 - other commands start without Delta
        from korvet.lake.table import Lake as Tables  # noqa: PLC0415 - the same

        wanted = self._wanted
        tables = Tables(wanted.uri, wanted.storage_options)
        progress = ProgressLine(shown=sys.stderr.isatty())
        found: list[MergeOutcome] = []
        try:
            for each in compact_topics(wanted.source, tables, wanted.topics, self._run):
                found.append(each)
                progress.add(each.rows, each.bytes_before)
        finally:
            progress.end()
        # Again and again, only what is worth a line.
        if found or not self._again:
            self._tell(found)
        failed = [each for each in found if each.error is not None]
        for each in failed:
            place = each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"
            click.echo(printable(f"Error: {place}: {each.error}"), err=True)
        return FAILED if failed else 0

    def _tell(self, found: list[MergeOutcome]) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(found))
        else:
            _print(found)


def _print(found: list[MergeOutcome]) -> None:
    done = [each for each in found if each.done]
    before, after = sum(each.files_before for each in done), sum(each.files_after for each in done)
    size = format_bytes(sum(each.bytes_after for each in done))
    if found:
        click.echo(
            f"{before} files became {after}, with {sum(each.rows for each in done):,} records in {size}"
        )
    else:
        click.echo("no files to merge")
    late = sum(not each.done and each.error is None for each in found)
    if late:
        click.echo(f"{late} merges were left to others, who rewrote the same files meanwhile")


def _plan(wanted: Lake, *, as_json: bool) -> int:
    from korvet.lake.compaction import plan_merges, topics_of  # noqa: PLC0415 - other commands start without it
    from korvet.lake.table import Lake as Tables  # noqa: PLC0415 - the same

    tables = Tables(wanted.uri, wanted.storage_options)
    rows = [
        {
            "topic": task.of.topic,
            "partition": task.merge.partition,
            "files": len(task.merge.files),
            "bytes": task.merge.size_bytes,
            "records": task.merge.rows,
            "into": task.merge.into,
        }
        for of in topics_of(wanted.source, wanted.topics)
        for task in plan_merges(tables, of)
    ]
    if as_json:
        click.echo(msgspec.json.encode(rows))
    else:
        titles = ("Topic", "Partition", "Files", "Bytes", "Records", "Into files")
        print_table(titles, [tuple(map(str, row.values())) for row in rows], numbers=titles[1:])
    return 0


if TYPE_CHECKING:
    from korvet.lake.expiry import ExpiryRound
    from korvet.lake.table import LakeTopic, StoredFiles

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
        removed: dict[LakeTopic, StoredFiles] = {}
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


def _expire(wanted: Lake, hours: int, *, dry_run: bool) -> ExpiryRound:
    from korvet.lake.expiry import Expiry  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.table import Lake as Tables  # noqa: PLC0415 - the same

    tables = Tables(wanted.uri, wanted.storage_options)
    expiry = Expiry(wanted.source, tables, dry_run=dry_run)
    return expiry.round(wanted.topics, hours, time.time_ns() // 1_000_000)


def _remove(wanted: Lake, gone: list[LakeTopic], *, yes: bool) -> dict[LakeTopic, StoredFiles]:
    from korvet.lake.table import Lake as Tables  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.table import remove_table  # noqa: PLC0415 - the same

    if not gone:
        return {}
    names = ", ".join("/".join(each) for each in gone)
    confirm(f"Delete {names} below {wanted.uri} with all records?", "no table is deleted", yes=yes)
    tables = Tables(wanted.uri, wanted.storage_options)
    return {each: remove_table(tables, each) for each in gone}


def _tell(done: ExpiryRound, removed: dict[LakeTopic, StoredFiles], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        gone = [{"topic": each.topic, "id": each.topic_id, "removed": each in removed} for each in done.gone]
        click.echo(msgspec.json.encode(msgspec.to_builtins(done) | {"gone": gone}))
        return
    titles = ("Topic", "Partition", "Start", "Expired files", "Records", "Size")
    rows = [
        (each.topic, *map(str, (each.partition, each.start, each.files, each.rows)), format_bytes(each.bytes))
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
            what = f"deleted, {format_bytes(removed[each].bytes)}"
        click.echo(printable(f"table {'/'.join(each)}: {what}"))


def _failures_told(done: ExpiryRound) -> int:
    for each in done.expired:
        if each.error is not None:
            place = each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"
            click.echo(printable(f"Error: {place}: {each.error}"), err=True)
    for one in done.vacuumed:
        if one.error is not None:
            click.echo(printable(f"Error: {one.topic}: {one.error}"), err=True)
    return FAILED if done.failed else 0
