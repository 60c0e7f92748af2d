"""`korvet lake`: archives topics to Delta tables, shows how far, and verifies the tables.

Archiving runs on Spark, in this process by default; `spark-submit .../korvet/__main__.py lake ...` runs the same
commands on a cluster.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.lake_options import LakeTarget, lake_errors, lake_of, lake_options, rounds_options
from korvet.cli.lake_query import query, replay
from korvet.cli.lake_upkeep import compact, expire
from korvet.cli.output import ProgressLine, cell, format_bytes, print_error, print_json, print_table
from korvet.cli.run import FAILED, CommandGroup
from korvet.errors import LakeError


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
    **where: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> int:
    """Archive the topics with remote.storage.enable=true, each record exactly once.

    Several may run at once, and each may be killed at any time: another one archives what it has not committed. With
    --interval --json each round that archived something prints a line. Exit code 1 if a partition could not be archived
    to its end, or records left Redis before they were archived; log lines on stderr name them.
    """
    if interval is not None and (once or dry_run):
        raise click.UsageError("--interval excludes --once and --dry-run")
    target = lake_of(**where)
    with lake_errors():
        if dry_run:
            return _plan(target, as_json=as_json)
        return _archive(target, master, interval, as_json=as_json)


def _archive(target: LakeTarget, master: str | None, interval: float | None, *, as_json: bool) -> int:
    from korvet.lake.archiver import ArchiveRound  # noqa: PLC0415 - the same
    from korvet.spark.jobs import archive_rounds, archive_runner, make_archiver  # noqa: PLC0415 - other commands start without Spark
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    # A kill harms nothing; this lets Spark remove its files first. Without --interval the work is not done.
    code = 128 + signal.SIGTERM if interval is None else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    progress = ProgressLine(shown=sys.stderr.isatty())
    total = ArchiveRound()
    with session("korvet lake archive", master=master) as spark:
        archiver = make_archiver(
            spark, target.source, target.uri, target.storage_options, names=target.topics
        )
        run = archive_runner(spark, target.source, target.storage_options)
        interval_ms = None if interval is None else round(interval * 1000)
        try:
            for done in archive_rounds(archiver, run, interval_ms):
                if done is None:
                    continue
                progress.add(done.records, done.bytes)
                if interval is None:
                    total.add(done)
                elif as_json and done.moved:
                    click.echo(msgspec.json.encode(done))
        finally:
            progress.end()
    if as_json:
        print_json(msgspec.to_builtins(total))
    else:
        files = "1 file" if total.files == 1 else f"{total.files} files"
        click.echo(f"archived {total.records:,} records, {format_bytes(total.bytes)} in {files}")
    return FAILED if total.failures or total.lost else 0


def _plan(target: LakeTarget, *, as_json: bool) -> int:
    from korvet.lake.archiver import Archiver  # noqa: PLC0415 - other commands start without Delta

    archives = Archiver(target.source, target.uri, target.storage_options, names=target.topics)
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
        print_json({"ranges": rows, "more": done.more})
    else:
        cells = [tuple(str(value) for value in row.values()) for row in rows]
        titles = ("Topic", "Partition", "Archived", "From", "To", "Files", "Bytes")
        print_table(titles, cells, numbers=titles[1:])
    return FAILED if done.failures else 0


if TYPE_CHECKING:
    from korvet.lake.verify import PartitionStatus

_TITLES = ("Topic", "Partition", "Start", "In Redis from", "Archived", "End", "Lag", "Lag s", "Files", "Size")


@click.command()
@lake_options
def status(
    *,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> int:
    """Show how far each partition is archived.

    "Lag" counts the records that are not in the table, and "Lag s" is the age of the oldest of them by its timestamp.
    """
    target = lake_of(**where)
    with lake_errors():
        from korvet.lake import verify as lake_verify  # noqa: PLC0415 - other commands start without Delta

        found = lake_verify.status(target.source, target.uri, target.storage_options, target.topics)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_table(_TITLES, [_cells(each) for each in found], numbers=_TITLES[1:])
    failed = [each for each in found if each.error is not None]
    for each in failed:
        print_error(f"{each.topic}-{each.partition}: {each.error}")
    return FAILED if failed else 0


def _cells(each: PartitionStatus) -> tuple[str, ...]:
    seconds = None if each.lag_ms is None else f"{each.lag_ms / 1000:.1f}"
    offsets = (each.start, each.local_start, each.archived, each.end, each.lag_records, seconds)
    return (each.topic, str(each.partition), *map(cell, offsets), str(each.files), format_bytes(each.bytes))


if TYPE_CHECKING:
    from korvet.lake.verify import VerifiedPartition


@click.command()
@lake_options
def verify(
    *,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> int:
    """Look for gaps, duplicates, disorder, wrong statistics and damaged files, and compare with Redis.

    Each file is read whole. "Compared" are the records that Redis has too. In storage format `record` offsets are
    sparse: there a missing record is noticed only while Redis has it. Exit code 1 if something is wrong; each finding
    is a line on stderr.
    """
    target = lake_of(**where)
    with lake_errors():
        found, failed = _verify(target)
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
            print_error(f"{each.topic}-{each.partition}: {finding.kind}: {finding.message}")
    for topic, message in failed.items():
        print_error(f"{topic}: {message}")
    return FAILED if failed or any(each.findings for each in found) else 0


def _verify(target: LakeTarget) -> tuple[list[VerifiedPartition], dict[str, str]]:
    """Return the outcome of each partition, and the error of each topic that could not be verified."""
    from korvet.lake import verify as lake_verify  # noqa: PLC0415 - the same

    tables = target.tables()
    found: list[VerifiedPartition] = []
    failed: dict[str, str] = {}
    progress = ProgressLine(shown=sys.stderr.isatty())
    with target.source.opened() as stores:
        for topic in target.source.topics(stores, target.topics):
            try:
                for each in lake_verify.verify(stores, tables, topic, target.source.decompressed_bytes_max):
                    found.append(each)
                    progress.add(each.rows, 0)
            except LakeError as error:
                failed[topic.name] = str(error)
    progress.end()
    return found, failed


@click.group(cls=CommandGroup)
def lake() -> None:
    """Archive topics with remote.storage.enable to Delta tables, and maintain the tables; needs korvet[lake]."""


for each in (archive, compact, expire, query, replay, status, verify):
    lake.add_command(each)
