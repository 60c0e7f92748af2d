"""`korvet consume`: writes records of topics to standard output, from where it is told on, as text or JSON.

Knows flags; where reading begins stands in `start`, how records look in `record_format` and `record_json`, and how
they are read in `consuming`.

Where reading of a log begins, as an operator writes it, and what that comes to in each partition.

Knows the forms of `--offset` and asks an admin client; not how records are read.

Finds the last records of a log whose offsets have gaps: no offset says how many records lie behind it.

Pure but for the log that it is given. It reads stretches that end where it has counted already, longer ones as long as
they hold too few records, and shorter ones where they hold too many.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from korvet.cli.arguments import GROUP, TOPIC, milliseconds_of
from korvet.cli.bootstrap import cluster_options, connected
from korvet.cli.kafka_client import Progress, failures_of_client_told
from korvet.cli.records import LONG, PLACEHOLDERS, VALUE, Read, formatter, line_of, partitions_option

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.types import TopicPartition

FORMS = "beginning, end, N, -N, a time as 2026-01-31T12:00:00Z, or @MS in ms since 1970"

_OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"(?P<sign>[-@]?)(?P<digits>\d{1,19})", re.ASCII)


class Start(NamedTuple):
    """Where to begin: one of these is set, or none for the beginning. `time` is in ms since 1970."""

    end: bool = False
    offset: int | None = None
    last: int | None = None
    time: int | None = None


class Span(NamedTuple):
    """A part of a log: the offset of its first record, or of a later one where there is none, and the end."""

    begin: int
    end: int


BEGINNING = Start()
END = Start(end=True)
OF_A_GROUP = (BEGINNING, END)


def read(text: str | None) -> Start:
    """Read what --offset says, nothing being the beginning; raises UsageError."""
    if text is None or text == "beginning":
        return BEGINNING
    if text == "end":
        return END
    match = _NUMBER.fullmatch(text)
    number = int(match["digits"]) if match else 0
    if match and number <= _OFFSET_MAX:
        return {"": Start(offset=number), "-": Start(last=number), "@": Start(time=number)}[match["sign"]]
    try:
        return Start(time=milliseconds_of(text))
    except ValueError as error:
        raise click.UsageError(f"--offset takes {FORMS}; not {text!r}") from error


def spans(admin: AdminClient, places: Iterable[TopicPartition], begins: Start) -> dict[TopicPartition, Span]:
    """Return for each partition where to begin and where it ends now; with Start.last, all of it. Raises AdminError."""
    from korvet.admin.offsets import EARLIEST, LATEST  # noqa: PLC0415 - other commands start without it
    from korvet.admin.types import settled  # noqa: PLC0415 - other commands start without it

    wanted = list(places)
    first = settled(admin.offsets.at(dict.fromkeys(wanted, EARLIEST)))
    end = settled(admin.offsets.at(dict.fromkeys(wanted, LATEST)))
    timed = {}
    if begins.time is not None:
        timed = settled(admin.offsets.at(dict.fromkeys(wanted, begins.time)))

    def span(place: TopicPartition) -> Span:
        low, high = first[place].offset, end[place].offset
        if begins.end or begins.last == 0:
            return Span(high, high)
        if begins.offset is not None:
            return Span(min(max(begins.offset, low), high), high)
        if begins.time is not None:
            found = timed[place].offset
            return Span(high if found < 0 else max(found, low), high)
        return Span(low, high)

    return {place: span(place) for place in wanted}


if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.types import TopicPartition

_PLACEHOLDERS = ", ".join(f"%{letter} {meaning}" for letter, meaning in PLACEHOLDERS.items())


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@partitions_option
@click.option("--offset", "-o", "where", metavar="WHERE", help=f"Where to begin: {FORMS}.")
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
    begins = read(options["where"])
    group = options["group"]
    if group is not None and options["partitions"]:
        raise click.UsageError(
            "--group and --partition exclude each other: a group shares out all partitions"
        )
    if group is not None and begins not in OF_A_GROUP:
        raise click.UsageError("--group goes on where it has come to: --offset is beginning or end")
    from korvet.cli import consuming  # noqa: PLC0415 - imports aiokafka

    with connected(bootstrap_server, timeout) as admin:
        wished = _partitions(admin, topics, options["partitions"])
        found_spans = {} if group is not None else spans(admin, wished, begins)
    progress = Progress(shown=sys.stderr.isatty() and not sys.stdout.isatty())
    output = consuming.Output(write, progress, options["max_records"])
    try:
        with failures_of_client_told():
            if group is not None:
                member = consuming.Member(bootstrap_server, timeout, group, begins is BEGINNING)
                asyncio.run(consuming.read_as_member(member, topics, output, exits=options["exits"]))
            else:
                asyncio.run(
                    consuming.read_all(bootstrap_server, found_spans, begins, output, exits=options["exits"])
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
    from korvet.admin.types import TopicPartition  # noqa: PLC0415 - other commands start without it

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


# Beside what is wanted: a stretch with that many more is cheaper to read than to cut.
_SPARE = 1000
_LONGER = 16


class Log(Protocol):
    """A log to look through."""

    async def offsets(self, begin: int, end: int, count_max: int) -> list[int] | None:
        """Return the offsets of the records with begin <= offset < end, or None for more than `count_max`."""
        ...


async def last_records(log: Log, span: Span, count: int) -> int:
    """Return the offset of the first of the last `count` records of a span, or where it begins if it has fewer."""
    end, left = span.end, count
    length, factor = count, _LONGER
    while end > span.begin:
        begin = max(span.begin, end - length)
        found = await log.offsets(begin, end, left + _SPARE)
        if found is None:
            # Never reached with length 1: one offset is one record.
            length, factor = max(1, (end - begin) // 2), 2
            continue
        if len(found) >= left:
            return found[-left]
        left -= len(found)
        end = begin
        length *= factor
    return span.begin
