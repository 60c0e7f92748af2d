"""`korvet consume`: writes records of topics to standard output, from where it is told on, as text or JSON.

Knows flags; where reading begins stands in `start`, how records look in `record_format` and `record_json`, and how
they are read in `consuming`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from korvet.cli import start
from korvet.cli.bootstrap import cluster_options, connected
from korvet.cli.kafka_client import failures_of_client_told
from korvet.cli.names import GROUP, TOPIC
from korvet.cli.progress import Progress
from korvet.cli.record import Read
from korvet.cli.record_flags import partitions_option
from korvet.cli.record_format import LONG, PLACEHOLDERS, VALUE, formatter
from korvet.cli.record_json import line_of

if TYPE_CHECKING:
    from korvet.admin import AdminClient, TopicPartition

_PLACEHOLDERS = ", ".join(f"%{letter} {meaning}" for letter, meaning in PLACEHOLDERS.items())


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@partitions_option
@click.option("--offset", "-o", "where", metavar="WHERE", help=f"Where to begin: {start.FORMS}.")
@click.option("--group", "-g", metavar="NAME", type=GROUP, help="Read as a member of this group, and commit.")
@click.option("--max-records", "-n", metavar="N", type=click.IntRange(min=1), help="End after so many.")
@click.option(
    "--exit/--follow", "exits", help="End at what is the end of the log now, or wait for more, the default."
)
@click.option(
    "--format",
    "template",
    metavar="TEXT",
    help=f"How a record is written, with \\n and \\t: {_PLACEHOLDERS}.",
)
@click.option(
    "--long", "-l", is_flag=True, help="Each with topic, partition, offset, time, key, value and headers."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Each as a line of JSON, which korvet produce --json reads."
)
@click.option("--null", metavar="TEXT", default="", help="What is written for a key or a value that is null.")
@cluster_options
def consume(
    bootstrap_server: str,
    timeout: float,
    topics: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> None:
    """Write the records of topics to standard output, and wait for more until Ctrl-C.

    A number as WHERE is an offset, and -N the last N records of each partition; an offset that the log does not have
    any more, or not yet, is the nearest one that it has. With --group the group goes on where it has come to, and WHERE
    (beginning or end) counts where it has committed nothing. To a terminal values are written with what it would act
    upon escaped.
    """
    write = _writer(options)
    begins = start.read(options["where"])
    group = options["group"]
    if group is not None and options["partitions"]:
        raise click.UsageError(
            "--group and --partition exclude each other: a group shares out all partitions"
        )
    if group is not None and begins not in start.OF_A_GROUP:
        raise click.UsageError("--group goes on where it has come to: --offset is beginning or end")
    from korvet.cli import consuming  # noqa: PLC0415 - imports aiokafka

    with connected(bootstrap_server, timeout) as admin:
        wished = _partitions(admin, topics, options["partitions"])
        spans = {} if group is not None else start.spans(admin, wished, begins)
    progress = Progress(shown=sys.stderr.isatty() and not sys.stdout.isatty())
    output = consuming.Output(write, progress, options["max_records"])
    try:
        with failures_of_client_told():
            if group is not None:
                member = consuming.Member(bootstrap_server, timeout, group, begins is start.BEGINNING)
                asyncio.run(consuming.read_as_member(member, topics, output, exits=options["exits"]))
            else:
                asyncio.run(
                    consuming.read_all(bootstrap_server, spans, begins, output, exits=options["exits"])
                )
    finally:
        progress.end()


def _writer(options: Mapping[str, Any]) -> Callable[[Read], bytes]:
    given = [name for name in ("template", "long", "as_json") if options[name] not in (None, False)]
    if len(given) > 1:
        raise click.UsageError("--format, --long and --json exclude each other")
    if options["as_json"]:
        return lambda record: line_of(record).encode() + b"\n"
    template = options["template"]
    if template is None:
        template = LONG if options["long"] else VALUE
    try:
        return formatter(template, os.fsencode(options["null"]), terminal=sys.stdout.isatty())
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from error


def _partitions(
    admin: AdminClient, topics: tuple[str, ...], indexes: tuple[int, ...]
) -> list[TopicPartition]:
    """Return the partitions that are wished for; raises AdminError for what is not there."""
    from korvet.admin import TopicPartition  # noqa: PLC0415 - other commands start without it

    topology = admin.topology(topics)
    for error in topology.failed.values():
        raise error
    places = [
        TopicPartition(topic, index)
        for topic in dict.fromkeys(topics)
        for index in dict.fromkeys(indexes or topology.partitions[topic])
    ]
    for place in places:
        if place.partition not in topology.partitions[place.topic]:
            raise click.ClickException(f"there is no partition {place}")
    return places
