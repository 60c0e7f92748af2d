"""The admin client: asks the broker that can answer, and asks again where another try may help, within a deadline.

Knows how brokers are found: from the bootstrap addresses, by Metadata and FindCoordinator. What is asked stands in
modules of its own, `topics`, `configs`, `partitions`, `cluster`, `groups`, `offsets` and `records`, reached through the
client:

    >>> from korvet.admin import AdminClient
    >>> with AdminClient("127.0.0.1:9092") as admin:
    ...     groups = admin.groups.list()
    >>> [group.state for group in groups if group.group_id == "billing"]
    ['Empty']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from korvet.admin.cluster import Cluster
from korvet.admin.configs import Configs
from korvet.admin.connection import ANSWER_BYTES_MAX, Address, Connection, Deadline
from korvet.admin.errors import (
    AdminError,
    BrokerError,
    BrokerNotAvailableError,
    ConnectionFailedError,
    NotControllerError,
    RequestTimedOutError,
)
from korvet.admin.groups import Groups
from korvet.admin.offsets import Offsets
from korvet.admin.partitions import Partitions
from korvet.admin.records import Records
from korvet.admin.topics import Topics
from korvet.admin.types import TopicPartition, Topology, topology_of
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsResponse
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.schema import Message
from korvet.protocol.types import CoordinatorType

PORT_DEFAULT = 9092
_PORT_MAX = 65535
_COORDINATORS_BATCHED_FIRST = 4

K = TypeVar("K")
T = TypeVar("T")
M = TypeVar("M", bound=Message)


def _ask_about_any(_key: object) -> None:
    """Refuse nothing."""


def _tell_nobody(_error: AdminError, _seconds_left: float) -> None:
    """Say nothing of a further try."""


class AdminClient:
    """A client of one cluster, for one thread; a context manager. It connects when it is first asked something.

    `bootstrap_servers` is HOST:PORT, or several of them, as a list or with commas between. `timeout` is how many
    seconds each question may take, all its tries together. Everything raised by a question is an AdminError.
    An answer larger than `answer_bytes_max` is not read: AnswerTooLargeError.
    `on_retry` is called before each further try, with what failed and how many seconds are left.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout: float = 30.0,
        client_id: str = "korvet-admin",
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        on_retry: Callable[[AdminError, float], None] | None = None,
    ) -> None:
        """Raise ValueError for an address that is none, and for a timeout that is not above 0."""
        named = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self._bootstrap = [parse_address(each.strip()) for each in named if each.strip()]
        if not self._bootstrap:
            raise ValueError("no bootstrap server is given")
        if not timeout > 0:
            raise ValueError(f"a timeout of {timeout} seconds leaves no time")
        self._timeout = timeout
        self._client_id = client_id
        self._answer_bytes_max = answer_bytes_max
        self._on_retry = on_retry or _tell_nobody
        self._known: list[Address] = []
        self._connections: dict[Address, Connection] = {}
        self.topics = Topics(self)
        self.configs = Configs(self)
        self.partitions = Partitions(self)
        self.cluster = Cluster(self)
        self.groups = Groups(self)
        self.offsets = Offsets(self)
        self.records = Records(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later question opens them again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def deadline(self) -> Deadline:
        """Return until when a question that begins now may take."""
        return Deadline(self._timeout)

    def topology(self, topics: Iterable[str] = (), *, every_topic: bool = False) -> Topology:
        """Return the brokers, and the named topics or every one; a topic that is not there is not created."""
        named = None if every_topic else list(topics)
        return self.question(lambda deadline: self.topology_now(named, deadline))

    def topology_now(self, topics: Iterable[str] | None, deadline: Deadline) -> Topology:
        """Return the same by one try; None is every topic."""
        named = (
            None if topics is None else [MetadataRequestTopic(name=each) for each in dict.fromkeys(topics)]
        )
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        topology = topology_of(self.ask_any(request, MetadataResponse, deadline))
        self.learn(topology.brokers.values())
        return topology

    def learn(self, brokers: Iterable[Address]) -> None:
        """Take note of who the brokers are, for when those that were asked before are gone."""
        self._known = list(brokers)

    def coordinators(self, groups: Sequence[str], deadline: Deadline) -> dict[str, Address | AdminError]:
        """Return by one try where each group is kept, or why that cannot be told now."""
        return self._ask_any(lambda connection: _find_coordinators(connection, groups, deadline), deadline)

    def controller(self, keys: list[K], deadline: Deadline) -> dict[K, Address | AdminError]:
        """Return by one try the broker that takes changes, for each of `keys`. Raises AdminError."""
        return dict.fromkeys(keys, self._controller(deadline))

    def anywhere(self, keys: list[K], deadline: Deadline) -> dict[K, Address | AdminError]:
        """Return by one try a broker that can be reached, for each of `keys`. Raises AdminError."""
        return dict.fromkeys(keys, self.reachable(deadline))

    def reachable(self, deadline: Deadline) -> Address:
        """Return by one try a broker that can be reached. Raises AdminError."""
        return self._ask_any(lambda connection: connection.address, deadline)

    def brokers(self, keys: list[int], deadline: Deadline) -> dict[int, Address | AdminError]:
        """Return by one try the brokers with these ids. Raises AdminError."""
        known = self.topology_now((), deadline).brokers
        return {key: known.get(key) or _no_broker(key) for key in keys}

    def leaders(
        self, keys: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Address | AdminError]:
        """Return by one try the leader of each partition."""
        topology = self.topology_now([key.topic for key in keys], deadline)
        return {key: topology.leader(key) for key in keys}

    def ask(
        self,
        address: Address,
        request: Message,
        answer: type[M],
        deadline: Deadline,
        within: tuple[int, int] | None = None,
    ) -> M:
        """Ask one broker by one try; see Connection.call."""
        return self._on(
            address, lambda connection: connection.call(request, answer, deadline, within), deadline
        )

    def ask_controller(self, request: Message, answer: type[M], deadline: Deadline) -> M:
        """Ask the broker that takes changes, by one try; see Connection.call."""
        return self.ask(self._controller(deadline), request, answer, deadline)

    def ask_any(
        self,
        request: Message,
        answer: type[M],
        deadline: Deadline,
        within: tuple[int, int] | None = None,
    ) -> M:
        """Ask the first broker that can be reached, by one try; see Connection.call."""
        return self._ask_any(lambda connection: connection.call(request, answer, deadline, within), deadline)

    def serves(self, address: Address, request: type[Message], deadline: Deadline) -> bool:
        """Whether a broker serves an API in a version that is known here, by one try."""
        return self._on(address, lambda connection: connection.serves(request), deadline)

    def api_versions(self, address: Address, deadline: Deadline) -> ApiVersionsResponse:
        """Ask a broker what it serves now, by one try."""
        return self._on(address, lambda connection: connection.api_versions(deadline), deadline)

    def question(self, ask: Callable[[Deadline], T]) -> T:
        """Ask one thing, and again where another try may help. Raises the AdminError of the last try."""
        deadline = self.deadline()
        failed: AdminError | None = None
        for _ in deadline.tries():
            if failed is not None:
                self._on_retry(failed, deadline.left())
            try:
                return ask(deadline)
            except AdminError as error:
                if not error.retriable:
                    raise
                failed = error
        assert failed is not None  # noqa: S101 - tries at least once
        raise failed

    def settle(
        self,
        keys: Iterable[K],
        route: Callable[[list[K], Deadline], Mapping[K, Address | AdminError]],
        ask: Callable[[Address, list[K], Deadline], Mapping[K, T | AdminError]],
        *,
        refuse: Callable[[K], AdminError | None] = _ask_about_any,
        repeatable: bool = True,
    ) -> dict[K, T | AdminError]:
        """Ask about many keys, each at the broker that `route` finds for it, until all is settled or time is up.

        `ask` answers for the keys that one broker is asked about. Only what failed with a retriable error is asked
        again, by a new route. The outcomes have the order of the keys. Raises nothing: what failed for all of them is
        the outcome of each.

        `refuse` gives the outcome of a key that nobody is to be asked about, None for others. What is not `repeatable`,
        since a second time it would fail for the first, is not asked again of a broker that says itself that it was not
        done in time.
        """
        deadline = self.deadline()
        given = list(dict.fromkeys(keys))
        outcomes: dict[K, T | AdminError] = {key: error for key in given if (error := refuse(key))}
        left = [key for key in given if key not in outcomes]
        for number in deadline.tries() if left else ():
            failed = outcomes[left[0]] if number else None
            if isinstance(failed, AdminError):
                self._on_retry(failed, deadline.left())
            outcomes |= self._settle_once(left, route, ask, deadline)
            left = [each for each in left if _worth_another_try(outcomes[each], repeatable=repeatable)]
            if not left:
                break
        return {key: outcomes[key] for key in given}

    def _controller(self, deadline: Deadline) -> Address:
        topology = self.topology_now((), deadline)
        if topology.controller is None:
            raise NotControllerError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller now")
        return topology.brokers[topology.controller]

    def _settle_once(
        self,
        keys: list[K],
        route: Callable[[list[K], Deadline], Mapping[K, Address | AdminError]],
        ask: Callable[[Address, list[K], Deadline], Mapping[K, T | AdminError]],
        deadline: Deadline,
    ) -> dict[K, T | AdminError]:
        try:
            places = route(keys, deadline)
        except AdminError as error:
            return dict.fromkeys(keys, error)
        outcomes: dict[K, T | AdminError] = {}
        at: dict[Address, list[K]] = {}
        for key in keys:
            place = places[key]
            if isinstance(place, AdminError):
                outcomes[key] = place
            else:
                at.setdefault(place, []).append(key)
        for address, some in at.items():
            try:
                outcomes |= ask(address, some, deadline)
            except AdminError as error:
                outcomes |= dict.fromkeys(some, error)
        return outcomes

    def _ask_any(self, ask: Callable[[Connection], T], deadline: Deadline) -> T:
        """Ask one broker after the other until one answers; raises the last one's error."""
        failed: AdminError = ConnectionFailedError("no broker is known")
        for address in dict.fromkeys([*self._known, *self._bootstrap]):
            try:
                return self._on(address, ask, deadline)
            except ConnectionFailedError as error:
                failed = error
        raise failed

    def _on(self, address: Address, ask: Callable[[Connection], T], deadline: Deadline) -> T:
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(address, self._client_id, deadline, self._answer_bytes_max)
            self._connections[address] = connection
        try:
            return ask(connection)
        except AdminError as error:
            if error.ends_connection:
                self._connections.pop(address, connection).close()
            raise
        except BaseException:
            # Interrupted half-way: the answer that is still to come belongs to nobody.
            self._connections.pop(address, connection).close()
            raise


def parse_address(text: str, port_default: int = PORT_DEFAULT) -> Address:
    """Read HOST:PORT, HOST, [IPv6]:PORT or [IPv6]; raises ValueError."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(port_default)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is no address: HOST:PORT, or [HOST]:PORT for IPv6")
    if not 0 < int(port) <= _PORT_MAX:
        raise ValueError(f"{text!r} has no port from 1 to {_PORT_MAX}")
    return Address(bare, int(port))


def _no_broker(broker_id: int) -> BrokerNotAvailableError:
    return BrokerNotAvailableError(
        ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {broker_id} now"
    )


def _worth_another_try(outcome: object, *, repeatable: bool) -> bool:
    if not repeatable and isinstance(outcome, RequestTimedOutError):
        return False
    return isinstance(outcome, AdminError) and outcome.retriable


def _find_coordinators(
    connection: Connection, groups: Sequence[str], deadline: Deadline
) -> dict[str, Address | AdminError]:
    """Ask for all at once, or before version 4 for one after the other."""
    if connection.version(FindCoordinatorRequest) >= _COORDINATORS_BATCHED_FIRST:
        request = FindCoordinatorRequest(key_type=CoordinatorType.GROUP, coordinator_keys=list(groups))
        response = connection.call(request, FindCoordinatorResponse, deadline)
        found: dict[str, Address | AdminError] = {
            each.key: BrokerError.of(each.error_code, each.error_message) or Address(each.host, each.port)
            for each in response.coordinators
        }
    else:
        found = {}
        for group in groups:
            request = FindCoordinatorRequest(key=group, key_type=CoordinatorType.GROUP)
            each = connection.call(request, FindCoordinatorResponse, deadline)
            found[group] = BrokerError.of(each.error_code, each.error_message) or Address(
                each.host, each.port
            )
    untold = ConnectionFailedError(f"{connection.address} does not tell where the group is kept")
    return {group: found.get(group, untold) for group in groups}
