"""`korvet lake compact` merges small files of tables; `korvet lake expire` applies retention to them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.lake_options import LakeTarget, lake_errors, lake_of, lake_options, rounds, rounds_options
from korvet.cli.options import yes_option
from korvet.cli.output import ProgressLine, confirm, format_bytes, print_error, print_table, printable
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
    **where: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> int:
    """Merge many small files into few large ones, with the same rows in the order of their offsets.

    It may be killed at any time, and may run while topics are archived and read, and several times at once: a record is
    in the table exactly once at all times. Files that leave the table stay on the disk until `korvet lake expire`
    deletes them. A stream of Delta Lake over the table needs the option ignoreDeletes, as for retention. Exit code 1 if
    files could not be read or written.
    """
    target = lake_of(**where)
    with lake_errors():
        if dry_run:
            return _plan(target, as_json=as_json)
        with _runner(target, master) as run:
            work = _Work(target, run, as_json=as_json, again=interval is not None)
            return rounds(work.round, interval, once=once, dry_run=dry_run)


@contextlib.contextmanager
def _runner(target: LakeTarget, master: str | None) -> Iterator[RunMerges | None]:
    if master is None and not is_submitted():
        yield None
        return
    from korvet.spark.jobs import merge_runner  # noqa: PLC0415 - by default it starts without Spark
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    with session("korvet lake compact", master=master) as spark:
        yield merge_runner(spark, target.storage_options)


class _Work:
    """Rounds of compaction."""

    def __init__(self, target: LakeTarget, run: RunMerges | None, *, as_json: bool, again: bool) -> None:
        self._target = target
        self._run = run
        self._as_json = as_json
        self._again = again

    def round(self) -> int:
        """Compact, print what was done, and return the exit code."""
        from korvet.lake.compaction import compact_topics  # noqa: PLC0415 - other commands start without Delta

        target = self._target
        progress = ProgressLine(shown=sys.stderr.isatty())
        found: list[MergeOutcome] = []
        try:
            for each in compact_topics(target.source, target.tables(), target.topics, self._run):
                found.append(each)
                progress.add(each.rows, each.bytes_before)
        finally:
            progress.end()
        # Of repeated rounds, only those that did something.
        if found or not self._again:
            self._print(found)
        failed = [each for each in found if each.error is not None]
        for each in failed:
            place = each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"
            print_error(f"{place}: {each.error}")
        return FAILED if failed else 0

    def _print(self, found: list[MergeOutcome]) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(found))
        else:
            _print_merges(found)


def _print_merges(found: list[MergeOutcome]) -> None:
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
        click.echo(f"{late} merges were dropped: others rewrote the same files meanwhile")


def _plan(target: LakeTarget, *, as_json: bool) -> int:
    from korvet.lake.compaction import plan_merges, topics_of  # noqa: PLC0415 - other commands start without it

    tables = target.tables()
    rows = [
        {
            "topic": task.of.topic,
            "partition": task.merge.partition,
            "files": len(task.merge.files),
            "bytes": task.merge.size_bytes,
            "records": task.merge.rows,
            "into": task.merge.into,
        }
        for of in topics_of(target.source, target.topics)
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
    help="Delete files that no table has named for this long: younger ones may still be read, or be committed soon.",
)
@click.option("--remove-gone", is_flag=True, help="Delete the tables of deleted topics.")
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
    **where: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> int:
    """Apply retention.ms and retention.bytes to logs in Redis and the lake together.

    Files expire in the order of their offsets: the log start moves first, then they leave the table, and later the
    disk. Tables of deleted topics are listed, and stay without --remove-gone. Exit code 1 if something could not be
    done.
    """
    if remove_gone and interval is not None:
        raise click.UsageError("--interval excludes --remove-gone")
    target = lake_of(**where)
    if remove_gone and target.topics:
        raise click.UsageError("--topic excludes --remove-gone, which is for deleted topics")

    def work() -> int:
        done = _expire(target, hours, dry_run=dry_run)
        removed: dict[LakeTopic, StoredFiles] = {}
        try:
            if remove_gone and not dry_run:
                removed = _remove(target, done.gone, yes=yes)
        finally:
            # Of repeated rounds, only those that did something.
            if interval is None or done.moved:
                _print_expiry(done, removed, as_json=as_json, dry_run=dry_run)
        return _report_failures(done)

    with lake_errors():
        return rounds(work, interval, once=once, dry_run=dry_run)


def _expire(target: LakeTarget, hours: int, *, dry_run: bool) -> ExpiryRound:
    from korvet.lake.expiry import Expiry  # noqa: PLC0415 - other commands start without Delta

    tables = target.tables()
    expiry = Expiry(target.source, tables, dry_run=dry_run)
    return expiry.round(target.topics, hours, time.time_ns() // 1_000_000)


def _remove(target: LakeTarget, gone: list[LakeTopic], *, yes: bool) -> dict[LakeTopic, StoredFiles]:
    from korvet.lake.table import remove_table  # noqa: PLC0415 - the same

    if not gone:
        return {}
    names = ", ".join("/".join(each) for each in gone)
    confirm(f"Delete {names} below {target.uri} with all records?", "no table is deleted", yes=yes)
    tables = target.tables()
    return {each: remove_table(tables, each) for each in gone}


def _print_expiry(
    done: ExpiryRound, removed: dict[LakeTopic, StoredFiles], *, as_json: bool, dry_run: bool
) -> None:
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
        what = "its topic is deleted: see --remove-gone"
        if each in removed:
            what = f"deleted, {format_bytes(removed[each].bytes)}"
        click.echo(printable(f"table {'/'.join(each)}: {what}"))


def _report_failures(done: ExpiryRound) -> int:
    for each in done.expired:
        if each.error is not None:
            place = each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"
            print_error(f"{place}: {each.error}")
    for one in done.vacuumed:
        if one.error is not None:
            print_error(f"{one.topic}: {one.error}")
    return FAILED if done.failed else 0
