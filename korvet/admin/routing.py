"""Sends requests to the brokers of a cluster that can answer them, and retries within a deadline.

Brokers are found from the bootstrap addresses, by Metadata and FindCoordinator. Most requests are about many things at
once, for which different brokers are responsible. `for_each` sends each broker one request about its things, collects
an outcome for each thing, and retries those whose error is retriable.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from korvet.admin.connection import ANSWER_BYTES_MAX, Address, Connection, Deadline, parse_address
from korvet.admin.errors import (
    AdminError,
    BadAnswerError,
    BrokerError,
    ConnectionFailedError,
    UnresolvedError,
    broker_error,
    error_in,
    raise_error_in,
)
from korvet.admin.security import PLAINTEXT, ClientSecurity
from korvet.admin.types import (
    Outcomes,
    Resource,
    ResourceType,
    TopicPartition,
    Topology,
    name_error,
    settled,
)
from korvet.errors import ErrorCode
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.schema import Message
from korvet.protocol.types import CoordinatorType

# With the pause before the next attempt it is five seconds.
_UNRESOLVED_SECONDS_MAX = 4.0
_PAUSE_FIRST = 0.05
_PAUSE_MAX = 1.0

K = TypeVar("K")
T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Route(Enum):
    """Who answers a request about a key."""

    ANY = auto()
    """The first broker that can be reached; for a broker's own settings that broker."""
    CONTROLLER = auto()
    """The broker that takes changes; for a broker's own settings that broker."""
    BROKER = auto()
    """The broker whose id is the key."""
    LEADER = auto()
    """The leader of the partition that is the key."""
    GROUP = auto()
    """The coordinator of the group that is the key."""
    TRANSACTION = auto()
    """The coordinator of the transactional id that is the key."""


_OF_ONE_BROKER = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
_COORDINATORS = {Route.GROUP: CoordinatorType.GROUP, Route.TRANSACTION: CoordinatorType.TRANSACTION}

Destination = Address | None
"""Where a request goes; None is the first broker that can be reached."""


class Attempt:
    """One attempt at one broker: where its requests go, and until when."""

    def __init__(self, client: ClusterClient, destination: Destination, deadline: Deadline) -> None:
        self._client, self._destination, self._deadline = client, destination, deadline

    @property
    def timeout_ms(self) -> int:
        """The time that the broker may take."""
        return self._deadline.broker_ms()

    def send(self, request: Message, answer: type[M], versions: tuple[int, int] | None = None) -> M:
        """Send a request; see ClusterClient.send."""
        return self._client.send(self._destination, request, answer, self._deadline, versions)


class ClusterClient:
    """The part of AdminClient below its requests: connections, routing and retries."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout: float = 30.0,
        client_id: str = "korvet-admin",
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        on_retry: Callable[[AdminError, float], None] | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """Raise ValueError for a wrong address, and for a timeout that is not above 0."""
        servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self._bootstrap = [parse_address(server.strip()) for server in servers if server.strip()]
        if not self._bootstrap:
            raise ValueError("no bootstrap server is given")
        if not timeout > 0:
            raise ValueError(f"a timeout of {timeout} seconds leaves no time")
        self._timeout = timeout
        self._client_id = client_id
        self._answer_bytes_max = answer_bytes_max
        self._security = security
        self._on_retry = on_retry or (lambda _error, _seconds_left: None)
        self._known: list[Address] = []
        self._connections: dict[Address, Connection] = {}

    def close(self) -> None:
        """Close all connections; a later request opens them again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def deadline(self) -> Deadline:
        """Return the deadline of a request that begins now."""
        return Deadline(self._timeout)

    def topology(self, topics: Iterable[str] = (), *, every_topic: bool = False) -> Topology:
        """Return the brokers, and the named topics or all; a topic that does not exist is not created."""
        named = None if every_topic else list(topics)
        return self.retry(lambda deadline: self.topology_now(named, deadline))

    def topology_now(self, topics: Iterable[str] | None, deadline: Deadline) -> Topology:
        """Return the same in one attempt; None is all topics."""
        named = None
        if topics is not None:
            named = [MetadataRequestTopic(name=name) for name in dict.fromkeys(topics)]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        topology = Topology.of(self.send(None, request, MetadataResponse, deadline))
        self.remember(topology.brokers.values())
        return topology

    def remember(self, brokers: Iterable[Address]) -> None:
        """Remember the brokers, for when the bootstrap servers are gone."""
        self._known = list(brokers)

    def partitions_of(self, topics: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return these partitions of topics, all of a topic if none is given. Raises AdminError."""
        topology = self.topology(topics)
        partitions = []
        for topic, indexes in topics.items():
            if topic in topology.failed and not indexes:
                raise topology.failed[topic]
            partitions += [TopicPartition(topic, index) for index in indexes or topology.partitions[topic]]
        return list(dict.fromkeys(partitions))

    def call(
        self,
        request: Message,
        answer: type[M],
        route: Route = Route.ANY,
        key: str = "",
        versions: tuple[int, int] | None = None,
    ) -> M:
        """Send a request to the broker that answers it, with retries. Raises AdminError.

        `key` is the group or transactional id of a request to a coordinator.
        """

        def ask(attempt: Attempt, _: list[str]) -> Outcomes[str, M]:
            return {key: attempt.send(request, answer, versions)}

        return settled(self.for_each([key], route, ask))[key]

    def call_all(self, request: Message, answer: type[M]) -> list[M]:
        """Send a request to every broker, with retries. Raises AdminError."""

        def attempt(deadline: Deadline) -> list[M]:
            brokers = self.topology_now((), deadline).brokers.values()
            return [self.send(address, request, answer, deadline) for address in brokers]

        return self.retry(attempt)

    def retry(self, attempt: Callable[[Deadline], T]) -> T:
        """Return the result of `attempt`, which is retried on retriable errors. Raises its last AdminError."""
        deadline = self.deadline()
        pause = _PAUSE_FIRST
        while True:
            try:
                return attempt(deadline)
            except AdminError as error:
                # Clients that lost the same broker must not come back in step.
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - no cryptography
                if not error.retriable or wait >= deadline.left():
                    raise
                failed = error
            time.sleep(wait)
            pause = min(pause * 2, _PAUSE_MAX)
            self._on_retry(failed, deadline.left())

    def for_each(
        self,
        keys: Iterable[K],
        route: Route,
        ask: Callable[[Attempt, list[K]], Outcomes[K, T]],
        *,
        group: str | None = None,
        leaders: dict[K, Address] | None = None,
        idempotent: bool = True,
    ) -> Outcomes[K, T]:
        """Return an outcome for each key, in their order: what `ask` returns for it, or an error. Raises nothing.

        `ask` sends a request about the keys that one broker answers; keys of different types are sent apart. Only keys
        with a retriable error are tried again, by a new route, until the time is over. An error that `ask` raises is
        the outcome of all its keys. A name that a broker would close the connection on is not sent.

        `group` is the group whose coordinator answers for all keys. `leaders` keeps, for the next call, who has
        answered for a key. If a request is not `idempotent`, a second attempt could fail because of the first: then a
        broker's REQUEST_TIMED_OUT is final.
        """
        given = list(dict.fromkeys(keys))
        invalid = None if group is None else name_error(group, is_group=True)
        is_group = route is Route.GROUP and group is None
        outcomes: Outcomes[K, T] = {
            key: error for key in given if (error := invalid or name_error(key, is_group=is_group))
        }
        left = [key for key in given if key not in outcomes]
        known = {} if leaders is None else leaders

        def attempt(deadline: Deadline) -> None:
            requests: dict[tuple[Destination, type], list[K]] = {}
            for key, destination in self._answerers(left, route, deadline, group, known).items():
                if isinstance(destination, AdminError):
                    outcomes[key] = destination
                else:
                    requests.setdefault((destination, type(key)), []).append(key)
            for (destination, _), asked in requests.items():
                try:
                    answered = ask(Attempt(self, destination, deadline), asked)
                except AdminError as failure:
                    answered = dict.fromkeys(asked, failure)
                missing = BadAnswerError(f"{destination or 'the broker'} leaves out a part of its response")
                outcomes.update({key: answered.get(key, missing) for key in asked})
                if destination is not None:
                    known.update(
                        {key: destination for key in asked if not isinstance(outcomes[key], AdminError)}
                    )
            failed = {key: error for key in left if isinstance(error := outcomes[key], AdminError)}
            left[:] = [key for key, error in failed.items() if _may_retry(error, idempotent=idempotent)]
            if left:
                raise failed[left[0]]

        if left:
            with contextlib.suppress(AdminError):
                self.retry(attempt)
        return {key: outcomes[key] for key in given}

    def _answerers(
        self, keys: list[K], route: Route, deadline: Deadline, group: str | None, known: dict[K, Address]
    ) -> dict[K, Destination | AdminError]:
        """Return who is asked about each key, taken out of `known` if it is there, or why there is nobody now."""
        answerers: dict[K, Destination | AdminError] = {key: known.pop(key) for key in keys if key in known}
        unknown = [key for key in keys if key not in answerers]
        try:
            if group is not None:
                return dict.fromkeys(keys, self._destinations([group], route, deadline)[group])
            if unknown:
                answerers |= self._destinations(unknown, route, deadline)
        except AdminError as error:
            return dict.fromkeys(keys, error)
        return answerers

    def _destinations(
        self, keys: Sequence[Any], route: Route, deadline: Deadline
    ) -> dict[Any, Destination | AdminError]:
        """Return who answers for each key, or why there is nobody now, in one attempt. Raises AdminError."""
        if route in _COORDINATORS:
            return self.coordinators(keys, _COORDINATORS[route], deadline)
        if route is Route.LEADER:
            topology = self.topology_now([key.topic for key in keys], deadline)
            return {key: topology.leader(key) for key in keys}
        own = {key: key if route is Route.BROKER else _own_broker(key) for key in keys}
        if route is Route.ANY and set(own.values()) <= {None}:
            return dict.fromkeys(keys)
        topology = self.topology_now((), deadline)
        brokers: dict[int | None, Destination | AdminError] = {None: None}
        brokers.update(topology.brokers.items())
        if route is Route.CONTROLLER:
            missing = broker_error(ErrorCode.NOT_CONTROLLER, "the cluster has no controller now")
            brokers[None] = brokers[topology.controller] or missing
        for number in set(own.values()) - brokers.keys():
            absent = f"the cluster has no broker {number} now"
            brokers[number] = broker_error(ErrorCode.BROKER_NOT_AVAILABLE, absent)
        return {key: brokers[number] for key, number in own.items()}

    def coordinators(
        self, keys: Sequence[str], kind: CoordinatorType, deadline: Deadline
    ) -> dict[Any, Destination | AdminError]:
        """Return the coordinator of each group, or transactional id, in one attempt. Raises AdminError."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[*keys])
        response = self.send(None, request, FindCoordinatorResponse, deadline)
        destinations: dict[Any, Destination | AdminError] = dict.fromkeys(
            keys, ConnectionFailedError("the broker leaves out a coordinator")
        )
        for answered in response.coordinators:
            error = error_in(answered.error_code, answered.error_message)
            destinations[answered.key] = error or Address(answered.host, answered.port)
        return destinations

    def send(
        self,
        destination: Destination,
        request: Message,
        answer: type[M],
        deadline: Deadline,
        versions: tuple[int, int] | None = None,
    ) -> M:
        """Send a request in one attempt; see Connection.call. Raises AdminError, also for the error of a response."""
        failed: list[ConnectionFailedError] = []
        for address in [destination] if destination else dict.fromkeys([*self._known, *self._bootstrap]):
            try:
                connection = self._connections.get(address)
                if connection is None or connection.is_closed:
                    connection = Connection(
                        address, self._client_id, deadline, self._answer_bytes_max, self._security
                    )
                    self._connections[address] = connection
                response = connection.call(request, answer, deadline, versions)
            except ConnectionFailedError as error:
                failed.append(error)
            else:
                raise_error_in(getattr(response, "error_code", 0), getattr(response, "error_message", None))
                return response
        if destination is None and all(isinstance(error, UnresolvedError) for error in failed):
            # A slip, more often than a name server that is away for a moment.
            failed[-1].retriable = deadline.spent() < _UNRESOLVED_SECONDS_MAX
        raise failed[-1]


class Requests:
    """The requests about one subject."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client


def _own_broker(key: object) -> int | None:
    """Return the id of the broker whose own settings a key stands for; None for any other key."""
    if not isinstance(key, Resource) or key.type not in _OF_ONE_BROKER:
        return None
    return int(key.name) if key.name.isascii() and key.name.isdigit() else None


def _may_retry(error: AdminError, *, idempotent: bool) -> bool:
    timed_out = isinstance(error, BrokerError) and error.code is ErrorCode.REQUEST_TIMED_OUT
    return error.retriable and (idempotent or not timed_out)
