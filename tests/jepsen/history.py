"""What clients did and saw, in the order in which they learned it. Times are seconds of a monotonic clock."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec


class Sent(NamedTuple):
    """A value was given to a producer; `number` counts the values of one producer, by which its order is judged."""

    producer: str
    partition: int
    number: int
    at: float


class Acknowledged(NamedTuple):
    """A value was acknowledged at an offset, or (-1) as a duplicate whose offset the broker does not know any more.

    -1 also of an XADD: its entry may get another id. `ordered` says that its producer is idempotent, or writes in turn.
    """

    producer: str
    partition: int
    number: int
    offset: int
    ordered: bool
    at: float


class Began(NamedTuple):
    """A reader begins with a partition, at an offset: it is to see all that comes from there on, once."""

    reader: str
    partition: int
    offset: int
    at: float


class Seen(NamedTuple):
    """A reader was given a record of a partition that it began with."""

    reader: str
    partition: int
    offset: int
    value: str
    at: float


class Delivered(NamedTuple):
    """A member of a group was given a record, of a value if that is known."""

    group: str
    partition: int
    offset: int
    at: float
    value: str | None = None


class Owned(NamedTuple):
    """A member of a group was assigned partitions in a generation, -1 in a group of the consumer protocol."""

    group: str
    generation: int
    member: str
    partitions: tuple[int, ...]
    at: float


class Revoked(NamedTuple):
    """A member of a group gives partitions up or, if they are `lost`, has learnt that it is no member any more."""

    group: str
    member: str
    partitions: tuple[int, ...]
    lost: bool
    at: float


class Committed(NamedTuple):
    """A commit was acknowledged, of a request sent at `began`; the one who commits never goes back.

    Members of a group commit for it and a partition: `place_of` both.
    """

    group: str
    offset: int
    at: float
    member: str = ""
    began: float = 0.0


class Fetched(NamedTuple):
    """The committed offset of a group was read; the request was sent at `began`."""

    group: str
    offset: int
    began: float
    at: float


class Put(NamedTuple):
    """A value was given to a producer in a transaction; `number` counts the values of one transaction.

    `source` is what it is a copy of, as its partition, offset and value.
    """

    transaction: str
    partition: int
    number: int
    source: tuple[int, int, str] | None
    at: float


class Committing(NamedTuple):
    """A transaction was to be committed: without its `Ended` it may be committed or not."""

    transaction: str
    at: float


class Ended(NamedTuple):
    """A commit or an abort of a transaction was acknowledged, or (an abort) its producer was fenced."""

    transaction: str
    committed: bool
    at: float


class Acquisition(NamedTuple):
    """A member of a share group was given a record for the `delivery`th time; it had not acquired it before `began`."""

    group: str
    member: str
    partition: int
    offset: int
    delivery: int
    began: float
    at: float


class Settling(NamedTuple):
    """A member of a share group is about to accept or to release what it was given for the `delivery`th time."""

    group: str
    member: str
    partition: int
    offset: int
    delivery: int
    accept: bool
    at: float


class Settled(NamedTuple):
    """That was answered, and not by an error."""

    group: str
    member: str
    partition: int
    offset: int
    delivery: int
    accept: bool
    at: float


class Departed(NamedTuple):
    """A member of a share group is about to leave, or to be killed."""

    member: str
    at: float


class Failed(NamedTuple):
    """A client failed in a way from which it does not recover by itself, and was replaced by a new one."""

    client: str
    error: str
    at: float


Event: TypeAlias = (
    Sent
    | Acknowledged
    | Began
    | Seen
    | Delivered
    | Owned
    | Revoked
    | Committed
    | Fetched
    | Put
    | Committing
    | Ended
    | Acquisition
    | Settling
    | Settled
    | Departed
    | Failed
)
Log: TypeAlias = dict[int, list[tuple[int, str]]]
"""The offsets and values of each partition, as read when all is over."""


def value_of(producer: str, number: int) -> str:
    """Return the value that a producer sends, or sends in a transaction: no other is like it."""
    return f"{producer}/{number}"


def place_of(group: str, partition: int) -> str:
    """Return what the members of a group commit for."""
    return f"{group}/{partition}"


class History:
    """The events of a run; any thread may add some."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, *events: Event) -> None:
        """Append events."""
        with self._lock:
            self.events += events

    def write(self, path: Path) -> None:
        """Write a line of JSON for each event: its kind and its fields."""
        with path.open("wb") as file:
            file.writelines(
                msgspec.json.encode([type(event).__name__, *event]) + b"\n" for event in self.events
            )


def now() -> float:
    """Return the time of an event."""
    return time.monotonic()
