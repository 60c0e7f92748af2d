"""`korvet lake replay`: produces a range of a topic, archived or not, into a topic again."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.bootstrap import cluster_options, connected, print_table
from korvet.cli.lake_options import Lake, failures_of_lake_told, lake_of, place_options
from korvet.cli.names import TOPIC
from korvet.cli.progress import Progress
from korvet.cli.record_flags import CODECS, compression_option, partitions_option
from korvet.cli.times import milliseconds_of

if TYPE_CHECKING:
    from korvet.admin import AdminClient
    from korvet.lake.replay import Range, Replay
    from korvet.lake.replay_state import Edge, Wish

_OFFSET = click.IntRange(0, 2**63 - 1)


@click.command()
@click.argument("source", metavar="TOPIC", type=TOPIC)
@click.option("--to", "target", required=True, metavar="TOPIC", type=TOPIC, help="The topic to produce to.")
@partitions_option
@click.option("--from-offset", type=_OFFSET, metavar="N", help="Begin at this offset.")
@click.option(
    "--from-time", metavar="TIME", help="Begin at the first record of this time, or of a later one."
)
@click.option("--to-offset", type=_OFFSET, metavar="N", help="End before this offset.")
@click.option(
    "--to-time", metavar="TIME", help="End before the first record of this time, or of a later one."
)
@click.option(
    "--partitions",
    "sharing",
    type=click.Choice(("keep", "hash")),
    default="keep",
    show_default=True,
    help="Where records go: to the same partition, or to that of their keys.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Records in a second, at most."
)
@compression_option
@click.option(
    "--name",
    metavar="NAME",
    help="The group that keeps what the replay has come to; by default by its flags.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be replayed.")
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
    **options: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> None:
    """Produce the records of a topic, from the lake and from Redis, into another topic once more, each once.

    Keys, values, headers and times stay as they are, and the order within a partition. Without a range it is all that
    there is when the replay begins. Killed, or stopped by an error, the same command goes on where it was: what was
    appended is not appended again. What it has come to is kept as a consumer group, whose lag is what is left. TIME is
    ISO 8601, UTC without a zone. --timeout is how long a batch may take, with all tries.
    """
    begin = _edge(options, "from")
    end = _edge(options, "to")
    mine = {key: options.pop(key) for key in ("partitions", "sharing", "rate", "compression", "name")}
    where = lake_of(**options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with failures_of_lake_told():
        from korvet.lake.replay_state import Wish  # noqa: PLC0415 - other commands start without Delta

        wish = Wish(
            source=source,
            target=target,
            partitions=tuple(sorted(set(mine["partitions"]))),
            begin=begin,
            end=end,
            sharing=mine["sharing"],
        )
        with (
            connected(bootstrap_server, timeout) as admin,
            _opened(admin, where, wish, mine["name"]) as found,
        ):
            if not dry_run:
                _run(found, mine["rate"], CODECS.index(mine["compression"]))
            _print(found, as_json=as_json, dry_run=dry_run)


@contextlib.contextmanager
def _opened(admin: AdminClient, where: Lake, wish: Wish, name: str | None) -> Iterator[Replay]:
    from korvet.lake.replay import Reading, Replay  # noqa: PLC0415 - other commands start without Delta
    from korvet.lake.tables import Lake as Tables  # noqa: PLC0415 - the same

    with where.source.opened() as stores:
        reading = Reading(stores, Tables(where.uri, where.storage_options), where.source)
        yield Replay(admin, reading, wish, name)


def _run(found: Replay, rate: float | None, codec: int) -> None:
    from korvet.lake.pace import Pace  # noqa: PLC0415 - other commands start without Delta

    if found.resumed:
        click.echo(f"going on with {found.name}", err=True)
    progress = Progress(shown=sys.stderr.isatty())
    try:
        found.run(Pace(rate), codec, progress.add)
    finally:
        progress.end()


def _edge(options: dict[str, Any], which: str) -> Edge:
    """Return where flags let a range begin or end; raises UsageError for two of them, or a time that is none."""
    from korvet.lake.replay_state import Edge  # noqa: PLC0415 - other commands start without Delta

    offset, time = options.pop(f"{which}_offset"), options.pop(f"{which}_time")
    if offset is not None and time is not None:
        raise click.UsageError(f"--{which}-offset and --{which}-time exclude each other")
    if time is None:
        return Edge(offset=offset)
    try:
        return Edge(timestamp=milliseconds_of(time))
    except ValueError as error:
        message = f"--{which}-time takes 2026-01-31T12:00:00+01:00, from 1970 on, not {time!r}"
        raise click.UsageError(message) from error


def _print(found: Replay, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        rows = [
            {
                "partition": each.partition,
                "from": each.first,
                "to": each.behind,
                "next": each.next_offset,
                "records": each.records,
            }
            for each in found.ranges
        ]
        told = {"name": found.name, "resumed": found.resumed, "executed": not dry_run, "partitions": rows}
        click.echo(json.dumps(told, indent=2))
        return
    titles = ("Partition", "From", "To", "Next", "Records")
    print_table(titles, [_cells(each) for each in found.ranges], numbers=titles)
    if dry_run:
        click.echo("Nothing is produced: this is what the replay would do, and how far it has come.")


def _cells(each: Range) -> tuple[str, ...]:
    return tuple(map(str, (each.partition, each.first, each.behind, each.next_offset, each.records)))
