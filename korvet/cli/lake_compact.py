"""`korvet lake compact`: writes the rows of small files anew, into fewer large ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.bootstrap import print_table, shown
from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options
from korvet.cli.lake_rounds import rounds, rounds_options
from korvet.cli.progress import Progress, amount
from korvet.cli.run import FAILED
from korvet.spark.submitted import is_submitted

if TYPE_CHECKING:
    from korvet.lake.compaction import Compacted, Run


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
def _runner(wanted: Lake, master: str | None) -> Iterator[Run | None]:
    if master is None and not is_submitted():
        yield None
        return
    from korvet.spark import compact as job  # noqa: PLC0415 - by default it starts without Spark
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    with session("korvet lake compact", master=master) as spark:
        yield job.runner(spark, wanted.storage_options)


class _Work:
    """One round of compaction, as often as it is asked for."""

    def __init__(self, wanted: Lake, run: Run | None, *, as_json: bool, again: bool) -> None:
        self._wanted = wanted
        self._run = run
        self._as_json = as_json
        self._again = again

    def round(self) -> int:
        """Compact, print what was done, and return the exit code."""
        from korvet.lake.compaction import compact_topics  # noqa: PLC0415 - other commands start without Delta
        from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - the same

        wanted = self._wanted
        tables = Tables(wanted.uri, wanted.storage_options)
        progress = Progress(shown=sys.stderr.isatty())
        found: list[Compacted] = []
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
            click.echo(shown(f"Error: {place}: {each.error}"), err=True)
        return FAILED if failed else 0

    def _tell(self, found: list[Compacted]) -> None:
        if self._as_json:
            click.echo(msgspec.json.encode(found))
        else:
            _print(found)


def _print(found: list[Compacted]) -> None:
    done = [each for each in found if each.done]
    before, after = sum(each.files_before for each in done), sum(each.files_after for each in done)
    size = amount(sum(each.bytes_after for each in done))
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
    from korvet.lake.compaction import plan, topics_of  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - the same

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
        for task in plan(tables, of)
    ]
    if as_json:
        click.echo(msgspec.json.encode(rows))
    else:
        titles = ("Topic", "Partition", "Files", "Bytes", "Records", "Into files")
        print_table(titles, [tuple(map(str, row.values())) for row in rows], numbers=titles[1:])
    return 0
