"""`korvet lake archive`: brings what topics hold in Redis into their tables, once or again and again."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.bootstrap import print_table
from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options
from korvet.cli.lake_rounds import rounds_options
from korvet.cli.progress import Progress, amount
from korvet.cli.run import FAILED

if TYPE_CHECKING:
    from korvet.lake.rounds import Round


@click.command()
@lake_options
@click.option(
    "--master", metavar="URL", help="Spark's master; by default all cores of this machine, local[*,4]."
)
@rounds_options
def archive(
    master: str | None,
    interval: float | None,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> int:
    """Archive the topics with remote.storage.enable=true, each record exactly once.

    Several may run at once, and each may be killed at any time: what one has not committed another archives. With
    --interval --json every round that archived something is a line. Exit code 1 where a partition could not be
    archived to its end, or records left Redis before they were archived; log lines on stderr say which.
    """
    if interval is not None and (once or dry_run):
        raise click.UsageError("--interval excludes --once and --dry-run")
    wanted = lake_of(**where)
    with failures_of_lake_told():
        if dry_run:
            return _plan(wanted, as_json=as_json)
        return _archive(wanted, master, interval, as_json=as_json)


def _archive(wanted: Lake, master: str | None, interval: float | None, *, as_json: bool) -> int:
    from korvet.spark import archive as job  # noqa: PLC0415 - other commands start without Spark
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    # Killing it harms nothing; this lets Spark clear away its files first. Without --interval it has not done its work.
    code = 128 + signal.SIGTERM if interval is None else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    progress = Progress(shown=sys.stderr.isatty())

    def seen(done: Round) -> None:
        progress.add(done.records, done.bytes)
        if as_json and interval is not None and done.moved:
            click.echo(msgspec.json.encode(done))

    with session("korvet lake archive", master=master) as spark:
        archives = job.archiver(spark, wanted.source, wanted.uri, wanted.storage_options, names=wanted.topics)
        run = job.runner(spark, wanted.source, wanted.storage_options)
        try:
            if interval is not None:
                job.archive_for_ever(archives, run, round(interval * 1000), seen)
            done = job.archive_once(archives, run, seen)
        finally:
            progress.end()
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(done), indent=2))
    else:
        files = "1 file" if done.files == 1 else f"{done.files} files"
        click.echo(f"archived {done.records:,} records, {amount(done.bytes)} in {files}")
    return FAILED if done.failures or done.lost else 0


def _plan(wanted: Lake, *, as_json: bool) -> int:
    from korvet.lake.archiver import Archiver  # noqa: PLC0415 - other commands start without Delta

    archives = Archiver(wanted.source, wanted.uri, wanted.storage_options, names=wanted.topics)
    plans, done = archives.plan()
    rows = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.index,
            "archived": each.begin.expected,
            "from": each.begin.first,
            "to": each.ranges[-1].behind,
            "files": len(each.ranges),
            "bytes": sum(one.bytes for one in each.ranges),
        }
        for some in plans
        for each in some.partitions
        if each.ranges
    ]
    if as_json:
        click.echo(json.dumps({"ranges": rows, "more": done.more}, indent=2))
    else:
        cells = [tuple(str(value) for value in row.values()) for row in rows]
        titles = ("Topic", "Partition", "Archived", "From", "To", "Files", "Bytes")
        print_table(titles, cells, numbers=titles[1:])
    return FAILED if done.failures else 0
