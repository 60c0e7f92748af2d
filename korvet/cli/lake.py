"""`korvet lake`: archives topics to Delta tables, shows how far, verifies, maintains and registers the tables.

Archiving runs on Spark, in this process by default; `spark-submit .../korvet/__main__.py lake ...` runs the same
commands on a cluster.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from korvet.cli.lake_options import (
    LakeTarget,
    dry_run_option,
    rounds,
    rounds_options,
    started_spark,
    with_lake,
    with_topics,
)
from korvet.cli.lake_pipeline import pipeline
from korvet.cli.lake_pipeline_control import list_pipelines, pipeline_status, reset, start, stop
from korvet.cli.lake_query import query, replay
from korvet.cli.options import option, parse_settings, yes_option
from korvet.cli.output import ProgressLine, confirm, format_bytes, print_error, printable, printed_json
from korvet.cli.run import FAILED, CommandGroup
from korvet.cli.tables import Column, as_objects, number, numbers, print_result, tabulate, texts
from korvet.errors import LakeError
from korvet.spark import is_submitted

if TYPE_CHECKING:
    from korvet.lake.archiver import ArchiveRound
    from korvet.lake.compaction import MergeOutcome, RunMerges
    from korvet.lake.expiry import ExpiredFiles, ExpiryRound
    from korvet.lake.registration import CatalogPlan
    from korvet.lake.rewind import RewoundPartition
    from korvet.lake.table import LakeTopic, StoredFiles
    from korvet.lake.verify import PartitionStatus, VerifiedPartition


_NO_TOPICS = "no topics with remote.storage.enable=true"
_PARTITION = (Column("topic"), number("partition"))
_PLANNED = (
    Column("topic", "partition.topic"),
    number("partition", "partition.index"),
    number("archived", "resume.expected"),
    number("from", "resume.first"),
    number("to", lambda plan: plan.ranges[-1].end),
    number("files", lambda plan: len(plan.ranges)),
    number("bytes", lambda plan: sum(planned.bytes for planned in plan.ranges)),
)
_STATUS = (
    *_PARTITION,
    number("start"),
    number("local_start", title="In Redis from"),
    *numbers("archived", "end"),
    number("lag_records", title="Lag"),
    number("lag_ms", title="Lag s", text=lambda ms: f"{ms / 1000:.1f}"),
    number("files"),
    number("bytes", title="Size", text=format_bytes),
)
_VERIFIED = (
    *_PARTITION,
    number("files"),
    number("rows", title="Records"),
    number("compared"),
    number("findings", text=len),
)
_MERGE = (
    Column("topic", "of.topic"),
    number("partition", "merge.partition"),
    number("files", lambda task: len(task.merge.files)),
    number("bytes", "merge.size_bytes"),
    number("records", "merge.rows"),
    number("into", "merge.into", title="Into files"),
)
_EXPIRED = (
    *_PARTITION,
    number("start"),
    number("files", title="Expired files"),
    number("rows", title="Records"),
    number("bytes", title="Size", text=format_bytes),
)
_REWOUND = (
    *_PARTITION,
    *numbers("records", "files", "start"),
    number("first", title="Archived"),
    number("end", title="Archived before"),
)
_REGISTERED = texts("name", "topic", "id", "change")


@click.command()
@with_topics
@option("--master URL", "Spark's master; by default all cores of this machine, local[*,4].")
@rounds_options
def archive(
    target: LakeTarget, master: str | None, interval: float | None, *, once: bool, dry_run: bool
) -> int:
    """Archive the topics with remote.storage.enable=true, each record exactly once.

    Several may run at once, and each may be killed at any time: another one archives what it has not committed. With
    --interval --json each round that archived something prints a line. Exit code 1 if a partition could not be archived
    to its end, or records left Redis before they were archived; log lines on stderr name them.
    """
    if interval is not None and (once or dry_run):
        raise click.UsageError("--interval excludes --once and --dry-run")
    if dry_run:
        return _plan_archive(target)
    from korvet.lake.archiver import Archiver, ArchiveRound  # noqa: PLC0415 - other commands start without Delta

    # A kill harms nothing; this lets Spark remove its files first. Without --interval the work is not done.
    code = 128 + signal.SIGTERM if interval is None else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    total = ArchiveRound()
    if interval is None:
        # This does what needs no task, and says whether there is more: Spark takes longer to start than all of it.
        total.add(Archiver(target.source, names=target.topics).round(lambda _tasks: ()))
    if interval is not None or total.more:
        _archive_on_spark(target, master, interval, total)
    if not printed_json(total):
        files = "1 file" if total.files == 1 else f"{total.files} files"
        click.echo(f"archived {total.records:,} records, {format_bytes(total.bytes)} in {files}")
    return FAILED if total.failures or total.lost else 0


def _archive_on_spark(
    target: LakeTarget, master: str | None, interval: float | None, total: ArchiveRound
) -> None:
    """Archive what there is, and add it to `total`; with an interval until the process is ended."""
    from korvet.spark.jobs import archive_rounds  # noqa: PLC0415 - other commands start without Spark

    with (
        started_spark("korvet lake archive", master, only_schedules=True) as spark,
        ProgressLine() as progress,
    ):
        interval_ms = None if interval is None else round(interval * 1000)
        for done in filter(None, archive_rounds(spark, target.source, interval_ms, names=target.topics)):
            progress.add(done.records, done.bytes)
            if interval is None:
                total.add(done)
            elif done.moved:
                printed_json(done, compact=True)


def _plan_archive(target: LakeTarget) -> int:
    from korvet.lake.archiver import Archiver  # noqa: PLC0415 - other commands start without Delta

    plans, done = Archiver(target.source, names=target.topics).plan()
    partitions = [plan for topic in plans for plan in topic.partitions if plan.ranges]
    if not printed_json({"ranges": as_objects(partitions, _PLANNED), "more": done.more}):
        tabulate(partitions, _PLANNED, empty="nothing to archive")
    return FAILED if done.failures else 0


@click.command()
@with_topics
def status(target: LakeTarget) -> int:
    """Show how far each partition is archived.

    "Lag" counts the records that are not in the table, and "Lag s" is the time since the first of them was appended;
    in storage format `batch` a log knows that with message.timestamp.type=LogAppendTime only.
    """
    from korvet.lake import verify as lake_verify  # noqa: PLC0415 - other commands start without Delta

    partitions = lake_verify.status(target.source, target.topics)
    if not printed_json(partitions):
        tabulate(partitions, _STATUS, empty=_NO_TOPICS)
    return _report_failures(partitions)


@click.command()
@with_topics
def verify(target: LakeTarget) -> int:
    """Look for gaps, duplicates, disorder, wrong statistics and damaged files, and compare with Redis.

    Each file is read whole. "Compared" are the records that Redis has too. With offset.encoding=time offsets are
    sparse: there a missing record is noticed only while Redis has it. Exit code 1 if something is wrong; each finding
    is a line on stderr. Offsets of batches that did not decode are known holes and no finding: their bytes are kept.
    """
    partitions, failed = _verify(target)
    if not printed_json(partitions, compact=True):
        tabulate(partitions, _VERIFIED, empty=_NO_TOPICS)
        for partition in partitions:
            for hole in partition.known_holes:
                name = f"{partition.topic}-{partition.partition}"
                click.echo(
                    f"{name}: known hole: batches of offsets {hole.first} to {hole.end - 1} are kept as bytes"
                )
    for partition in partitions:
        for finding in partition.findings:
            print_error(f"{partition.topic}-{partition.partition}: {finding.kind}: {finding.message}")
    for topic, message in failed.items():
        print_error(f"{topic}: {message}")
    return FAILED if failed or any(partition.findings for partition in partitions) else 0


def _verify(target: LakeTarget) -> tuple[list[VerifiedPartition], dict[str, str]]:
    """Return the outcome of each partition, and the error of each topic that could not be verified."""
    from korvet.lake import verify as lake_verify  # noqa: PLC0415 - the same

    partitions: list[VerifiedPartition] = []
    failed: dict[str, str] = {}
    with ProgressLine() as progress, target.source.opened() as stores:
        for topic in stores.remote_topics(target.topics):
            try:
                for partition in lake_verify.verify(stores, topic):
                    partitions.append(partition)
                    progress.add(partition.rows, 0)
            except LakeError as error:
                failed[topic.name] = str(error)
    return partitions, failed


@click.command()
@with_topics
@option(
    "--master URL",
    "Spread the work over this Spark, as local[*]; by default it is done here, or where spark-submit says.",
)
@rounds_options
def compact(
    target: LakeTarget, master: str | None, interval: float | None, *, once: bool, dry_run: bool
) -> int:
    """Merge many small files into few large ones, with the same rows in the order of their offsets.

    It may be killed at any time, and may run while topics are archived and read, and several times at once: a record is
    in the table exactly once at all times. Files that leave the table stay on the disk until `korvet lake expire`
    deletes them. Streams and change data feeds of Delta Lake over the table go on past it. Exit code 1 if files could
    not be read or written.
    """
    if dry_run:
        return _plan_merges(target)
    from korvet.lake.compaction import compact_topics  # noqa: PLC0415 - other commands start without Delta

    with _runner(target, master) as run:

        def work() -> int:
            outcomes: list[MergeOutcome] = []
            with ProgressLine() as progress:
                for outcome in compact_topics(target.source, target.topics, run):
                    outcomes.append(outcome)
                    progress.add(outcome.rows, outcome.bytes_before)
            # Of repeated rounds, only those that did something.
            if outcomes or interval is None:
                _print_merges(outcomes)
            return _report_failures(outcomes)

        return rounds(work, interval, once=once, dry_run=dry_run)


@contextlib.contextmanager
def _runner(target: LakeTarget, master: str | None) -> Iterator[RunMerges | None]:
    if master is None and not is_submitted():
        yield None
        return
    from korvet.spark.jobs import run_merges  # noqa: PLC0415 - by default it starts without Spark

    with started_spark("korvet lake compact", master, only_schedules=True) as spark:
        yield partial(run_merges, spark, target.source.lake)


def _report_failures(
    outcomes: Iterable[PartitionStatus | MergeOutcome | ExpiredFiles | RewoundPartition],
) -> int:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        name = outcome.topic if outcome.partition < 0 else f"{outcome.topic}-{outcome.partition}"
        print_error(f"{name}: {outcome.error}")
    return FAILED if failed else 0


def _print_merges(outcomes: list[MergeOutcome]) -> None:
    if printed_json(outcomes, compact=True):
        return
    if not outcomes:
        click.echo("no files to merge")
        return
    done = [outcome for outcome in outcomes if outcome.done]
    before, after = sum(merge.files_before for merge in done), sum(merge.files_after for merge in done)
    records, size = sum(merge.rows for merge in done), sum(merge.bytes_after for merge in done)
    click.echo(f"{before} files became {after}, with {records:,} records in {format_bytes(size)}")
    late = sum(not outcome.done and outcome.error is None for outcome in outcomes)
    if late:
        click.echo(f"{late} merges were dropped: others rewrote the same files meanwhile")


def _plan_merges(target: LakeTarget) -> int:
    from korvet.lake.compaction import plan_merges, topics_of  # noqa: PLC0415 - other commands start without it

    tasks = [
        task
        for topic in topics_of(target.source, target.topics)
        for task in plan_merges(target.source.lake, topic)
    ]
    if not printed_json(as_objects(tasks, _MERGE), compact=True):
        tabulate(tasks, _MERGE, empty="no files to merge")
    return 0


_HOURS_MIN = 24


@click.command()
@with_topics
@option(
    "--vacuum-hours HOURS",
    "Delete files that no table has used for this long; younger files may still be read, or be committed soon.",
    click.IntRange(min=_HOURS_MIN),
    name="hours",
    default=_HOURS_MIN,
)
@option("--remove-gone", "Delete the tables of deleted topics.")
@yes_option
@rounds_options
def expire(
    target: LakeTarget,
    hours: int,
    interval: float | None,
    *,
    remove_gone: bool,
    yes: bool,
    once: bool,
    dry_run: bool,
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

    from korvet.lake.expiry import Expiry  # noqa: PLC0415 - other commands start without Delta

    def work() -> int:
        expiry = Expiry(target.source, dry_run=dry_run)
        done = expiry.round(target.topics, hours, time.time_ns() // 1_000_000)
        removed: dict[LakeTopic, StoredFiles] = {}
        try:
            if remove_gone and not dry_run:
                removed = _remove(target, done.gone, yes=yes)
        finally:
            # Of repeated rounds, only those that did something.
            if interval is None or done.moved:
                _print_expiry(done, removed, dry_run=dry_run)
        _report_failures(done.expired)
        for vacuumed in done.vacuumed:
            if vacuumed.error is not None:
                print_error(f"{vacuumed.topic}: {vacuumed.error}")
        return FAILED if done.failed else 0

    return rounds(work, interval, once=once, dry_run=dry_run)


def _remove(target: LakeTarget, gone: list[LakeTopic], *, yes: bool) -> dict[LakeTopic, StoredFiles]:
    if not gone:
        return {}
    names = ", ".join(map("/".join, gone))
    question = f"Delete {names} below {target.source.lake.path} with all records?"
    confirm(question, "no table is deleted", yes=yes)
    iceberg = target.source.iceberg_tables()
    removed = {}
    for table in gone:
        if iceberg is not None:
            iceberg.drop(table)
        removed[table] = target.source.lake.remove_table(table)
    return removed


def _print_expiry(done: ExpiryRound, removed: dict[LakeTopic, StoredFiles], *, dry_run: bool) -> None:
    gone = [{"topic": table.topic, "id": table.topic_id, "removed": table in removed} for table in done.gone]
    if printed_json(msgspec.structs.asdict(done) | {"gone": gone}, compact=True):
        return
    expired = [partition for partition in done.expired if partition.error is None]
    tabulate(expired, _EXPIRED, empty="no files have expired")
    count = sum(vacuumed.files for vacuumed in done.vacuumed)
    files = "1 file" if count == 1 else f"{count} files"
    click.echo(f"{'would delete' if dry_run else 'deleted'} {files} that no table names")
    for table in done.gone:
        what = "its topic is deleted: see --remove-gone"
        if table in removed:
            what = f"deleted, {format_bytes(removed[table].bytes)}"
        click.echo(printable(f"table {'/'.join(table)}: {what}"))


@click.command()
@with_topics
@dry_run_option
@yes_option
def rewind(target: LakeTarget, *, dry_run: bool, yes: bool) -> int:
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
    if not printed_json(done):
        rewound = [partition for partition in done.rewound if partition.error is None]
        tabulate(rewound, _REWOUND, empty="no table is ahead of Redis")
        for table in done.gone:
            click.echo(printable(f"table {'/'.join(table)}: its topic is deleted: see korvet lake expire"))
    return _report_failures(done.rewound)


@click.command()
@with_lake
@option(
    "--metastore URI",
    "Hive metastore: thrift://HOST:9083, or jdbc:... if there is only its database.",
    required=True,
)
@option("--database NAME", "Database of the names.", default="lake")
@option("--location URI", "The lake as other engines call it, as s3a://...")
@option("--hive-conf NAME=VALUE", "More settings of Hive's client.", name="settings", multiple=True)
@rounds_options
def register(  # noqa: PLR0913 - click gives each flag by its name
    target: LakeTarget,
    metastore: str,
    database: str,
    location: str | None,
    settings: tuple[str, ...],
    interval: float | None,
    *,
    once: bool,
    dry_run: bool,
) -> int:
    """Give archived topics names in a Hive metastore, for engines that find tables there.

    A topic's name leads to its table. Tables of topics that were deleted or re-created are under a name with the
    beginning of the topic's id, until they have expired. It changes what is not so, and no name that is not Korvet's;
    no data is deleted. Exit code 1 if somebody else has a name.
    """
    configs = parse_settings("--hive-conf", settings)

    def work() -> int:
        from korvet.lake.registration import plan  # noqa: PLC0415 - other commands start without Delta
        from korvet.spark.metastore import opened  # noqa: PLC0415 - other commands start without Java

        lake = target.source.lake
        with opened(metastore, configs, database) as store, target.source.opened() as stores:
            planned = plan(stores, location or lake.path, store.entries())
            if not dry_run:
                store.apply(planned)
        # Of repeated rounds, only those that did something.
        if interval is None or any(planned):
            _print_names(planned)
        for entry in planned.taken:
            print_error(f"{database}.{entry.name} is not a table of this lake, and stays as it is")
        return FAILED if planned.taken else 0

    return rounds(work, interval, once=once, dry_run=dry_run)


def _print_names(planned: CatalogPlan) -> None:
    rows = [
        {
            "name": entry.name,
            "topic": entry.of and entry.of.topic,
            "id": entry.of and entry.of.topic_id,
            "change": change,
        }
        for change, entries in planned._asdict().items()
        for entry in entries
    ]
    print_result(rows, _REGISTERED, empty="no changes")


@click.group(cls=CommandGroup)
def lake() -> None:
    """Archive topics with remote.storage.enable to Delta tables, and maintain the tables; needs korvet[lake]."""


for command in (archive, compact, expire, pipeline, query, register, replay, rewind, status, verify):
    lake.add_command(command)
for command in (list_pipelines, pipeline_status, start, stop, reset):
    pipeline.add_command(command)
