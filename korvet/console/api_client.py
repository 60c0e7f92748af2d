"""Clients of the broker for the console: each asks one broker, for one request at a time, and for seconds.

Knows the admin client. Any broker of Korvet answers for the whole cluster, so the console asks its own, by the port
that it listens at: it needs neither another broker nor the addresses that other clients are told. What only another
broker can tell it asks there, and goes on without.

The secret that changes by the console take, in a file that is read each time: a new one holds at once.

Long lists, a page at a time: what has a text in its name, from one place on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.connection import Address, Deadline
from korvet.admin.errors import AdminError
from korvet.admin.routing import Routes
from korvet.admin.types import TopicPartition, Topology, settled
from korvet.console.query import Query

SECONDS_MAX = 4.0
"""What a request of the console may take in all, whatever hangs."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Largest answer of a broker that the console holds."""

_OTHERS_SECONDS_MAX = 1.5
_IDLE_SECONDS_MAX = 30.0
_IDLE_MAX = 8


class ApiClient(AdminClient):
    """A client that asks one broker and no other, whoever leads or coordinates."""

    def __init__(self, address: Address, broker_id: int) -> None:
        super().__init__(str(address), client_id="korvet-console", answer_bytes_max=ANSWER_BYTES_MAX)
        self._address = address
        self._broker_id = broker_id
        self._until = Deadline(SECONDS_MAX)
        self.idle_since = 0.0

    def begin(self, seconds: float) -> None:
        """Give all questions from now on so many seconds together."""
        self._until = Deadline(seconds)

    def deadline(self) -> Deadline:
        """Return until when the request at hand may take."""
        return self._until

    def remember(self, brokers: Iterable[Address]) -> None:
        """Remember no other broker."""

    def topology_now(self, topics: Iterable[str] | None, deadline: Deadline) -> Topology:
        """Return the topology as if this broker were all there is."""
        topology = super().topology_now(topics, deadline)
        return msgspec.structs.replace(
            topology,
            brokers={self._broker_id: self._address},
            leaders=dict.fromkeys(topology.leaders, self._address),
            controller=self._broker_id,
        )

    def to_coordinators(self, groups: list[str], deadline: Deadline) -> Routes[str]:
        """Route to this broker."""
        return self.to_any(groups, deadline)


class ApiClients:
    """The clients of one console, kept connected for the next request."""

    def __init__(self, address: Address, broker_id: int) -> None:
        self.broker_id = broker_id
        self._address = address
        self._idle: list[ApiClient] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self, *, fresh: bool = False) -> Iterator[ApiClient]:
        """Lend a client; a `fresh` one loses no connection that was idle, so that a change is asked for once."""
        asker = None if fresh else self._taken()
        if asker is None:
            asker = ApiClient(self._address, self.broker_id)
        asker.begin(SECONDS_MAX)
        try:
            yield asker
        finally:
            asker.idle_since = time.monotonic()
            with self._lock:
                kept = len(self._idle) < _IDLE_MAX
                if kept:
                    self._idle.append(asker)
            if not kept:
                asker.close()

    def sizes(self, asker: ApiClient, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes of logs; each broker tells those that it leads, and of one that does not they are missing.

        Raises AdminError where the own broker does not tell.
        """
        found: dict[TopicPartition, int] = {}
        if not places:
            return found
        found |= _sizes(asker, self.broker_id, places)
        for other in asker.cluster.describe().brokers:
            if other.broker_id == self.broker_id or other.fenced or len(found) == len(places):
                continue
            left = min(asker.deadline().left() / 2, _OTHERS_SECONDS_MAX)
            with ApiClient(Address(other.host, other.port), other.broker_id) as there:
                there.begin(left)
                with contextlib.suppress(AdminError):
                    found |= _sizes(there, other.broker_id, places)
        return found

    def _taken(self) -> ApiClient | None:
        """Return a client that was used a moment ago, and close those that were not."""
        oldest = time.monotonic() - _IDLE_SECONDS_MAX
        with self._lock:
            stale = [each for each in self._idle if each.idle_since < oldest]
            self._idle = [each for each in self._idle if each.idle_since >= oldest]
            taken = self._idle.pop() if self._idle else None
        for each in stale:
            each.close()
        return taken


def _sizes(asker: ApiClient, broker_id: int, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    directories = settled(asker.partitions.log_dirs([broker_id], places))[broker_id]
    return {
        place: log.size_bytes
        for directory in directories
        for place, log in directory.partitions.items()
        if not log.future
    }


TOKEN_CHARS_MIN = 16
_TOKEN_BYTES_MAX = 4096


class NoTokenError(Exception):
    """The file holds none; the message says why."""


def read_token(path: Path) -> bytes:
    """Return the token, without the blanks around it. Raises NoTokenError."""
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise NoTokenError(error.strerror or str(error)) from None
    if not TOKEN_CHARS_MIN <= len(token) <= _TOKEN_BYTES_MAX:
        message = f"{len(token)} bytes are no token: it has {TOKEN_CHARS_MIN} to {_TOKEN_BYTES_MAX}"
        raise NoTokenError(message)
    return token


_FROM_MAX = 10_000_000

T = TypeVar("T")


class Page(NamedTuple):
    """Which part of a list is wanted: names that hold `text`, whatever their case, from `first` on."""

    text: str
    first: int
    length: int

    @classmethod
    def of(cls, query: Query, count_max: int) -> Page:
        """Read `q`, `from` and `count`. Raises BadQuestionError."""
        return cls(
            query.text("q", ""),
            query.number("from", 0, 0, _FROM_MAX),
            query.number("count", count_max, 1, count_max),
        )

    def cut(self, every: Sequence[T], name: Callable[[T], str]) -> tuple[list[T], int]:
        """Return what is on the page, and how many there are on all pages."""
        wanted = self.text.casefold()
        found = [each for each in every if wanted in name(each).casefold()]
        return found[self.first : self.first + self.length], len(found)
