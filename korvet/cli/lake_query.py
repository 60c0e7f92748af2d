"""`korvet lake query` runs SQL over topics, archived or not; `korvet lake replay` produces a range of a topic again."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.lake_options import LakeTarget, lake_errors, lake_of, lake_options, place_options
from korvet.cli.options import (
    CODECS,
    TOPIC,
    cluster_options,
    compression_option,
    connected,
    parse_time,
    partitions_option,
)
from korvet.cli.output import ProgressLine, print_json, print_table

if TYPE_CHECKING:
    from korvet.spark.query import Result

_NULL = "NULL"


@click.command()
@lake_options
@click.option(
    "--master", metavar="URL", help="Spark's master; by default all cores of this machine, local[*,4]."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, the names of the columns first.")
@click.option(
    "--parquet", "directory", metavar="DIRECTORY", help="Write Parquet files to this directory, a new one."
)
@click.argument("sql")
def query(
    master: str | None,
    directory: str | None,
    sql: str,
    *,
    as_csv: bool,
    as_json: bool,
    **where: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> None:
    """Run an SQL query of Spark's, in which each topic is a view: SELECT count(*) FROM orders.

    It sees what is archived and what is not, with a remote tier or without, and connects to no broker. The columns are
    those of the tables: partition, offset, timestamp, key, value, headers and a few more. Keys and values are bytes:
    CAST(value AS STRING). Put a name with other characters than letters, digits and _ in backticks. With --json each
    row is an object on a line of its own. Bytes are printed as text if they are UTF-8, else with escapes.
    """
    if as_csv + as_json + (directory is not None) > 1:
        raise click.UsageError("--csv, --json and --parquet exclude each other")
    target = lake_of(**where)
    with lake_errors():
        _query(target, master, sql, directory, as_csv=as_csv, as_json=as_json)


def _query(
    target: LakeTarget, master: str | None, sql: str, directory: str | None, *, as_csv: bool, as_json: bool
) -> None:
    from korvet.spark.query import frame_of, result, write_parquet  # noqa: PLC0415 - other commands start without it
    from korvet.spark.session import session  # noqa: PLC0415 - the same

    tables = target.tables()
    with session("korvet lake query", master=master) as spark:
        frame = frame_of(spark, target.source, tables, sql, target.topics)
        if directory is not None:
            write_parquet(frame, directory)
        else:
            _print_rows(result(frame), as_csv=as_csv, as_json=as_json)


def _print_rows(found: Result, *, as_csv: bool, as_json: bool) -> None:
    if as_json:
        for row in found.rows:
            values = {title: _for_json(value) for title, value in zip(found.titles, row, strict=True)}
            click.echo(json.dumps(values, ensure_ascii=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(found.titles)
        # NULL is empty, as usual in CSV.
        writer.writerows(["" if value is None else _text(value) for value in row] for row in found.rows)
    else:
        rows = [[_NULL if value is None else _text(value) for value in row] for row in found.rows]
        print_table(found.titles, rows, numbers=found.numbers)


def _text(value: object) -> str:
    plain = _for_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _for_json(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list):
        return [_for_json(each) for each in value]
    if isinstance(value, dict):
        return {str(_for_json(name)): _for_json(each) for name, each in value.items()}
    return value


if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.lake.replay import Replay, ReplayRange
    from korvet.lake.replay_state import ReplayEdge, ReplaySpec

_OFFSET = click.IntRange(0, 2**63 - 1)


@click.command()
@click.argument("source", metavar="TOPIC", type=TOPIC)
@click.option("--to", "target", required=True, metavar="TOPIC", type=TOPIC, help="The topic to produce to.")
@partitions_option
@click.option("--from-offset", type=_OFFSET, metavar="N", help="Begin at this offset.")
@click.option("--from-time", metavar="TIME", help="Begin at the first record at or after this time.")
@click.option("--to-offset", type=_OFFSET, metavar="N", help="End before this offset.")
@click.option("--to-time", metavar="TIME", help="End before the first record at or after this time.")
@click.option(
    "--partitions",
    "sharing",
    type=click.Choice(("keep", "hash")),
    default="keep",
    show_default=True,
    help="Produce to the same partition, or to that of the key.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N records a second."
)
@compression_option
@click.option(
    "--name",
    metavar="NAME",
    help="The group that keeps the progress of the replay; by default named by its flags.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be replayed.")
@place_options
@cluster_options
def replay(
    bootstrap_server: str,
    timeout: float,
    source: str,
    target: str,
    *,
    as_json: bool,
    dry_run: bool,
    **options: Any,  # noqa: ANN401 - the flags that `lake_of` takes
) -> None:
    """Produce the records of a topic, from the lake and from Redis, to another topic, each exactly once.

    Keys, values, headers, times and the order within a partition stay as they are. Without a range it replays all
    records that exist when it begins. If it is killed or stopped by an error, the same command resumes it, and appends
    nothing twice. Its progress is the committed offsets of a consumer group, whose lag is what is left. TIME is ISO
    8601, UTC without a zone. --timeout is how long a batch may take, including retries.
    """
    begin = _edge(options, "from")
    end = _edge(options, "to")
    mine = {key: options.pop(key) for key in ("partitions", "sharing", "rate", "compression", "name")}
    where = lake_of(**options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with lake_errors():
        from korvet.lake.replay_state import ReplaySpec  # noqa: PLC0415 - other commands start without Delta

        spec = ReplaySpec(
            source=source,
            target=target,
            partitions=tuple(sorted(set(mine["partitions"]))),
            start=begin,
            end=end,
            partitioning=mine["sharing"],
        )
        with (
            connected(bootstrap_server, timeout) as admin,
            _opened(admin, where, spec, mine["name"]) as found,
        ):
            if not dry_run:
                _run(found, mine["rate"], CODECS.index(mine["compression"]))
            _print_replay(found, as_json=as_json, dry_run=dry_run)


@contextlib.contextmanager
def _opened(admin: AdminClient, where: LakeTarget, spec: ReplaySpec, name: str | None) -> Iterator[Replay]:
    from korvet.lake.replay import Replay, ReplaySource  # noqa: PLC0415 - other commands start without it

    with where.source.opened() as stores:
        reading = ReplaySource(stores, where.tables(), where.source)
        yield Replay(admin, reading, spec, name)


def _run(found: Replay, rate: float | None, codec: int) -> None:
    from korvet.lake.replay import RecordRate  # noqa: PLC0415 - other commands start without Delta

    if found.resumed:
        click.echo(f"resuming {found.name}", err=True)
    progress = ProgressLine(shown=sys.stderr.isatty())
    try:
        found.run(RecordRate(rate), codec, progress.add)
    finally:
        progress.end()


def _edge(options: dict[str, Any], which: str) -> ReplayEdge:
    """Return where the flags begin or end the range. Raises UsageError."""
    from korvet.lake.replay_state import ReplayEdge  # noqa: PLC0415 - other commands start without Delta

    offset, time = options.pop(f"{which}_offset"), options.pop(f"{which}_time")
    if offset is not None and time is not None:
        raise click.UsageError(f"--{which}-offset and --{which}-time exclude each other")
    if time is None:
        return ReplayEdge(offset=offset)
    try:
        return ReplayEdge(timestamp=parse_time(time))
    except ValueError as error:
        message = f"--{which}-time takes 2026-01-31T12:00:00+01:00, from 1970 on, not {time!r}"
        raise click.UsageError(message) from error


def _print_replay(found: Replay, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        rows = [
            {
                "partition": each.partition,
                "from": each.first,
                "to": each.end,
                "next": each.next_offset,
                "records": each.records,
            }
            for each in found.ranges
        ]
        print_json(
            {"name": found.name, "resumed": found.resumed, "executed": not dry_run, "partitions": rows}
        )
        return
    titles = ("Partition", "From", "To", "Next", "Records")
    print_table(titles, [_cells(each) for each in found.ranges], numbers=titles)
    if dry_run:
        click.echo("Dry run: nothing is produced.")


def _cells(each: ReplayRange) -> tuple[str, ...]:
    return tuple(map(str, (each.partition, each.first, each.end, each.next_offset, each.records)))
