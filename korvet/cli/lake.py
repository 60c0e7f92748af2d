"""`korvet lake`: archives topics to Delta tables, shows how far, verifies and maintains the tables.

Archiving runs on Spark, in this process by default; `spark-submit .../korvet/__main__.py lake ...` runs the same
commands on a cluster.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from korvet.cli.lake_options import LakeTarget, rounds, rounds_options, started_spark, with_lake
from korvet.cli.lake_pipeline import pipeline
from korvet.cli.lake_pipeline_control import list_pipelines, pipeline_status, start, stop
from korvet.cli.lake_pipeline_reset import reset
from korvet.cli.lake_query import query, replay
from korvet.cli.lake_register import register
from korvet.cli.options import yes_option
from korvet.cli.output import (
    ProgressLine,
    cell,
    confirm,
    format_bytes,
    print_error,
    print_json,
    print_rows,
    print_table,
    printable,
)
from korvet.cli.run import FAILED, CommandGroup
from korvet.errors import LakeError
from korvet.spark import is_submitted

if TYPE_CHECKING:
    from korvet.lake.archiver import ArchiveRound
    from korvet.lake.compaction import MergeOutcome, RunMerges
    from korvet.lake.expiry import ExpiredFiles, ExpiryRound
    from korvet.lake.rewind import RewoundPartition
    from korvet.lake.table import LakeTopic, StoredFiles
    from korvet.lake.verify import PartitionStatus, VerifiedPartition


@click.command()
@with_lake
@click.option(
    "--master", metavar="URL", help="Spark's master; by default all cores of this machine, local[*,4]."
)
@rounds_options
def archive(
    target: LakeTarget,
    master: str | None,
    interval: float | None,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Archive the topics with remote.storage.enable=true, each record exactly once.

    Several may run at once, and each may be killed at any time: another one archives what it has not committed. With
    --interval --json each round that archived something prints a line. Exit code 1 if a partition could not be archived
    to its end, or records left Redis before they were archived; log lines on stderr name them.
    """
    if interval is not None and (once or dry_run):
        raise click.UsageError("--interval excludes --once and --dry-run")
    if dry_run:
        return _plan_archive(target, as_json=as_json)
    return _archive(target, master, interval, as_json=as_json)


def _archive(target: LakeTarget, master: str | None, interval: float | None, *, as_json: bool) -> int:
    from korvet.lake.archiver import Archiver, ArchiveRound  # noqa: PLC0415 - the same

    # A kill harms nothing; this lets Spark remove its files first. Without --interval the work is not done.
    code = 128 + signal.SIGTERM if interval is None else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    total = ArchiveRound()
    if interval is None:
        # This does what needs no task, and says whether there is more: Spark takes longer to start than all of it.
        total.add(Archiver(target.source, names=target.topics).round(lambda _tasks: ()))
    if interval is not None or total.more:
        _archive_on_spark(target, master, interval, total, as_json=as_json)
    if as_json:
        print_json(msgspec.to_builtins(total))
    else:
        files = "1 file" if total.files == 1 else f"{total.files} files"
        click.echo(f"archived {total.records:,} records, {format_bytes(total.bytes)} in {files}")
    return FAILED if total.failures or total.lost else 0


def _archive_on_spark(
    target: LakeTarget, master: str | None, interval: float | None, total: ArchiveRound, *, as_json: bool
) -> None:
    """Archive what there is, and add it to `total`; with an interval until the process is ended."""
    from korvet.spark.jobs import archive_rounds, archive_runner, make_archiver  # noqa: PLC0415 - other commands start without Spark

    progress = ProgressLine(shown=sys.stderr.isatty())
    with started_spark("korvet lake archive", master, only_schedules=True) as spark:
        archiver = make_archiver(spark, target.source, names=target.topics)
        run = archive_runner(spark, target.source)
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


def _plan_archive(target: LakeTarget, *, as_json: bool) -> int:
    from korvet.lake.archiver import Archiver  # noqa: PLC0415 - other commands start without Delta

    archives = Archiver(target.source, names=target.topics)
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
        columns = {
            name: name.capitalize()
            for name in ("topic", "partition", "archived", "from", "to", "files", "bytes")
        }
        print_rows(columns, rows, [*columns.values()][1:], empty="nothing to archive")
    return FAILED if done.failures else 0


_NO_TOPICS = "no topics with remote.storage.enable=true"
_STATUS = ("Topic", "Partition", "Start", "In Redis from", "Archived", "End", "Lag", "Lag s", "Files", "Size")


@click.command()
@with_lake
def status(target: LakeTarget, *, as_json: bool) -> int:
    """Show how far each partition is archived.

    "Lag" counts the records that are not in the table, and "Lag s" is the time since the first of them was appended;
    in storage format `batch` a log knows that with message.timestamp.type=LogAppendTime only.
    """
    from korvet.lake import verify as lake_verify  # noqa: PLC0415 - other commands start without Delta

    found = lake_verify.status(target.source, target.topics)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_table(_STATUS, [_status_cells(each) for each in found], numbers=_STATUS[1:], empty=_NO_TOPICS)
    failed = [each for each in found if each.error is not None]
    for each in failed:
        print_error(f"{each.topic}-{each.partition}: {each.error}")
    return FAILED if failed else 0


def _status_cells(each: PartitionStatus) -> tuple[str, ...]:
    seconds = None if each.lag_ms is None else f"{each.lag_ms / 1000:.1f}"
    offsets = (each.start, each.local_start, each.archived, each.end, each.lag_records, seconds)
    return (each.topic, str(each.partition), *map(cell, offsets), str(each.files), format_bytes(each.bytes))


@click.command()
@with_lake
def verify(target: LakeTarget, *, as_json: bool) -> int:
    """Look for gaps, duplicates, disorder, wrong statistics and damaged files, and compare with Redis.

    Each file is read whole. "Compared" are the records that Redis has too. With offset.encoding=time offsets are
    sparse: there a missing record is noticed only while Redis has it. Exit code 1 if something is wrong; each finding
    is a line on stderr. Offsets of batches that did not decode are known holes and no finding: their bytes are kept.
    """
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
        print_table(titles, rows, numbers=titles[1:], empty=_NO_TOPICS)
        for partition in found:
            for hole in partition.known_holes:
                name = f"{partition.topic}-{partition.partition}"
                click.echo(
                    f"{name}: known hole: batches of offsets {hole.first} to {hole.end - 1} are kept as bytes"
                )
    for each in found:
        for finding in each.findings:
            print_error(f"{each.topic}-{each.partition}: {finding.kind}: {finding.message}")
    for topic, message in failed.items():
        print_error(f"{topic}: {message}")
    return FAILED if failed or any(each.findings for each in found) else 0


def _verify(target: LakeTarget) -> tuple[list[VerifiedPartition], dict[str, str]]:
    """Return the outcome of each partition, and the error of each topic that could not be verified."""
    from korvet.lake import verify as lake_verify  # noqa: PLC0415 - the same

    found: list[VerifiedPartition] = []
    failed: dict[str, str] = {}
    progress = ProgressLine(shown=sys.stderr.isatty())
    with target.source.opened() as stores:
        for topic in stores.remote_topics(target.topics):
            try:
                for each in lake_verify.verify(stores, topic):
                    found.append(each)
                    progress.add(each.rows, 0)
            except LakeError as error:
                failed[topic.name] = str(error)
    progress.end()
    return found, failed


@click.command()
@with_lake
@click.option(
    "--master",
    metavar="URL",
    help="Spread the work over this Spark, as local[*]; by default it is done here, or where spark-submit says.",
)
@rounds_options
def compact(
    target: LakeTarget,
    master: str | None,
    interval: float | None,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Merge many small files into few large ones, with the same rows in the order of their offsets.

    It may be killed at any time, and may run while topics are archived and read, and several times at once: a record is
    in the table exactly once at all times. Files that leave the table stay on the disk until `korvet lake expire`
    deletes them. Streams and change data feeds of Delta Lake over the table go on past it. Exit code 1 if files could
    not be read or written.
    """
    if dry_run:
        return _plan_merges(target, as_json=as_json)
    with _runner(target, master) as run:

        def work() -> int:
            found = _merge(target, run)
            # Of repeated rounds, only those that did something.
            if found or interval is None:
                _print_merges(found, as_json=as_json)
            return _report_failures(found)

        return rounds(work, interval, once=once, dry_run=dry_run)


@contextlib.contextmanager
def _runner(target: LakeTarget, master: str | None) -> Iterator[RunMerges | None]:
    if master is None and not is_submitted():
        yield None
        return
    from korvet.spark.jobs import merge_runner  # noqa: PLC0415 - by default it starts without Spark

    with started_spark("korvet lake compact", master, only_schedules=True) as spark:
        yield merge_runner(spark, target.source.lake)


def _merge(target: LakeTarget, run: RunMerges | None) -> list[MergeOutcome]:
    from korvet.lake.compaction import compact_topics  # noqa: PLC0415 - other commands start without Delta

    progress = ProgressLine(shown=sys.stderr.isatty())
    found: list[MergeOutcome] = []
    try:
        for each in compact_topics(target.source, target.topics, run):
            found.append(each)
            progress.add(each.rows, each.bytes_before)
    finally:
        progress.end()
    return found


def _report_failures(outcomes: Iterable[MergeOutcome | ExpiredFiles | RewoundPartition]) -> int:
    failed = [each for each in outcomes if each.error is not None]
    for each in failed:
        place = each.topic if each.partition < 0 else f"{each.topic}-{each.partition}"
        print_error(f"{place}: {each.error}")
    return FAILED if failed else 0


def _print_merges(found: list[MergeOutcome], *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
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


def _plan_merges(target: LakeTarget, *, as_json: bool) -> int:
    from korvet.lake.compaction import plan_merges, topics_of  # noqa: PLC0415 - other commands start without it

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
        for task in plan_merges(target.source.lake, of)
    ]
    if as_json:
        click.echo(msgspec.json.encode(rows))
    else:
        titles = ("Topic", "Partition", "Files", "Bytes", "Records", "Into files")
        print_table(
            titles, [tuple(map(str, row.values())) for row in rows], titles[1:], empty="no files to merge"
        )
    return 0


_HOURS_MIN = 24


@click.command()
@with_lake
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
def expire(  # noqa: PLR0913 - click gives each flag by its name
    target: LakeTarget,
    hours: int,
    interval: float | None,
    *,
    remove_gone: bool,
    yes: bool,
    once: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Apply retention.ms and retention.bytes to logs in Redis and the lake together.

    Files expire in the order of their offsets: the log start moves first, then they leave the table, and later the
    disk. Tables of deleted topics are listed, and stay without --remove-gone. Exit code 1 if something could not be
    done.
    """
    if remove_gone and interval is not None:
        raise click.UsageError("--interval excludes --remove-gone")
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
        _report_failures(done.expired)
        for each in done.vacuumed:
            if each.error is not None:
                print_error(f"{each.topic}: {each.error}")
        return FAILED if done.failed else 0

    return rounds(work, interval, once=once, dry_run=dry_run)


def _expire(target: LakeTarget, hours: int, *, dry_run: bool) -> ExpiryRound:
    from korvet.lake.expiry import Expiry  # noqa: PLC0415 - other commands start without Delta

    expiry = Expiry(target.source, dry_run=dry_run)
    return expiry.round(target.topics, hours, time.time_ns() // 1_000_000)


def _remove(target: LakeTarget, gone: list[LakeTopic], *, yes: bool) -> dict[LakeTopic, StoredFiles]:
    if not gone:
        return {}
    names = ", ".join("/".join(each) for each in gone)
    confirm(
        f"Delete {names} below {target.source.lake.path} with all records?", "no table is deleted", yes=yes
    )
    iceberg = target.source.iceberg_tables()
    removed = {}
    for each in gone:
        if iceberg is not None:
            iceberg.drop(each)
        removed[each] = target.source.lake.remove_table(each)
    return removed


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
    print_table(titles, rows, numbers=titles[1:], empty="no files have expired")
    count = sum(each.files for each in done.vacuumed)
    files = "1 file" if count == 1 else f"{count} files"
    click.echo(f"{'would delete' if dry_run else 'deleted'} {files} that no table names")
    for each in done.gone:
        what = "its topic is deleted: see --remove-gone"
        if each in removed:
            what = f"deleted, {format_bytes(removed[each].bytes)}"
        click.echo(printable(f"table {'/'.join(each)}: {what}"))


@click.command()
@with_lake
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
def rewind(target: LakeTarget, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove what Redis does not have any more from the tables, after a backup of Redis was restored.

    These are records past the end of a log, records of transactions that are open again, and records whose offsets
    others have in Redis now. Each partition is archived again from the first of them on. Run it while the brokers are
    stopped. Exit code 1 if Redis and a table contradict each other; each contradiction is a line on stderr.
    """
    from korvet.lake import rewind as lake_rewind  # noqa: PLC0415 - other commands start without Delta

    done = lake_rewind.rewind(target.source, target.topics, dry_run=True)
    if not dry_run:
        if any(partition.error is None for partition in done.rewound):
            count = sum(partition.records for partition in done.rewound)
            question = (
                f"Remove {count:,} records, which this Redis does not have, from {target.source.lake.path}?"
            )
            confirm(question, "no record is removed", yes=yes)
        done = lake_rewind.rewind(target.source, target.topics, dry_run=False)
    rows = [msgspec.to_builtins(partition) for partition in done.rewound if partition.error is None]
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        columns = {name: name.capitalize() for name in ("topic", "partition", "records", "files", "start")}
        columns |= {"first": "Archived", "end": "Archived before"}
        print_rows(columns, rows, [*columns.values()][1:], empty="no table is ahead of Redis")
        for table in done.gone:
            click.echo(printable(f"table {'/'.join(table)}: its topic is deleted: see korvet lake expire"))
    return _report_failures(done.rewound)


@click.group(cls=CommandGroup)
def lake() -> None:
    """Archive topics with remote.storage.enable to Delta tables, and maintain the tables; needs korvet[lake]."""


for command in (archive, compact, expire, pipeline, query, register, replay, rewind, status, verify):
    lake.add_command(command)
for command in (list_pipelines, pipeline_status, start, stop, reset):
    pipeline.add_command(command)
