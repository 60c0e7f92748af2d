"""`korvet lake query` runs SQL over topics, archived or not; `korvet lake replay` produces a range of a topic again."""

from __future__ import annotations

import csv
import json
import signal
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.cli.lake_options import LakeTarget, started_spark, waiting_for_spark, with_lake, with_topics
from korvet.cli.options import (
    CODECS,
    TOPIC,
    ClusterCommand,
    ClusterTarget,
    compression_option,
    connected,
    option,
    parse_as_of,
    parse_time_of,
    partitions_option,
)
from korvet.cli.output import ProgressLine, json_wanted, printed_json
from korvet.cli.tables import as_objects, number, print_table, tabulate

if TYPE_CHECKING:
    from korvet.lake.replay_state import ReplayEdge, ReplaySpec
    from korvet.spark.query import Result

_NULL = "NULL"

_OFFSET = click.IntRange(0, 2**63 - 1)
_RANGE = (
    number("partition"),
    number("from", "first"),
    number("to", "end"),
    number("next", "next_offset"),
    number("records"),
)

_as_of_option = option(
    "--as-of VERSION|TIME",
    "Read the table as it was after that commit, or at that time, and nothing of Redis.",
)


@click.command()
@with_topics
@option("--master URL", "Spark's master; by default all cores of this machine, local[*,4].")
@option("--csv", "Print CSV, the names of the columns first.", name="as_csv")
@option("--parquet DIRECTORY", "Write Parquet files to this directory, a new one.", name="directory")
@_as_of_option
@click.argument("sql")
def query(
    target: LakeTarget,
    master: str | None,
    directory: str | None,
    as_of: str | None,
    sql: str,
    *,
    as_csv: bool,
) -> None:
    """Run an SQL query of Spark's, in which each topic is a view: SELECT count(*) FROM orders.

    It sees what is archived and what is not, with a remote tier or without, and connects to no broker. The columns are
    those of Spark's Kafka source (key, value, topic, partition, offset, timestamp, timestampType, headers) and a few
    more. Keys and values are bytes: CAST(value AS STRING). Put a name with other characters than letters, digits and _
    in backticks. With --json each row is an object on a line of its own. Bytes are printed as text if they are UTF-8,
    else with escapes.
    """
    if as_csv + json_wanted() + (directory is not None) > 1:
        raise click.UsageError("--csv, --json and --parquet exclude each other")
    then = parse_as_of(as_of)
    from korvet.spark.query import frame_of, result, write_parquet  # noqa: PLC0415 - other commands start without it

    with started_spark("korvet lake query", master) as spark:
        with waiting_for_spark("running the query"):
            frame = frame_of(spark, target.source, sql, target.topics, then)
            if directory is not None:
                write_parquet(frame, directory)
                return
            answer = result(frame)
            # They are read while they are printed: with the first of them the query has run, or most of it.
            first = list(islice(answer.rows, 1))
        _print_rows(answer._replace(rows=chain(first, answer.rows)), as_csv=as_csv, as_json=json_wanted())


def _print_rows(result: Result, *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        for row in result.rows:
            values = {title: _for_json(value) for title, value in zip(result.titles, row, strict=True)}
            click.echo(json.dumps(values, ensure_ascii=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.titles)
        # NULL is empty, as usual in CSV.
        writer.writerows(["" if value is None else _text(value) for value in row] for row in result.rows)
    else:
        rows = [[_NULL if value is None else _text(value) for value in row] for row in result.rows]
        print_table(result.titles, rows, numbers=result.numbers, empty="no rows")


def _text(value: object) -> str:
    plain = _for_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _for_json(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list):
        return [_for_json(element) for element in value]
    if isinstance(value, dict):
        return {str(_for_json(name)): _for_json(field) for name, field in value.items()}
    return value


@click.command(cls=ClusterCommand)
@click.argument("source", metavar="TOPIC", type=TOPIC)
@option("--to TOPIC", "The topic to produce to.", TOPIC, name="target", required=True)
@partitions_option
@option("--from-offset N", "Begin at this offset.", _OFFSET)
@option("--from-time TIME", "Begin at the first record at or after this time.")
@option("--to-offset N", "End before this offset.", _OFFSET)
@option("--to-time TIME", "End before the first record at or after this time.")
@_as_of_option
@option(
    "--partitions",
    "Produce to the same partition, or to that of the key.",
    click.Choice(("keep", "hash")),
    name="sharing",
    default="keep",
)
@option("--rate N", "At most N records a second.", click.FloatRange(min=0, min_open=True))
@compression_option
@option("--name NAME", "The group that keeps the progress of the replay; by default named by its flags.")
@option(
    "--transactional",
    "Commit records and progress together by transactions, for consumers with read_committed.",
)
@option("--dry-run", "Only show what would be replayed.")
@with_lake
def replay(
    place: LakeTarget,
    cluster: ClusterTarget,
    source: str,
    target: str,
    *,
    dry_run: bool,
    transactional: bool,
    **options: Any,  # noqa: ANN401 - of many kinds, by name
) -> None:
    """Produce the records of a topic, from the lake and from Redis, to another topic, each exactly once.

    Keys, values, headers, times and the order within a partition stay as they are. Without a range it replays all
    records that exist when it begins. If it is killed or stopped by an error, the same command resumes it, and appends
    nothing twice (with --transactional: commits nothing twice). Its progress is the committed offsets of a consumer
    group, whose lag is what is left. TIME is ISO 8601, UTC without a zone. --timeout is how long a batch may take,
    including retries.
    """
    from korvet.lake.replay import RecordRate, Replay  # noqa: PLC0415 - other commands start without Delta

    spec = _spec(source, target, options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with connected(cluster) as admin, place.source.opened() as stores:
        run = Replay(admin, stores, spec, options["name"], transactional=transactional)
        if run.resumed and not dry_run:
            click.echo(f"resuming {run.name}", err=True)
        if not dry_run:
            with ProgressLine() as progress:
                codec = CODECS.index(options["compression"])
                run.run(RecordRate(options["rate"]), codec, progress.add)
        ranges = as_objects(run.ranges, _RANGE)
    replayed = {"name": run.name, "resumed": run.resumed, "executed": not dry_run, "partitions": ranges}
    if printed_json(replayed):
        return
    tabulate(ranges, _RANGE, empty="nothing to replay")
    if dry_run:
        click.echo("Dry run: nothing is produced.")


def _spec(source: str, target: str, options: dict[str, Any]) -> ReplaySpec:
    """Return what the flags say. Raises UsageError."""
    from korvet.lake.replay_state import ReplaySpec  # noqa: PLC0415 - other commands start without Delta

    start, end = _edge(options, "from"), _edge(options, "to")
    for flag, first, last in (("offset", start.offset, end.offset), ("time", start.timestamp, end.timestamp)):
        if first is not None and last is not None and last < first:
            raise click.UsageError(f"--to-{flag} is before --from-{flag}")
    as_of = parse_as_of(options["as_of"])
    return ReplaySpec(
        as_of=msgspec.UNSET if as_of is None else as_of,
        source=source,
        target=target,
        partitions=tuple(sorted(set(options["partitions"]))),
        start=start,
        end=end,
        partitioning=options["sharing"],
    )


def _edge(options: dict[str, Any], which: str) -> ReplayEdge:
    """Return where the flags begin or end the range. Raises UsageError."""
    from korvet.lake.replay_state import ReplayEdge  # noqa: PLC0415 - other commands start without Delta

    offset, time = options[f"{which}_offset"], options[f"{which}_time"]
    if offset is not None and time is not None:
        raise click.UsageError(f"--{which}-offset and --{which}-time exclude each other")
    if time is None:
        return ReplayEdge(offset=offset)
    return ReplayEdge(timestamp=parse_time_of(f"--{which}-time", time))
