"""Sends records with aiokafka, as many on their way as it takes, and keeps account of what became of each.

Knows the client and where each record stood; not how records are written down. Imports aiokafka: import it late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaProducer

from korvet.cli.kafka_client import addresses, told
from korvet.cli.progress import Progress
from korvet.cli.record import Record, RecordError
from korvet.cli.record_source import PIECE_BYTES_MAX, Piece

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
