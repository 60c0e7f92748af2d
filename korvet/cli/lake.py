"""`korvet lake`: archives topics to Delta tables, and looks after these tables.

Knows the group; each of its commands has a file of its own. What is more than one process's work runs on Spark, in this
process by default; `spark-submit .../korvet/__main__.py lake ...` runs the same commands on a cluster.

`korvet lake archive`: brings what topics hold in Redis into their tables, once or again and again.

`korvet lake status`: how far topics are archived, and how far behind that is.

`korvet lake verify`: reads tables whole, and says what of them is not as it is to be.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, lake_options, rounds_options
from korvet.cli.lake_query import query, replay
from korvet.cli.lake_upkeep import compact, expire
from korvet.cli.output import ProgressLine, format_bytes, print_table, printable
from korvet.cli.run import FAILED, Group
from korvet.errors import LakeError

if TYPE_CHECKING:
    from korvet.lake.archiver import ArchiveRound


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
    from korvet.spark.jobs import archive_continuously, archive_once, archive_runner, make_archiver  # noqa: PLC0415 - other commands start without Spark
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    # Killing it harms nothing; this lets Spark clear away its files first. Without --interval it has not done its work.
    code = 128 + signal.SIGTERM if interval is None else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    progress = ProgressLine(shown=sys.stderr.isatty())

    def seen(done: ArchiveRound) -> None:
        progress.add(done.records, done.bytes)
        if as_json and interval is not None and done.moved:
            click.echo(msgspec.json.encode(done))

    with session("korvet lake archive", master=master) as spark:
        archives = make_archiver(
            spark, wanted.source, wanted.uri, wanted.storage_options, names=wanted.topics
        )
        run = archive_runner(spark, wanted.source, wanted.storage_options)
        try:
            if interval is not None:
                archive_continuously(archives, run, round(interval * 1000), seen)
            done = archive_once(archives, run, seen)
        finally:
            progress.end()
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(done), indent=2))
    else:
        files = "1 file" if done.files == 1 else f"{done.files} files"
        click.echo(f"archived {done.records:,} records, {format_bytes(done.bytes)} in {files}")
    return FAILED if done.failures or done.lost else 0


def _plan(wanted: Lake, *, as_json: bool) -> int:
    from korvet.lake.archiver import Archiver  # noqa: PLC0415 - other commands start without Delta

    archives = Archiver(wanted.source, wanted.uri, wanted.storage_options, names=wanted.topics)
    plans, done = archives.plan()
    rows = [
        {
            "topic": each.partition.topic,
            "partition": each.partition.index,
            "archived": each.resume.expected,
            "from": each.resume.first,
            "to": each.ranges[-1].end,
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


if TYPE_CHECKING:
    from korvet.lake.verify import PartitionStatus

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
        from korvet.lake.verify import status as ask  # noqa: PLC0415 - other commands start without Delta

        found = ask(wanted.source, wanted.uri, wanted.storage_options, wanted.topics)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        print_table(_TITLES, [_cells(each) for each in found], numbers=_TITLES[1:])
    failed = [each for each in found if each.error is not None]
    for each in failed:
        click.echo(printable(f"Error: {each.topic}-{each.partition}: {each.error}"), err=True)
    return FAILED if failed else 0


def _cells(each: PartitionStatus) -> tuple[str, ...]:
    seconds = None if each.lag_ms is None else f"{each.lag_ms / 1000:.1f}"
    offsets = (each.start, each.local_start, each.archived, each.end, each.lag_records, seconds)
    told = [_UNKNOWN if value is None else str(value) for value in offsets]
    return (each.topic, str(each.partition), *told, str(each.files), format_bytes(each.bytes))


if TYPE_CHECKING:
    from korvet.lake.verify import VerifiedPartition


@click.command()
@lake_options
def verify(
    *,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> int:
    """Look for gaps, duplicates, disorder, wrong statistics and damaged files, and compare with Redis.

    Every file is read whole; "Compared" are the records that Redis holds too. In storage format `record` offsets are
    sparse: there a record is missed only while Redis has it. Exit code 1 where something is wrong; a line on stderr
    each says what.
    """
    wanted = lake_of(**where)
    with failures_of_lake_told():
        found, failed = _verify(wanted)
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        titles = ("Topic", "Partition", "Files", "Records", "Compared", "Findings")
        rows = [
            (
                each.topic,
                *map(str, (each.partition, each.files, each.rows, each.compared, len(each.findings))),
            )
            for each in found
        ]
        print_table(titles, rows, numbers=titles[1:])
    for each in found:
        for finding in each.findings:
            text = f"{each.topic}-{each.partition}: {finding.kind}: {finding.message}"
            click.echo(printable(f"Error: {text}"), err=True)
    for topic, message in failed.items():
        click.echo(printable(f"Error: {topic}: {message}"), err=True)
    return FAILED if failed or any(each.findings for each in found) else 0


def _verify(wanted: Lake) -> tuple[list[VerifiedPartition], dict[str, str]]:
    """Return what was found, and why a topic could not be looked at."""
    from korvet.lake.table import Lake as Tables  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.verify import verify as look  # noqa: PLC0415 - the same

    tables = Tables(wanted.uri, wanted.storage_options)
    found: list[VerifiedPartition] = []
    failed: dict[str, str] = {}
    progress = ProgressLine(shown=sys.stderr.isatty())
    with wanted.source.opened() as stores:
        for topic in wanted.source.topics(stores, wanted.topics):
            try:
                for each in look(stores, tables, topic, wanted.source.decompressed_bytes_max):
                    found.append(each)
                    progress.add(each.rows, 0)
            except LakeError as error:
                failed[topic.name] = str(error)
    progress.end()
    return found, failed


@click.group(cls=Group)
def lake() -> None:
    """Archive topics with remote.storage.enable to Delta tables, and maintain the tables; needs korvet[lake]."""


for each in (archive, compact, expire, query, replay, status, verify):
    lake.add_command(each)
