"""Clients of the broker for the console: each uses one broker, for one request at a time, and for seconds.

Any broker of Korvet answers for the whole cluster, so the console uses its own, at the port that it listens on: it
needs neither another broker nor the advertised addresses. What only another broker answers (the size of logs that it
leads, the list of transactions that it coordinates) is left out if that one does not answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.cluster import LogDir, log_sizes
from korvet.admin.connection import Address, Deadline
from korvet.admin.errors import AdminError, UnsupportedError
from korvet.admin.routing import Destination
from korvet.admin.security import PLAINTEXT, ClientSecurity
from korvet.admin.types import TopicPartition, Topology, settled
from korvet.protocol.types import CoordinatorType

SECONDS_MAX = 4.0
"""Time limit of a request of the console, whatever hangs."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Largest answer of a broker that the console holds."""

_OTHERS_SECONDS_MAX = 1.5
_IDLE_SECONDS_MAX = 30.0
_IDLE_MAX = 8

T = TypeVar("T")


class BrokerAccess(NamedTuple):
    """How the console connects to its own broker; if there is a `problem` it cannot."""

    address: Address
    security: ClientSecurity = PLAINTEXT
    problem: str = ""


class ApiClient(AdminClient):
    """A client that uses one broker and no other, whichever leads or coordinates."""

    def __init__(self, address: Address, broker_id: int, security: ClientSecurity) -> None:
        super().__init__(
            str(address),
            client_id="korvet-console",
            answer_bytes_max=ANSWER_BYTES_MAX,
            security=security,
        )
        self._address = address
        self.broker_id = broker_id
        self._until = Deadline(SECONDS_MAX)
        self.idle_since = 0.0

    def begin(self, seconds: float) -> None:
        """Set the time limit for all calls from now on together."""
        self._until = Deadline(seconds)

    def deadline(self) -> Deadline:
        """Return the deadline of the request of the console."""
        return self._until

    def remember(self, brokers: Iterable[Address]) -> None:
        """Ignore other brokers."""

    def topology_now(self, topics: Iterable[str] | None, deadline: Deadline) -> Topology:
        """Return the topology as if this broker were the only one."""
        topology = super().topology_now(topics, deadline)
        return msgspec.structs.replace(
            topology,
            brokers={self.broker_id: self._address},
            leaders=dict.fromkeys(topology.leaders, self._address),
            controller=self.broker_id,
        )

    def coordinators(
        self, keys: Sequence[str], _kind: CoordinatorType, _deadline: Deadline
    ) -> dict[Any, Destination | AdminError]:
        """Route to this broker, which coordinates all."""
        return dict.fromkeys(keys, self._address)


class ApiClients:
    """The clients of one console, kept connected for the next request."""

    def __init__(self, access: BrokerAccess, broker_id: int) -> None:
        self.broker_id = broker_id
        self._access = access
        self._idle: list[ApiClient] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self, *, fresh: bool = False) -> Iterator[ApiClient]:
        """Lend a client. A `fresh` one has no idle connection that may be closed, so that no change is sent twice.

        Raises UnsupportedError if the console cannot connect to its broker.
        """
        if self._access.problem:
            raise UnsupportedError(self._access.problem)
        client = None if fresh else self._take_idle()
        if client is None:
            client = ApiClient(self._access.address, self.broker_id, self._access.security)
        client.begin(SECONDS_MAX)
        try:
            yield client
        finally:
            client.idle_since = time.monotonic()
            with self._lock:
                kept = len(self._idle) < _IDLE_MAX
                if kept:
                    self._idle.append(client)
            if not kept:
                client.close()

    def sizes(self, client: ApiClient, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes of logs, each from its leader; logs whose leader fails are missing.

        Raises AdminError if the own broker fails.
        """
        bytes_by_partition: dict[TopicPartition, int] = {}
        for dirs in self.log_dirs(client, partitions) if partitions else ():
            bytes_by_partition |= log_sizes(dirs)
            if len(bytes_by_partition) == len(partitions):
                break
        return bytes_by_partition

    def log_dirs(
        self, client: ApiClient, partitions: Sequence[TopicPartition] | None = None
    ) -> Iterator[Sequence[LogDir]]:
        """Yield the log directories as each broker reports them, with the partitions that it leads, of these or of all.

        The own broker comes first; others that fail are left out. Raises AdminError if the own broker fails.
        """
        for _, dirs in self.ask_each(client, lambda at: _log_dirs(at, partitions)):
            if not isinstance(dirs, AdminError):
                yield dirs

    def ask_each(
        self, client: ApiClient, ask: Callable[[ApiClient], T]
    ) -> Iterator[tuple[int, T | AdminError]]:
        """Yield each broker's id with what `ask` returns of it, or with its error if it is not the own one.

        The own broker comes first. Raises AdminError if it fails.
        """
        yield self.broker_id, ask(client)
        for other in client.cluster.describe().brokers:
            if other.broker_id == self.broker_id or other.fenced:
                continue
            seconds = min(client.deadline().left() / 2, _OTHERS_SECONDS_MAX)
            security = msgspec.structs.replace(self._access.security, server_name="")
            with ApiClient(Address(other.host, other.port), other.broker_id, security) as there:
                there.begin(seconds)
                try:
                    answer: T | AdminError = ask(there)
                except AdminError as error:
                    answer = error
            yield other.broker_id, answer

    def _take_idle(self) -> ApiClient | None:
        """Return a recently used client, and close the others."""
        oldest = time.monotonic() - _IDLE_SECONDS_MAX
        with self._lock:
            stale = [client for client in self._idle if client.idle_since < oldest]
            self._idle = [client for client in self._idle if client.idle_since >= oldest]
            taken = self._idle.pop() if self._idle else None
        for client in stale:
            client.close()
        return taken


def _log_dirs(client: ApiClient, partitions: Sequence[TopicPartition] | None) -> Sequence[LogDir]:
    return settled(client.partitions.log_dirs([client.broker_id], partitions))[client.broker_id]
