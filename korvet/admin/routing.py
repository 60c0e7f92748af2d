"""Sends requests to the brokers of a cluster that can answer them, and retries within a deadline.

Brokers are found from the bootstrap addresses, by Metadata and FindCoordinator. Most requests are about many things at
once, for which different brokers are responsible. `for_each` sends each broker one request about its things, collects
an outcome for each thing, and retries those whose error is retriable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from korvet.admin.connection import ANSWER_BYTES_MAX, Address, Connection, Deadline, parse_address
from korvet.admin.errors import (
    AdminError,
    BadAnswerError,
    BrokerError,
    ConnectionFailedError,
    UnresolvedError,
    broker_error,
    error_in,
)
from korvet.admin.security import PLAINTEXT, ClientSecurity
from korvet.admin.types import Outcomes, TopicPartition, Topology, name_error
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsResponse
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.schema import Message
from korvet.protocol.types import CoordinatorType

_COORDINATORS_BATCHED_FIRST = 4
# With the pause before the next attempt it is five seconds.
_UNRESOLVED_SECONDS_MAX = 4.0

K = TypeVar("K")
T = TypeVar("T")
M = TypeVar("M", bound=Message)

Routes = Mapping[K, Address | AdminError]


class Attempt:
    """One attempt at one broker: where its requests go, and until when."""

    def __init__(self, client: ClusterClient, address: Address, deadline: Deadline) -> None:
        self.address = address
        self._client = client
        self._deadline = deadline

    @property
    def timeout_ms(self) -> int:
        """The time that the broker may take."""
        return self._deadline.broker_ms()

    def send(self, request: Message, answer: type[M], versions: tuple[int, int] | None = None) -> M:
        """Send a request; see Connection.call."""
        return self._client.on_connection(
            self.address, lambda each: each.call(request, answer, self._deadline, versions), self._deadline
        )

    def serves(self, request: type[Message]) -> bool:
        """Whether the broker serves an API in a version that this client knows."""
        return self._client.on_connection(self.address, lambda each: each.serves(request), self._deadline)

    def api_versions(self) -> ApiVersionsResponse:
        """Ask the broker what it serves now."""
        return self._client.on_connection(
            self.address, lambda each: each.api_versions(self._deadline), self._deadline
        )


class ClusterClient:
    """The part of AdminClient below its requests: connections, routing and retries."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout: float,
        client_id: str,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        on_retry: Callable[[AdminError, float], None] | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        servers = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self._bootstrap = [parse_address(each.strip()) for each in servers if each.strip()]
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

    def partitions_of(self, topics: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return these partitions of topics, all of a topic if none is given. Raises AdminError."""
        topology = self.topology(topics)
        found = []
        for topic, indexes in topics.items():
            if topic in topology.failed and not indexes:
                raise topology.failed[topic]
            found += [TopicPartition(topic, index) for index in indexes or topology.partitions[topic]]
        return list(dict.fromkeys(found))

    def topology_now(self, topics: Iterable[str] | None, deadline: Deadline) -> Topology:
        """Return the same in one attempt; None is all topics."""
        named = (
            None if topics is None else [MetadataRequestTopic(name=each) for each in dict.fromkeys(topics)]
        )
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        topology = Topology.of(self.send_any(request, MetadataResponse, deadline))
        self.remember(topology.brokers.values())
        return topology

    def remember(self, brokers: Iterable[Address]) -> None:
        """Remember the brokers, for when the bootstrap servers are gone."""
        self._known = list(brokers)

    # Routes: each returns, in one attempt, the broker for each key or why there is none now, or raises AdminError.

    def to_any(self, keys: list[K], deadline: Deadline) -> Routes[K]:
        """Route to the first broker that can be reached."""
        return dict.fromkeys(keys, self.reachable(deadline))

    def to_controller(self, keys: list[K], deadline: Deadline) -> Routes[K]:
        """Route to the broker that takes changes."""
        return dict.fromkeys(keys, self._controller(deadline))

    def to_brokers(self, keys: list[int], deadline: Deadline) -> Routes[int]:
        """Route to the brokers with these ids."""
        known = self.topology_now((), deadline).brokers
        return {key: known.get(key) or _no_broker(key) for key in keys}

    def to_leaders(self, keys: list[TopicPartition], deadline: Deadline) -> Routes[TopicPartition]:
        """Route to the leader of each partition."""
        topology = self.topology_now([key.topic for key in keys], deadline)
        return {key: topology.leader(key) for key in keys}

    def to_coordinators(
        self, keys: list[str], deadline: Deadline, kind: CoordinatorType = CoordinatorType.GROUP
    ) -> Routes[str]:
        """Route to the coordinator of each group, or transactional id."""
        return self._on_any(lambda connection: _find_coordinators(connection, keys, deadline, kind), deadline)

    def reachable(self, deadline: Deadline) -> Address:
        """Return a broker that can be reached, in one attempt."""
        return self._on_any(lambda connection: connection.address, deadline)

    def send_any(
        self,
        request: Message,
        answer: type[M],
        deadline: Deadline,
        versions: tuple[int, int] | None = None,
    ) -> M:
        """Send a request to the first broker that can be reached, in one attempt; see Connection.call."""
        return self._on_any(lambda connection: connection.call(request, answer, deadline, versions), deadline)

    def call_any(self, request: Message, answer: type[M], versions: tuple[int, int] | None = None) -> M:
        """Send a request to the first broker that can be reached, with retries. Raises AdminError."""
        return self.retry(lambda deadline: self.send_any(request, answer, deadline, versions))

    def attempt_at_controller(self, deadline: Deadline) -> Attempt:
        """Return an attempt at the broker that takes changes."""
        return Attempt(self, self._controller(deadline), deadline)

    def retry(self, attempt: Callable[[Deadline], T]) -> T:
        """Return the result of `attempt`, which is retried on retriable errors. Raises its last AdminError."""
        deadline = self.deadline()
        failed: AdminError | None = None
        for _ in deadline.attempts():
            if failed is not None:
                self._on_retry(failed, deadline.left())
            try:
                return attempt(deadline)
            except AdminError as error:
                if not error.retriable:
                    raise
                failed = error
        assert failed is not None  # noqa: S101 - there is at least one attempt
        raise failed

    def for_each(
        self,
        keys: Iterable[K],
        route: Callable[[list[K], Deadline], Routes[K]],
        ask: Callable[[Attempt, list[K]], Outcomes[K, T]],
        *,
        error_of: Callable[[K], AdminError | None] = name_error,
        idempotent: bool = True,
    ) -> Outcomes[K, T]:
        """Return an outcome for each key, in their order: what `ask` returns for it, or an error. Raises nothing.

        `ask` sends a request about the keys that `route` sends to one broker; keys of different types are sent apart.
        Only keys with a retriable error are tried again, by a new route, until the time is over. An error that `route`
        or `ask` raises is the outcome of all their keys.

        `error_of` returns the outcome of a key that must not be sent. If a request is not `idempotent`, a second
        attempt could fail because of the first: then a broker's REQUEST_TIMED_OUT is final.
        """
        deadline = self.deadline()
        given = list(dict.fromkeys(keys))
        outcomes: Outcomes[K, T] = {key: error for key in given if (error := error_of(key))}
        left = [key for key in given if key not in outcomes]
        for number in deadline.attempts() if left else ():
            failed = outcomes[left[0]] if number else None
            if isinstance(failed, AdminError):
                self._on_retry(failed, deadline.left())
            outcomes |= self._for_each_once(left, route, ask, deadline)
            left = [each for each in left if _may_retry(outcomes[each], idempotent=idempotent)]
            if not left:
                break
        return {key: outcomes[key] for key in given}

    def on_connection(self, address: Address, use: Callable[[Connection], T], deadline: Deadline) -> T:
        """Use the connection to a broker, a new one if there is none. Raises AdminError."""
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(
                address, self._client_id, deadline, self._answer_bytes_max, self._security
            )
            self._connections[address] = connection
        try:
            return use(connection)
        except AdminError as error:
            if error.ends_connection:
                self._connections.pop(address, connection).close()
            raise
        except BaseException:
            # Interrupted half-way: the response that is still to come has no reader.
            self._connections.pop(address, connection).close()
            raise

    def _controller(self, deadline: Deadline) -> Address:
        topology = self.topology_now((), deadline)
        if topology.controller is None:
            raise broker_error(ErrorCode.NOT_CONTROLLER, "the cluster has no controller now")
        return topology.brokers[topology.controller]

    def _for_each_once(
        self,
        keys: list[K],
        route: Callable[[list[K], Deadline], Routes[K]],
        ask: Callable[[Attempt, list[K]], Outcomes[K, T]],
        deadline: Deadline,
    ) -> Outcomes[K, T]:
        try:
            routes = route(keys, deadline)
        except AdminError as error:
            return dict.fromkeys(keys, error)
        outcomes: Outcomes[K, T] = {}
        requests: dict[tuple[Address, type], list[K]] = {}
        for key in keys:
            address = routes[key]
            if isinstance(address, AdminError):
                outcomes[key] = address
            else:
                requests.setdefault((address, type(key)), []).append(key)
        for (address, _), some in requests.items():
            missing = BadAnswerError(f"{address} leaves out a part of its response")
            try:
                found = ask(Attempt(self, address, deadline), some)
                outcomes |= {key: found.get(key, missing) for key in some}
            except AdminError as error:
                outcomes |= dict.fromkeys(some, error)
        return outcomes

    def _on_any(self, use: Callable[[Connection], T], deadline: Deadline) -> T:
        """Try the brokers in turn until one can be reached; raises the last error."""
        failed: list[ConnectionFailedError] = []
        for address in dict.fromkeys([*self._known, *self._bootstrap]):
            try:
                return self.on_connection(address, use, deadline)
            except ConnectionFailedError as error:
                failed.append(error)
        if all(isinstance(each, UnresolvedError) for each in failed):
            # A slip, more often than a name server that is away for a moment.
            failed[-1].retriable = deadline.spent() < _UNRESOLVED_SECONDS_MAX
        raise failed[-1]


def _no_broker(broker_id: int) -> BrokerError:
    return broker_error(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {broker_id} now")


def _may_retry(outcome: object, *, idempotent: bool) -> bool:
    if not isinstance(outcome, AdminError):
        return False
    timed_out = isinstance(outcome, BrokerError) and outcome.code is ErrorCode.REQUEST_TIMED_OUT
    return outcome.retriable and (idempotent or not timed_out)


def _find_coordinators(
    connection: Connection, keys: list[str], deadline: Deadline, kind: CoordinatorType
) -> Routes[str]:
    """Ask for all at once, or before version 4 one after the other."""
    found: dict[str, Address | AdminError] = {}
    if connection.version(FindCoordinatorRequest) >= _COORDINATORS_BATCHED_FIRST:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
        for each in connection.call(request, FindCoordinatorResponse, deadline).coordinators:
            error = error_in(each.error_code, each.error_message)
            found[each.key] = error or Address(each.host, each.port)
    else:
        for key in keys:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            response = connection.call(request, FindCoordinatorResponse, deadline)
            error = error_in(response.error_code, response.error_message)
            found[key] = error or Address(response.host, response.port)
    missing = ConnectionFailedError(f"{connection.address} leaves out a coordinator")
    return {key: found.get(key, missing) for key in keys}
