"""A worker's handlers served in the test's own process, on a Redis with a topic of a few records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import gevent

from korvet.clock import CLOCK, Clock
from korvet.cluster.backpressure import Backpressure
from korvet.cluster.brokers import BrokerStore
from korvet.cluster.registration import Endpoint, Registration
from korvet.config.listeners import DEFAULT_LISTENER
from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS
from korvet.protocol.messages.fetch import FetchRequest
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.schema import Message
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.redis.keys import Keys
from korvet.security.acls import CLUSTER_NAME, Acl, AclFilter, ResourcePattern, Rule
from korvet.security.sasl import Authenticator
from korvet.security.session import Principal, Session
from korvet.server.net.dispatch import Dispatcher
from korvet.server.net.sockets import Sockets
from korvet.server.services import Storage
from korvet.server.serving import serve_clients
from korvet.server.serving_lease import ServingLease
from tests.handlers import apis
from tests.handlers.table import codes
from tests.support import redis_servers
from tests.support.batches import Record, batch
from tests.support.dispatching import TIMEOUT_MS, Present, connected, received, served, services_on
from tests.support.messages import message
from tests.support.wire_client import RESPONSES, WireClient, decode_response, request_frame

ROOT = Session("10.0.0.1:1", principal=Principal("User", "root"))
ALICE = Session("10.0.0.2:2", principal=Principal("User", "alice"))
TOPIC, GROUP, CLUSTER = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
TRANSACTIONAL_ID = AclResourceType.TRANSACTIONAL_ID
NAMES = {TOPIC: "orders", GROUP: "billing", CLUSTER: CLUSTER_NAME, TRANSACTIONAL_ID: "tx"}
FAILED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
UNKNOWN_ID = bytes(range(16))


class Scene:
    """A worker's handlers, its ACLs, and what a test has set up.

    Topics are made in format `batch`, whose offsets count from 0.
    """

    def __init__(self, redis_url: str, *, clock: Clock = CLOCK, **settings: Any) -> None:
        given: dict[str, Any] = {
            "redis_url": redis_url,
            "cluster_id": "c",
            "authorizer_class_name": "StandardAuthorizer",
            "super_users": str(ROOT.principal),
            "group_initial_rebalance_delay_ms": 0,
            "group_streams_initial_rebalance_delay_ms": 0,
            "storage_format": "batch",
        }
        self.settings = Settings(**given | settings)
        self.storage = Storage.of(self.settings, None)
        self.services = services_on(self.storage, self.settings, clock)
        self.acls = self.services.authorizer
        if self.acls is not None:
            self.acls.refresh()
        lease = ServingLease(self.storage.redis, TIMEOUT_MS)
        self.dispatcher = Dispatcher(HANDLERS, self.services, lease)
        pressure, path = Backpressure(self.storage.appends, self.settings), self.services.appends.core
        serve_clients(self.dispatcher, pressure)
        self.sockets = Sockets(self.settings, path, may_all=self.acls is None)
        self.brokers = BrokerStore(self.storage.redis, Keys(self.settings.namespace))
        self.ids: dict[str, bytes] = {}
        self.logins: dict[str, Authenticator] = {}
        """Those of clients that have to log in, by their peer."""
        self._raw = ExitStack()
        self._connections = ExitStack()
        self._consumers: dict[tuple[str, Principal], WireClient] = {}
        self.member, self.generation = "", -1
        self.others: list[str] = []
        self.waiting: list[gevent.Greenlet[Any, Any]] = []
        self.producer_id, self.producer_epoch = -1, -1

    @cached_property
    def raw(self) -> Any:
        """A plain client of the server, as any Redis user would hold."""
        return self._raw.enter_context(redis_servers.connected(self.settings.redis_url))

    def close(self) -> None:
        gevent.killall(self.waiting)
        self._connections.close()
        self._raw.close()
        self.sockets.close()
        self.storage.close()

    def call(self, request: Message, version: int | None = None, session: Session = ALICE) -> Any:
        """Serve a request, in its newest version by default; returns the response, None if there is none."""
        version = request.api.versions[1] if version is None else version
        if isinstance(request, FetchRequest):
            return self._consumer(session).call(request, version)
        if isinstance(request, ProduceRequest):
            return served(self.dispatcher, self.sockets, request, version, session)
        with received(request_frame(request, version)) as frame:
            chunks = self.dispatcher.serve(frame, Present(session, self.logins.get(session.peer))).chunks
        return decode_response(RESPONSES[request.api.key], version, b"".join(chunks)[4:]) if chunks else None

    def _consumer(self, session: Session) -> WireClient:
        """Return a connection of that client, always the same: it has the fetch sessions."""
        key = session.peer, session.principal
        if key not in self._consumers:
            own = Session(session.peer, session.listener, session.principal)  # it ends with the connection
            _, client = self._connections.enter_context(connected(self.dispatcher, self.sockets, session=own))
            self._consumers[key] = WireClient(client)
        return self._consumers[key]

    def ask(
        self, kind: type[Message], version: int | None = None, session: Session = ROOT, **fields: Any
    ) -> Any:
        """Serve a request with these fields, and all others null, zero or empty."""
        version = kind.api.versions[1] if version is None else version
        return self.call(message(kind, fields, version, self), version, session)

    def do(self, kind: type[Message], version: int | None = None, **fields: Any) -> Any:
        """Serve a request that must succeed."""
        answer = self.ask(kind, version, **fields)
        assert not codes(answer), answer
        return answer

    def create(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic; returns its id. `configs` have `_` for `.`."""
        given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": given}
        [created] = self.do(apis.CreateTopics, topics=[topic], timeout_ms=10_000).topics
        self.ids[name] = created.topic_id
        return self.ids[name]

    def orders(self) -> None:
        """Create the topic `orders` with two partitions, and three records in the first."""
        self.create("orders", 2)
        self.append(*(Record(b"%d" % number, b"k", 1000 + number) for number in range(3)))

    def append(self, *records: Record | bytes, topic: str = "orders", partition: int = 0) -> int:
        return self.produce(batch(*records), topic=topic, partition=partition)

    def produce(
        self,
        records: bytes,
        *,
        topic: str = "orders",
        partition: int = 0,
        transactional_id: str | None = None,
    ) -> int:
        """Append a batch as it is given; returns its offset."""
        data = [{"index": partition, "records": records}]
        answer = self.do(
            apis.Produce,
            acks=-1,
            transactional_id=transactional_id,
            topic_data=[{"topic_id": self.ids[topic], "partition_data": data}],
        )
        offset: int = answer.responses[0].partition_responses[0].base_offset
        return offset

    def begin(self, kind: type[Message], version: int | None = None, **fields: Any) -> None:
        """Send a request that has to wait; its answer comes when nobody asks for it any more."""
        session = Session("10.0.0.1:3", principal=ROOT.principal)
        self.waiting.append(gevent.spawn(self.ask, kind, version, session, **fields))

    def until(self, condition: Callable[[], bool]) -> None:
        """Ask until something is so; each request lets what was begun go on."""
        assert any(condition() for _ in range(10_000))

    def init_producer(self, name: str = "tx") -> None:
        """Become the producer of a transactional id, whose id and epoch the scene then has."""
        answer = self.do(apis.InitProducerId, transactional_id=name, transaction_timeout_ms=60_000)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def other_broker(self, broker_id: int) -> Registration:
        """Register another broker of the cluster, which is live."""
        listeners = {DEFAULT_LISTENER: Endpoint("other.example", 9092)}
        registration = Registration(broker_id=broker_id, listeners=listeners, incarnation="other")
        self.brokers.register(registration, 60_000)
        return registration

    def allow(self, operation: AclOperation, resource: AclResourceType, name: str = "") -> None:
        """Give alice a right, on what the table is about by default."""
        assert self.acls is not None
        pattern = ResourcePattern(resource, PatternType.LITERAL, name or NAMES[resource])
        rule = Rule("User:alice", "10.0.0.2", operation, AclPermissionType.ALLOW)
        assert self.acls.add([Acl(pattern, rule)]) == [None]

    def revoke_all(self) -> None:
        """Take all rights away."""
        assert self.acls is not None
        self.acls.remove(AclFilter())


def topic_id(name: str = "orders") -> Any:
    """Return the placeholder of a topic's id in a row; a missing topic has an unknown id."""
    return lambda scene: scene.ids.get(name, UNKNOWN_ID)
