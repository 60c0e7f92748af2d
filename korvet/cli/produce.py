"""`korvet produce`: makes records of what stands in files or on standard input, and waits until each is delivered.

Knows flags and what a piece of input comes to; how pieces are read stands in `record_source`, how records are sent in
`producing`.

Pieces of standard input or of files, as records are made of them: lines, what lies between null bytes, or all.

Knows bytes and where they stood; nothing of Kafka. A terminal or a pipe is waited for without a thread, so that Ctrl-C
ends a wait at once.

Sends records with aiokafka, as many on their way as it takes, and keeps account of what became of each.

Knows the client and where each record stood; not how records are written down. Imports aiokafka: import it late.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from aiokafka import AIOKafkaProducer

from korvet.cli.arguments import TOPIC
from korvet.cli.bootstrap import cluster_options, connected, shown
from korvet.cli.kafka_client import Progress, addresses, failures_of_client_told, told
from korvet.cli.records import PARTITION, Headers, Record, RecordError, compression_option, record_of
from korvet.errors import ErrorCode

PIECE_BYTES_MAX = 64 << 20
"""More than a record of Kafka can well be: a piece without an end must not fill the memory."""

_READ_BYTES = 1 << 18


class Piece(NamedTuple):
    """Some bytes, and where they stood, for a message."""

    content: bytes
    place: str


class SourceError(Exception):
    """What cannot be read, or is too large; the text says where."""


async def pieces(names: tuple[str, ...], delimiter: bytes | None) -> AsyncIterator[list[Piece]]:
    """Yield the pieces of files one after the other, "-" being standard input, as many at once as were read.

    `delimiter` ends each piece, the last one may lack it; None makes each file one piece. Raises SourceError.
    """
    for name in names:
        title = "" if name == "-" else f"{name}: "
        try:
            descriptor = 0 if name == "-" else os.open(name, os.O_RDONLY)
        except OSError as error:
            raise SourceError(f"{name}: {error.strerror}") from error
        try:
            async for some in _pieces(descriptor, title, delimiter):
                yield some
        except OSError as error:
            raise SourceError(f"{title or 'standard input: '}{error.strerror}") from error
        finally:
            if descriptor:
                os.close(descriptor)


async def _pieces(descriptor: int, title: str, delimiter: bytes | None) -> AsyncIterator[list[Piece]]:
    word = "line" if delimiter == b"\n" else "record"
    number, rest = 0, bytearray()
    async for chunk in _chunks(descriptor):
        if delimiter is None or delimiter not in chunk:
            rest += chunk
            if len(rest) > PIECE_BYTES_MAX:
                raise SourceError(f"{title}{word} {number + 1}: longer than {PIECE_BYTES_MAX >> 20} MiB")
            continue
        *whole, left = (bytes(rest) + chunk).split(delimiter)
        rest = bytearray(left)
        yield [Piece(each, f"{title}{word} {number + index}") for index, each in enumerate(whole, 1)]
        number += len(whole)
    if rest or delimiter is None:
        yield [Piece(bytes(rest), f"{title}{word} {number + 1}")]


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    while chunk := await _read(descriptor):
        yield chunk


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        # A regular file: it is always ready, and epoll does not take it.
        await asyncio.sleep(0)
    else:
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    return os.read(descriptor, _READ_BYTES)


if TYPE_CHECKING:
    from asyncio import Future

_BATCH_BYTES = 256 << 10
# Long enough for neighbours to come into one batch, too short to be noticed at a terminal.
_LINGER_MS = 5
# A topic that is not there is made by asking for it, unless the broker is told not to: that is no matter of seconds.
_TOPIC_SECONDS_MAX = 5.0


class NotDeliveredError(Exception):
    """A record could not be made or was not delivered; the text says which, and how many were."""


class Sender(NamedTuple):
    """How records are sent. `timeout` is how many seconds a delivery may take; `acks` is -1 for all."""

    bootstrap_server: str
    timeout: float
    acks: int
    idempotent: bool
    compression: str | None

    def producer(self) -> Any:  # noqa: ANN401 - aiokafka carries no types
        """Return a client; to be made inside a running loop."""
        return AIOKafkaProducer(
            bootstrap_servers=addresses(self.bootstrap_server),
            client_id="korvet-produce",
            request_timeout_ms=max(1, int(self.timeout * 1000)),
            acks=self.acks,
            enable_idempotence=self.idempotent,
            compression_type=self.compression,
            max_batch_size=_BATCH_BYTES,
            # What is too large is for the broker to say: it knows the topic's limit.
            max_request_size=2 * PIECE_BYTES_MAX,
            linger_ms=_LINGER_MS,
        )


class Account:
    """What became of the records that were sent: the first failure stands for all."""

    def __init__(self, progress: Progress) -> None:
        self.sent = self.delivered = 0
        self.failure: str | None = None
        self._progress = progress

    def follow(self, future: Future[Any], place: str, size: int) -> None:
        """Take account of a record once it is settled."""
        self.sent += 1
        future.add_done_callback(lambda done: self._settled(done, place, size))

    def fail(self, place: str, why: str) -> None:
        """Note a failure, unless there was one before."""
        self.failure = self.failure or f"{place}: {why}"

    def check(self) -> None:
        """Raise NotDeliveredError where a record failed, or never came to an end."""
        if self.failure is None and self.delivered == self.sent:
            return
        reason = self.failure or "the client has given up"
        raise NotDeliveredError(f"{reason}; delivered are {self.delivered} of {self.sent} sent")

    def _settled(self, future: Future[Any], place: str, size: int) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.fail(place, told(error))
        elif not future.cancelled():
            self.delivered += 1
            self._progress.add(1, size)


async def deliver(
    sender: Sender,
    topic: str,
    source: AsyncIterator[list[Piece]],
    read: Callable[[bytes], Record],
    progress: Progress,
) -> None:
    """Send each piece as a record that `read` makes of it, and wait until all are delivered; stop at the first failure.

    Raises NotDeliveredError, SourceError, and aiokafka's KafkaError where no broker can be reached.
    """
    account = Account(progress)
    producer = sender.producer()
    try:
        await producer.start()
        partitions = await _partitions(producer, topic, sender.timeout)
        async for some in source:
            for content, place in some:
                if account.failure is None:
                    try:
                        future = await _send(producer, topic, partitions, read(content))
                    except RecordError as error:
                        account.fail(place, str(error))
                    else:
                        account.follow(future, place, len(content))
            if account.failure is not None:
                break
    finally:
        # Sends what waits, also where the input ended with an error: the lines before it are good ones.
        await producer.stop()
    account.check()


async def _partitions(producer: Any, topic: str, seconds_max: float) -> set[int]:  # noqa: ANN401 - carries no types
    try:
        async with asyncio.timeout(min(seconds_max, _TOPIC_SECONDS_MAX)):
            found: set[int] = await producer.partitions_for(topic)
    except TimeoutError as error:
        message = (
            f"topic {topic}: UNKNOWN_TOPIC_OR_PARTITION: it is not there, and was not made by asking for it"
        )
        raise NotDeliveredError(message) from error
    return found


async def _send(producer: Any, topic: str, partitions: set[int], record: Record) -> Future[Any]:  # noqa: ANN401 - the same
    """Return what is settled once the record is delivered or not; raises RecordError."""
    partition, headers = record.partition, list(record.headers)
    if partition is not None and partition not in partitions:
        raise RecordError(f"topic {topic} has no partition {partition}")
    sent: Future[Any]
    if record.key is None and record.value is None:
        # The client takes such a record in a batch only.
        batch = producer.create_batch()
        batch.append(key=None, value=None, timestamp=record.timestamp, headers=headers)
        partition = random.choice(sorted(partitions)) if partition is None else partition  # noqa: S311 - to spread them
        sent = await producer.send_batch(batch, topic, partition=partition)
    else:
        sent = await producer.send(
            topic, record.value, record.key, partition, timestamp_ms=record.timestamp, headers=headers
        )
    return sent


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
