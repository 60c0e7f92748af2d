"""`korvet produce`: makes records of what stands in files or on standard input, and waits until each is delivered.

Knows flags and what a piece of input comes to; how pieces are read stands in `record_source`, how records are sent in
`producing`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from korvet.cli.bootstrap import cluster_options, connected, shown
from korvet.cli.kafka_client import failures_of_client_told
from korvet.cli.names import TOPIC
from korvet.cli.progress import Progress
from korvet.cli.record import Headers, Record, RecordError
from korvet.cli.record_flags import PARTITION, compression_option
from korvet.cli.record_json import record_of
from korvet.cli.record_source import SourceError, pieces
from korvet.errors import ErrorCode

_ACKS = {"0": 0, "1": 1, "all": -1}
# Flags that exclude each other, by what they say about: where records end, where keys are, where partitions are.
_EXCLUSIVE = (
    ("whole", "null_delimited", "as_json"),
    ("key_separator", "key", "as_json"),
    ("whole", "key_separator"),
    ("as_json", "null"),
    ("partition", "keep_partitions"),
)

Reader = Callable[[bytes], Record]


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path())
@click.option(
    "--json", "as_json", is_flag=True, help="Each line is a record as korvet consume --json writes it."
)
@click.option(
    "--key-separator", "-K", metavar="TEXT", help="What stands in each record between key and value."
)
@click.option("--key", "-k", metavar="TEXT", help="The key of all records.")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header of all; may be repeated."
)
@click.option("--null", metavar="TEXT", help="A key or a value that is just this text is null.")
@click.option(
    "--null-delimited", "-0", is_flag=True, help="A null byte ends each record, instead of a line's end."
)
@click.option("--whole", is_flag=True, help="Each file is one record.")
@click.option("--partition", "-p", type=PARTITION, metavar="N", help="The partition, instead of one by key.")
@click.option("--keep-partitions", is_flag=True, help="With --json: the partitions that stand in the lines.")
@compression_option
@click.option(
    "--acks",
    type=click.Choice(tuple(_ACKS)),
    default="all",
    show_default=True,
    help="Which replicas must have a record before it counts as delivered.",
)
@click.option(
    "--idempotence/--no-idempotence",
    default=None,
    help="Whether a batch that is sent again is never written twice; by default with --acks all.",
)
@cluster_options
def produce(
    bootstrap_server: str,
    timeout: float,
    topic: str,
    files: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> None:
    """Write records to a topic: each line of the files, or of standard input, is one.

    Ends when all are delivered. At the first that cannot be read, or is not delivered, it stops, says where that stood
    in the input, and exits with 1: those before it may have been delivered. A record without a key or a partition goes
    to any partition; --timeout is how long its delivery may take, with all tries.
    """
    read = reader(options)
    acks = _ACKS[options["acks"]]
    idempotent = acks < 0 if options["idempotence"] is None else options["idempotence"]
    if idempotent and acks >= 0:
        raise click.UsageError(f"--idempotence needs --acks all, not {options['acks']}")
    delimiter = None if options["whole"] else b"\0" if options["null_delimited"] else b"\n"
    names = files or ("-",)
    from korvet.cli.producing import NotDeliveredError, Sender, deliver  # noqa: PLC0415 - imports aiokafka

    with connected(bootstrap_server, timeout) as admin:
        failed = admin.topology([topic]).failed.get(topic)
        # One that is not there may be made by asking for it: whoever sends to it does.
        if failed is not None and failed.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise failed
    compression = None if options["compression"] == "none" else options["compression"]
    sender = Sender(bootstrap_server, timeout, acks, idempotent, compression)
    typed = "-" in names and sys.stdin.isatty()
    progress = Progress(shown=sys.stderr.isatty() and not typed)
    try:
        with failures_of_client_told():
            asyncio.run(deliver(sender, topic, pieces(names, delimiter), read, progress))
    except (SourceError, NotDeliveredError) as error:
        raise click.ClickException(shown(str(error))) from error
    finally:
        progress.end()


def reader(options: Mapping[str, Any]) -> Reader:
    """Return what makes a record of a piece or raises RecordError; raises UsageError for flags that do not agree."""
    for names in _EXCLUSIVE:
        given = [name for name in names if options[name] not in (None, False)]
        if len(given) > 1:
            flags = " and ".join(
                f"--{'json' if name == 'as_json' else name.replace('_', '-')}" for name in given
            )
            raise click.UsageError(f"{flags} exclude each other")
    if options["keep_partitions"] and not options["as_json"]:
        raise click.UsageError("--keep-partitions goes with --json")
    common = [_header(text) for text in options["headers"]]
    partition = options["partition"]
    if options["as_json"]:
        return _json_reader(common, partition, keeps=options["keep_partitions"])
    return _text_reader(options, common, partition)


def _json_reader(common: Headers, partition: int | None, *, keeps: bool) -> Reader:
    def read(content: bytes) -> Record:
        record = record_of(content)
        where = record.partition if keeps else partition
        return record._replace(headers=[*record.headers, *common], partition=where)

    return read


def _text_reader(options: Mapping[str, Any], common: Headers, partition: int | None) -> Reader:
    null = None if options["null"] is None else os.fsencode(options["null"])
    separator = None if options["key_separator"] is None else os.fsencode(options["key_separator"])
    if separator == b"":
        raise click.UsageError("--key-separator takes at least one character")
    one_key = None if options["key"] is None else os.fsencode(options["key"])

    def part(content: bytes) -> bytes | None:
        return None if content == null else content

    def read(content: bytes) -> Record:
        if separator is None:
            return Record(one_key, part(content), common, partition=partition)
        key, found, value = content.partition(separator)
        if not found:
            raise RecordError(f"no {os.fsdecode(separator)!r} between a key and a value")
        return Record(part(key), part(value), common, partition=partition)

    return read


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header takes NAME=VALUE, not {text!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"--header takes names in UTF-8, not {name!r}") from error
    return name, os.fsencode(value)
