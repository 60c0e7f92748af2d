"""What tests ask of a client library, in one form for librdkafka, kafka-python and aiokafka.

A configuration has librdkafka's names; `oauth` is a function that returns a token.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import Received, Sample

Config = Mapping[str, Any]
Place = tuple[str, int]
"""Topic and partition."""

END = -1
"""The offset up to which all records of a partition are deleted."""


class RefusedError(Exception):
    """A request failed; `code` is the broker's error code, or the library's own."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code


class FencedError(Exception):
    """Another producer with the transactional id has taken over."""


class Written(NamedTuple):
    partition: int
    offset: int
    timestamp: int


class Producer(Protocol):
    def send(self, topic: str, records: Sequence[Sample]) -> list[Written | int]:
        """Send, and wait; returns an acknowledgement or an error code for each record."""

    def init(self) -> None:
        """Get the identity of a transactional id; aborts what the producer before it has left open."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit offsets of a group with the transaction."""

    def end(self, *, commit: bool) -> None:
        """Commit the transaction, or abort it. Raises FencedError."""

    def close(self) -> None:
        """End; a transaction stays open, if the library lets it."""


class Consumer(Protocol):
    """A consumer that commits only when it is asked to."""

    def assign(self, topic: str, offsets: Mapping[int, int | None]) -> None:
        """Read partitions from these offsets on; None: from the first one."""

    def subscribe(self, topic: str) -> None:
        """Read what the group assigns."""

    def poll(self, seconds: float) -> list[Received]:
        """Return the next records, as soon as there are any. Raises RefusedError."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset and the next one to be written."""

    def by_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record that is not older; None if there is none."""

    def commit(self) -> None:
        """Commit the position, and wait for the answer."""

    def committed(self, topic: str, partition: int) -> int | None:
        """Return what the group has committed."""

    def close(self) -> None:
        """Leave the group and end."""


class Admin(Protocol):
    """An administrator. Each method raises RefusedError."""

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic."""

    def delete(self, topic: str) -> None:
        """Delete a topic."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 if there is no such topic. Creates none."""

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Delete records below an offset, or all (END); returns the new first offset."""

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Set a config of a topic."""

    def config(self, topic: str, name: str) -> str:
        """Return a config of a topic."""

    def groups(self) -> set[str]:
        """Return the names of all groups."""

    def brokers(self) -> set[tuple[str, int]]:
        """Return the addresses of all brokers."""

    def close(self) -> None:
        """End."""


class Library(NamedTuple):
    """A library: how it makes its clients of a configuration, and what it cannot do."""

    name: str
    producer: Callable[[str, Config], Producer]
    consumer: Callable[[str, Config], Consumer]
    admin: Callable[[str], Admin]
    refusal: Callable[[str, Config], str]
    """Returns the library's words about a broker that lets it in not."""
    null_headers: bool = True


def read(consumer: Consumer, count: int) -> list[Received]:
    """Read `count` records, then look whether there are more than that."""
    received: list[Received] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records"
        # Long: kafka-python loses its membership if a poll ends between the answers of JoinGroup and SyncGroup.
        received += consumer.poll(10.0)
    return received + consumer.poll(0.2)


def written(outcomes: Sequence[Written | int]) -> list[tuple[int, int]]:
    """Return partition and offset of each record; fails if one was refused."""
    places = [outcome[:2] for outcome in outcomes if isinstance(outcome, Written)]
    assert len(places) == len(outcomes), outcomes
    return places


@contextlib.contextmanager
def logged(library: str) -> Iterator[list[str]]:
    """Give what a library logs: why it is refused is nowhere else."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines()
    logging.getLogger(library).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(library).removeHandler(handler)
