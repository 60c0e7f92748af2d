"""`korvet produce`: sends records read from files or standard input, and waits until all are delivered.

Input is cut into pieces: lines, what null bytes separate, or whole files. A terminal or a pipe is waited for without a
thread, so that Ctrl-C ends a wait at once. aiokafka sends the records, as many in flight as it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sys
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import click
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v8

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError
from korvet.admin.types import Resource
from korvet.cli.options import (
    PARTITION,
    TOPIC,
    ClusterCommand,
    ClusterTarget,
    compression_option,
    connected,
    option,
    repeated,
)
from korvet.cli.output import ProgressLine, printable
from korvet.cli.records import (
    Headers,
    NewRecord,
    RecordError,
    client_errors,
    client_options,
    error_text,
    parse_json,
)
from korvet.errors import ErrorCode

PIECE_BYTES_MAX = 64 << 20
"""More than a record of Kafka can be: a piece without an end must not fill the memory."""

_READ_BYTES = 1 << 18
_BATCH_BYTES = 256 << 10
# Long enough for neighbours to come into one batch, too short to be noticed at a terminal.
_LINGER_MS = 5
# Asking for a topic that does not exist creates it, unless the broker is configured not to: no matter of seconds.
_TOPIC_SECONDS_MAX = 5.0

_BYTES_MAX, _POLICY = "max.message.bytes", "cleanup.policy"
_ACKS = {"0": 0, "1": 1, "all": -1}
# Flags that exclude each other: how input is cut, where keys are, which partition.
_EXCLUSIVE = (
    ("whole", "null_delimited", "json"),
    ("key_separator", "key", "json"),
    ("whole", "key_separator"),
    ("json", "null"),
    ("partition", "keep_partitions"),
)

Parser = Callable[[bytes], NewRecord]


class InputPiece(NamedTuple):
    """Some bytes of the input, and where they were, for error messages."""

    content: bytes
    position: str


class InputError(Exception):
    """The input cannot be read, or a piece of it is too large."""


class NotDeliveredError(Exception):
    """A record could not be made or was not delivered; the message names it and counts those delivered."""


async def pieces(names: tuple[str, ...], delimiter: bytes | None) -> AsyncIterator[list[InputPiece]]:
    """Yield the pieces of files in order, as many at once as were read; "-" is standard input.

    `delimiter` ends each piece, except perhaps the last. None makes each file one piece. Raises InputError.
    """
    for name in names:
        title = "" if name == "-" else f"{name}: "
        try:
            descriptor = 0 if name == "-" else os.open(name, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from error
        try:
            async for read in _pieces(descriptor, title, delimiter):
                yield read
        except OSError as error:
            raise InputError(f"{title or 'standard input: '}{error.strerror}") from error
        finally:
            if descriptor:
                os.close(descriptor)


async def _pieces(descriptor: int, title: str, delimiter: bytes | None) -> AsyncIterator[list[InputPiece]]:
    word = "line" if delimiter == b"\n" else "record"
    number, rest = 0, bytearray()
    while chunk := await _read(descriptor):
        if delimiter is None or delimiter not in chunk:
            rest += chunk
            if len(rest) > PIECE_BYTES_MAX:
                raise InputError(f"{title}{word} {number + 1}: longer than {PIECE_BYTES_MAX >> 20} MiB")
            continue
        *whole, left = (bytes(rest) + chunk).split(delimiter)
        rest = bytearray(left)
        yield [InputPiece(piece, f"{title}{word} {number + index}") for index, piece in enumerate(whole, 1)]
        number += len(whole)
    if rest or delimiter is None:
        yield [InputPiece(bytes(rest), f"{title}{word} {number + 1}")]


async def _read(descriptor: int) -> bytes:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
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


class TopicLimits(NamedTuple):
    """What a topic refuses: the client has no use for the message with which a broker says so."""

    batch_bytes_max: int = sys.maxsize
    compacted: bool = False

    def reason(self, code: ErrorCode, size: int) -> str:
        """Return why a record of `size` bytes got this error, "" if it is not known."""
        if code == ErrorCode.MESSAGE_TOO_LARGE and self.batch_bytes_max < sys.maxsize:
            return f"the record has {size} bytes, and max.message.bytes is {self.batch_bytes_max}"
        if code == ErrorCode.INVALID_RECORD and self.compacted:
            return "a record of a compacted topic needs a key"
        return ""


def limits_of(admin: AdminClient, topic: str) -> TopicLimits:
    """Return the limits of a topic, as far as a broker reports them. Raises AdminError."""
    resource = Resource.topic(topic)
    configs = admin.configs.describe([resource], names=[_BYTES_MAX, _POLICY])[resource]
    if isinstance(configs, AdminError):
        return TopicLimits()
    values = {name: config.value or "" for name, config in configs.items()}
    most = values.get(_BYTES_MAX, "")
    return TopicLimits(int(most) if most else sys.maxsize, "compact" in values.get(_POLICY, ""))


class LastRefusal(logging.Handler):
    """What a broker last said of a batch that the client sends again; aiokafka only logs it."""

    def __init__(self) -> None:
        super().__init__()
        self.text = "no broker has answered"

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the error of a response."""
        if isinstance(record.args, tuple) and record.args:
            error = record.args[-1]
            self.text = error_text(error()) if isinstance(error, type) else str(error)


class DeliveryLog:
    """Counts records sent and delivered, and keeps the first failure."""

    def __init__(self, progress: ProgressLine, limits: TopicLimits, seconds_max: float) -> None:
        """`seconds_max` is how long the delivery of a record may take."""
        self.sent = self.delivered = 0
        self.failure: str | None = None
        self._limits = limits
        self._progress = progress
        self.seconds_max = seconds_max
        self._waiting: dict[Future[Any], tuple[str, float]] = {}

    def add(self, future: Future[Any], position: str, size: int) -> None:
        """Count a record that was sent, and its delivery once `future` is done."""
        self.sent += 1
        self._waiting[future] = position, future.get_loop().time() + self.seconds_max
        future.add_done_callback(lambda done: self._on_done(done, position, size))

    def fail(self, position: str, reason: str) -> None:
        """Keep a failure, unless there was one before."""
        self.failure = self.failure or f"{position}: {reason}"

    async def time_out(self, refusal: LastRefusal) -> None:
        """Fail the first record whose delivery takes too long: the client sends it again without an end."""
        while True:
            now = asyncio.get_running_loop().time()
            position, deadline = next(iter(self._waiting.values()), ("", now + self.seconds_max))
            if deadline <= now:
                self.fail(position, f"not delivered in {self.seconds_max:g} s: {refusal.text}")
                return
            await asyncio.sleep(deadline - now)

    def check(self) -> None:
        """Raise NotDeliveredError if a record failed or was never acknowledged."""
        if self.failure is None and self.delivered == self.sent:
            return
        reason = self.failure or "the client gave up"
        counts = (
            f"{self.delivered} of {self.sent} sent records are delivered"
            if self.sent
            else "no record was sent"
        )
        raise NotDeliveredError(f"{reason}; {counts}")

    def _on_done(self, future: Future[Any], position: str, size: int) -> None:
        self._waiting.pop(future, None)
        error = None if future.cancelled() else future.exception()
        if error is not None:
            said = self._limits.reason(getattr(error, "errno", ErrorCode.NONE), size)
            self.fail(position, f"{error_text(error)}: {said}" if said else error_text(error))
        elif not future.cancelled():
            self.delivered += 1
            self._progress.add(1, size)


@contextlib.contextmanager
def _refusals() -> Iterator[LastRefusal]:
    """Give what keeps the last refusal within the block, in the broker's words."""
    # The first version whose responses have them; aiokafka can read it and does not ask for it.
    known = ProduceRequest._CLASSES  # noqa: SLF001 - what it asks for
    if ProduceRequest_v8 not in known:
        ProduceRequest._CLASSES = (*known, ProduceRequest_v8)  # noqa: SLF001 - the same
    logger, last = logging.getLogger("aiokafka.producer.sender"), LastRefusal()
    logger.addHandler(last)
    yield last
    logger.removeHandler(last)


async def deliver(
    client: Mapping[str, Any],
    topic: str,
    source: AsyncIterator[list[InputPiece]],
    parse: Parser,
    deliveries: DeliveryLog,
) -> None:
    """Send the record that `parse` makes of each piece, and wait until all are delivered; stop at the first failure.

    `client` are the options of aiokafka's. Raises NotDeliveredError, InputError, and aiokafka's KafkaError if no broker
    can be reached.
    """
    producer = AIOKafkaProducer(**client)

    async def send_all() -> None:
        await producer.start()
        partitions = await _partitions(producer, topic, deliveries.seconds_max)
        async for read in source:
            for content, position in read:
                if deliveries.failure is not None:
                    return
                try:
                    future = await _send(producer, topic, partitions, parse(content))
                except RecordError as error:
                    deliveries.fail(position, str(error))
                except KafkaTimeoutError:
                    # The client keeps no more records: those that it has are late by now.
                    await asyncio.wait((late,))
                    return
                else:
                    deliveries.add(future, position, len(content))

    with _refusals() as refused:
        late = asyncio.ensure_future(deliveries.time_out(refused))
        sending = asyncio.ensure_future(send_all())
        try:
            await asyncio.wait((sending, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            # Sends what is buffered, also after an error of the input: the lines before it are good ones.
            stopping = asyncio.ensure_future(producer.stop())
            await asyncio.wait((stopping, late), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                stopping.cancel()
                await producer.client.close()
            late.cancel()
        if sending.done() and not sending.cancelled():
            sending.result()
    deliveries.check()


async def _partitions(producer: Any, topic: str, seconds_max: float) -> set[int]:  # noqa: ANN401 - carries no types
    try:
        async with asyncio.timeout(min(seconds_max, _TOPIC_SECONDS_MAX)):
            partitions: set[int] = await producer.partitions_for(topic)
    except TimeoutError as error:
        message = f"topic {topic}: UNKNOWN_TOPIC_OR_PARTITION: it does not exist and was not created"
        raise NotDeliveredError(message) from error
    return partitions


async def _send(producer: Any, topic: str, partitions: set[int], record: NewRecord) -> Future[Any]:  # noqa: ANN401 - the same
    """Return the future of the delivery. Raises RecordError."""
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


@click.command(cls=ClusterCommand)
@click.argument("topic", type=TOPIC)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path())
@option("--json", "Each line is a record, as korvet consume --json writes it.")
@option("-K, --key-separator TEXT", "The text between key and value of each record.")
@option("-k, --key TEXT", "The key of all records.")
@repeated("-H, --header NAME=VALUE", "A header of all records", name="headers")
@option("--null TEXT", "A key or value that equals this text is null.")
@option("-0, --null-delimited", "A null byte ends each record, instead of a newline.")
@option("--whole", "Each file is one record.")
@option("-p, --partition N", "Send all records to this partition, not by key.", PARTITION)
@option("--keep-partitions", "With --json: use the partitions in the lines.")
@compression_option
@option(
    "--acks",
    "Which replicas must have a record before it counts as delivered.",
    click.Choice(tuple(_ACKS)),
    default="all",
)
@option(
    "--idempotence/--no-idempotence",
    "Write a batch that is sent again only once; the default with --acks all.",
    default=None,
)
def produce(
    cluster: ClusterTarget,
    topic: str,
    files: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of many kinds, by name
) -> None:
    """Write records to a topic: each line of the files, or of standard input, is one.

    Ends when all are delivered. Stops at the first record that cannot be read or delivered, names its position in the
    input, and exits with 1: records before it may have been delivered. A record without a key or a partition goes to
    any partition. --timeout is how long the delivery of a record may take, including retries.
    """
    parse = _parser(options)
    acks = _ACKS[options["acks"]]
    idempotent = acks < 0 if options["idempotence"] is None else options["idempotence"]
    if idempotent and acks >= 0:
        raise click.UsageError(f"--idempotence needs --acks all, not {options['acks']}")
    delimiter = None if options["whole"] else b"\0" if options["null_delimited"] else b"\n"
    names = files or ("-",)

    with connected(cluster) as admin:
        failed = admin.topology([topic]).failed.get(topic)
        # A topic that does not exist may be created by the producer's own request for it.
        if failed is not None and failed.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise failed
        limits = TopicLimits() if failed is not None else limits_of(admin, topic)
    client = client_options(cluster) | {
        "client_id": "korvet-produce",
        "request_timeout_ms": max(1, int(cluster.timeout * 1000)),
        "acks": acks,
        "enable_idempotence": idempotent,
        "compression_type": None if options["compression"] == "none" else options["compression"],
        "max_batch_size": min(_BATCH_BYTES, limits.batch_bytes_max),
        # The broker rejects records that are too large: it knows the limit of the topic.
        "max_request_size": 2 * PIECE_BYTES_MAX,
        "linger_ms": _LINGER_MS,
    }
    typed = "-" in names and sys.stdin.isatty()
    try:
        with ProgressLine(shown=not typed) as progress, client_errors():
            deliveries = DeliveryLog(progress, limits, cluster.timeout)
            asyncio.run(deliver(client, topic, pieces(names, delimiter), parse, deliveries))
    except (InputError, NotDeliveredError) as error:
        raise click.ClickException(printable(str(error))) from error


def _parser(options: Mapping[str, Any]) -> Parser:
    """Return what makes a record of a piece or raises RecordError. Raises UsageError for flags that do not agree."""
    for names in _EXCLUSIVE:
        given = [name for name in names if options[name] not in (None, False)]
        if len(given) > 1:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise click.UsageError(f"{flags} exclude each other")
    if options["keep_partitions"] and not options["json"]:
        raise click.UsageError("--keep-partitions needs --json")
    common = [_header(text) for text in options["headers"]]
    partition = options["partition"]
    if options["json"]:
        return _json_parser(common, partition, keeps=options["keep_partitions"])
    return _text_parser(options, common, partition)


def _json_parser(common: Headers, partition: int | None, *, keeps: bool) -> Parser:
    def parse(content: bytes) -> NewRecord:
        record = parse_json(content)
        where = record.partition if keeps else partition
        return record._replace(headers=[*record.headers, *common], partition=where)

    return parse


def _text_parser(options: Mapping[str, Any], common: Headers, partition: int | None) -> Parser:
    null = None if options["null"] is None else os.fsencode(options["null"])
    separator = None if options["key_separator"] is None else os.fsencode(options["key_separator"])
    if separator == b"":
        raise click.UsageError("--key-separator takes at least one character")
    one_key = None if options["key"] is None else os.fsencode(options["key"])

    def part(content: bytes) -> bytes | None:
        return None if content == null else content

    def parse(content: bytes) -> NewRecord:
        if separator is None:
            return NewRecord(one_key, part(content), common, partition=partition)
        key, separated, value = content.partition(separator)
        if not separated:
            raise RecordError(f"no {os.fsdecode(separator)!r} between key and value")
        return NewRecord(part(key), part(value), common, partition=partition)

    return parse


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header takes NAME=VALUE, not {text!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise click.UsageError(f"--header takes names in UTF-8, not {name!r}") from error
    return name, os.fsencode(value)
