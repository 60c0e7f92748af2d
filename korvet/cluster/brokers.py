"""The brokers that share one Redis: who is live, who leads a partition, coordinates a group, is the controller.

Brokers register in Redis under leases on Redis' clock (lua/broker). Every broker serves every partition and every
group, so a leader, a coordinator or a controller is advice that spreads load: one that has just died costs its clients
a try, and this broker always counts as live, for it is the one that answers. Clients of one listener get the brokers
that have it, at the addresses these advertise for it; who leads is the same for all clients.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, cast

import gevent
import msgspec

from korvet.clock import CLOCK, Clock
from korvet.cluster.registration import BrokerRow, Endpoint, Registration
from korvet.config.listeners import DEFAULT_LISTENER
from korvet.errors import ErrorCode, KafkaError
from korvet.pending import Pending, Then
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Arg, Reply, RespError, errors_about, value_of

_LOG = logging.getLogger(__name__)
_REGISTER = scripts.get("broker/register")
_UNREGISTER = scripts.get("broker/unregister")
_LOOK = scripts.get("broker/look")
_HOLDER = scripts.get("keeper/look")

_NO_HOLDER: Reply = [b"", b"0"]

NOBODY = -1
"""In the place of a leader, or controller, that cannot be reached by a client's listener."""

_TOPICS_REMEMBERED = 16_384


class RegisteredBroker(NamedTuple):
    """A broker whose registration has not expired, and when it began, in ms of Redis' clock.

    `address` identifies the broker. `listeners` is empty for a broker of a version that registered none: it has one,
    without a name, at that address.
    """

    broker_id: int
    address: Endpoint
    listeners: Mapping[str, Endpoint]
    started_ms: int


class RegisteredBrokers(NamedTuple):
    """The brokers at one moment, in order of their ids; `keeper` is the broker whose keeper holds the lease.

    `keeper_epoch` rises with each new holder of the lease. `idle` are only listed to clients.
    """

    brokers: tuple[RegisteredBroker, ...]
    keeper: int | None
    keeper_epoch: int = 0
    idle: tuple[RegisteredBroker, ...] = ()


class BrokerStore:
    """The registry of one namespace. Every method raises StorageUnavailableError if Redis is away.

    A row that cannot be read is no broker: it is logged once, and the others are returned.
    """

    def __init__(self, redis: Redis, keys: Keys, *, clock: Clock = CLOCK) -> None:
        self._redis = redis
        self._keys = keys
        self._lease = (keys.keeper_lease, keys.keeper_fence)
        self._clock = clock
        self._unreadable: dict[bytes, bytes] = {}
        # In a cluster: who holds the keeper's lease, as far as is known, and the greenlet that asks.
        self._holder: Reply = _NO_HOLDER
        self._asking: gevent.Greenlet[[], None] | None = None

    def register(self, registration: Registration, lease_ms: int, *, starting: bool = False) -> None:
        """Register a broker, or renew its registration, for `lease_ms` from now on; while `starting` it leads nothing.

        Raises KafkaError DUPLICATE_BROKER_REGISTRATION if a live broker at another address has the id,
        UNSUPPORTED_VERSION if a later version has written data that this one would misread.
        """
        args = registration.arguments(lease_ms, own=False, starting=starting)
        self._run(_REGISTER, args, self._keys.data_format)

    def unregister(self, registration: Registration, listed_ms: int) -> None:
        """End the registration of this start of the broker: it leads nothing, but is listed to clients that long."""
        self._run(_UNREGISTER, (registration.broker_id, registration.incarnation, listed_ms))

    def _run(self, script: scripts.Script, args: Sequence[Arg], *keys: str) -> None:
        with errors_about(self._keys.brokers):
            self._redis.script(script, (self._keys.brokers, *keys), args)

    def begin_read(self) -> Pending[list[Reply]]:
        """Ask who is live; commands given to Redis before the replies are awaited share their round trip.

        In a Redis Cluster the keeper's lease may lie on a node that hangs, and nobody waits for it: the holder is the
        one that was known before, or none if the node does not answer.
        """
        look, holder = (_LOOK, (self._keys.brokers,), ()), (_HOLDER, self._lease, ())
        if not self._redis.is_cluster:
            return self._redis.begin_scripts([look, holder])
        if self._asking is None or self._asking.ready():
            self._asking = self._clock.spawn(self._ask_holder)
        return Then(self._redis.begin_scripts([look]), lambda replies: [*replies, self._holder])

    def _ask_holder(self) -> None:
        try:
            self._holder = self._redis.script(_HOLDER, self._lease, ())
        except (KafkaError, RespError):
            self._holder = _NO_HOLDER

    def read(self, replies: Sequence[Reply]) -> RegisteredBrokers:
        """Return the brokers in the replies to `begin_read`; raises KafkaError for other replies."""
        brokers, holder = replies
        try:
            now_text, *flat = cast("list[bytes]", value_of(brokers))
            now_ms = int(now_text)
            rows = dict(zip(flat[::2], flat[1::2], strict=True))
        except (RespError, TypeError, ValueError) as error:
            message = f"{self._keys.brokers}: Redis answered {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        live: list[RegisteredBroker] = []
        idle: list[RegisteredBroker] = []
        for name, text in rows.items():
            try:
                broker_id, row = int(name), msgspec.json.decode(text, type=BrokerRow)
            except (ValueError, msgspec.DecodeError) as error:
                if self._unreadable.get(name) != text:
                    self._unreadable[name] = text
                    _LOG.error("%s: the row of broker %r is malformed: %s", self._keys.brokers, name, error)
                continue
            if max(row.until, row.listed) > now_ms:
                broker = RegisteredBroker(broker_id, Endpoint(row.host, row.port), row.listeners, row.started)
                (live if row.until > now_ms and not row.starting else idle).append(broker)
        match holder:
            case [bytes() as name, bytes() as token] if token.isdigit():
                keeper, epoch = name.partition(b":")[0], int(token)
            case _:
                keeper, epoch = b"", 0
        live.sort(key=lambda broker: broker.broker_id)
        keeper_id = int(keeper) if keeper.isdigit() else None
        return RegisteredBrokers(tuple(live), keeper_id, epoch, tuple(idle))


class LiveBroker(msgspec.Struct, frozen=True):
    """A live broker: its id, and the address it advertises on each of its listeners."""

    broker_id: int
    listeners: Mapping[str, Endpoint]


class BrokerAddress(msgspec.Struct, frozen=True):
    """A live broker for the clients of one listener: its id, and the host and port for them."""

    broker_id: int
    host: str
    port: int


class Placed(msgspec.Struct, frozen=True, gc=False):
    """The brokers of a partition in responses to clients: ids, of which `leader` is one of `replicas` and of `live`.

    `replicas` are those of its assignment, the preferred leader first, and after them a leader that is none of them,
    because no assigned broker is live; a partition that any broker may lead has its leader alone. They are not copies:
    each that is live (`live`) serves the partition as any other broker does. `offline` are the rest.
    """

    leader: int
    replicas: list[int]
    live: list[int]
    offline: list[int]


class LiveBrokers:
    """The live brokers at one moment, at least one, and what follows from who they are. Never changes."""

    def __init__(
        self,
        brokers: Sequence[LiveBroker],
        keeper: int | None,
        keeper_epoch: int = 0,
        idle: Sequence[LiveBroker] = (),
    ) -> None:
        """`keeper` is the broker whose keeper holds the lease, as far as is known, since its number `keeper_epoch`.

        `idle` are starting, or have stopped a moment ago: they lead nothing, but clients find them in metadata.
        """
        self.idle = tuple(idle)
        self.all = tuple(sorted(brokers, key=lambda broker: broker.broker_id))
        self.keeper = keeper
        self.keeper_epoch = keeper_epoch
        self._by_id = {member.broker_id: member for member in self.all}
        self._ids = tuple(self._by_id)
        self._reachable: dict[str, ReachableBrokers] = {}

    def on(self, listener: str) -> ReachableBrokers:
        result = self._reachable.get(listener)
        if result is None:
            result = self._reachable[listener] = ReachableBrokers(self, listener)
        return result

    def leaders(self, topic: str, partitions: int, assignment: Sequence[Sequence[int]] | None) -> list[int]:
        """Return the broker that clients are to use for each partition: the first live one of its assignment.

        If there is none, a hash decides, by which each broker leads as many partitions of a topic as any other, give or
        take one; the loss of a broker moves few partitions that it did not lead.
        """
        winners = spread_leaders(self._ids, topic, partitions)
        if not assignment:
            return list(winners)
        assigned = [next((item for item in chunk if item in self._by_id), None) for chunk in assignment]
        assigned += [None] * (partitions - len(assigned))
        return [
            winner if chosen is None else chosen for chosen, winner in zip(assigned, winners, strict=False)
        ]

    def placed(self, topic: str, partitions: int, assignment: Sequence[Sequence[int]] | None) -> list[Placed]:
        leaders = self.leaders(topic, partitions, assignment)
        if not assignment:
            return [Placed(leader, [leader], [leader], []) for leader in leaders]
        placed = []
        for index, leader in enumerate(leaders):
            replicas = list(assignment[index]) if index < len(assignment) else []
            if leader not in replicas:
                replicas.append(leader)
            live = [replica for replica in replicas if replica in self._by_id]
            placed.append(
                Placed(leader, replicas, live, [replica for replica in replicas if replica not in live])
            )
        return placed

    def coordinator(self, group: str) -> int:
        return _winner(self._ids, f"group:{group}")


def _addresses(brokers: Sequence[LiveBroker], listener: str) -> tuple[BrokerAddress, ...]:
    return tuple(
        BrokerAddress(broker.broker_id, *broker.listeners[listener])
        for broker in brokers
        if listener in broker.listeners
    )


class ReachableBrokers:
    """The live brokers for the clients of one listener, as Kafka's brokers report theirs. Never changes.

    `listed` are those and the idle ones: what metadata has.

    A broker that does not have the listener is none of them; what it leads has no leader for these clients, until it
    has the listener too or they use one that all brokers have.
    """

    def __init__(self, live: LiveBrokers, listener: str) -> None:
        self.all = _addresses(live.all, listener)
        self.listed = (*self.all, *_addresses(live.idle, listener))
        self._live = live
        self._listener = listener
        self._by_id = {member.broker_id: member for member in self.all}

    @property
    def controller_epoch(self) -> int:
        return self._live.keeper_epoch

    @property
    def controller_id(self) -> int:
        """The broker that clients send administration to: the keeper's, or else the one of lowest id."""
        keeper = self._live.keeper
        return keeper if keeper in self._by_id else next(iter(self._by_id), NOBODY)

    def placed(self, topic: str, partitions: int, assignment: Sequence[Sequence[int]] | None) -> list[Placed]:
        """Return the brokers of each partition; the leader is NOBODY if these clients cannot reach it."""
        placed = self._live.placed(topic, partitions, assignment)
        return (
            placed if len(self._by_id) == len(self._live.all) else [self._as_reached(item) for item in placed]
        )

    def coordinator(self, group: str) -> BrokerAddress:
        """Return the broker that the members of a group use.

        Raises KafkaError COORDINATOR_NOT_AVAILABLE if that one does not have the listener.
        """
        broker_id = self._live.coordinator(group)
        if broker_id not in self._by_id:
            message = f"broker {broker_id} has no listener {self._listener}"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return self._by_id[broker_id]

    def _as_reached(self, placed: Placed) -> Placed:
        leader = placed.leader if placed.leader in self._by_id else NOBODY
        offline = [replica for replica in placed.replicas if replica not in self._by_id]
        return Placed(leader, placed.replicas, placed.live, offline)


class ClusterView:
    """One worker's view of the cluster: its id, this broker, and who was live at the last refresh."""

    def __init__(self, cluster_id: str, this: LiveBroker, store: BrokerStore) -> None:
        self.cluster_id = cluster_id
        self.this = this
        self.live = LiveBrokers([this], None)
        self._registered: RegisteredBrokers | None = None
        self._store = store

    @contextlib.contextmanager
    def refreshing(self) -> Iterator[None]:
        """Read who is live; commands given to Redis inside share the round trip.

        If Redis is away, or its reply cannot be read, the view stays as it was.
        """
        try:
            pending = self._store.begin_read()
        except KafkaError:
            yield
            return
        yield
        with contextlib.suppress(KafkaError):
            self._update(self._store.read(pending.result()))

    def refresh(self) -> LiveBrokers:
        with self.refreshing():
            pass
        return self.live

    def _update(self, registered: RegisteredBrokers) -> None:
        # Clients ask far more often than brokers come and go.
        if registered == self._registered:
            return
        self._registered = registered
        brokers = {next(iter(self.this.listeners.values())): self.this}
        # Of two at the same address the later one is there: the other is what was there before.
        for item in sorted(registered.brokers, key=lambda broker: broker.started_ms, reverse=True):
            if item.broker_id != self.this.broker_id:
                brokers.setdefault(item.address, _member(item))
        idle = [
            _member(broker)
            for broker in registered.idle
            if broker.broker_id != self.this.broker_id and broker.address not in brokers
        ]
        keeper, epoch = registered.keeper, registered.keeper_epoch
        self.live = LiveBrokers(list(brokers.values()), keeper, epoch, idle)


def _member(broker: RegisteredBroker) -> LiveBroker:
    return LiveBroker(broker.broker_id, broker.listeners or {DEFAULT_LISTENER: broker.address})


@lru_cache(maxsize=_TOPICS_REMEMBERED)
def spread_leaders(ids: tuple[int, ...], topic: str, partitions: int) -> tuple[int, ...]:
    """Return for each partition the broker that the hash prefers among brokers that lead less than their share."""
    share, extra = divmod(partitions, len(ids))
    # No more than `extra` of them lead one more than the share.
    room = dict.fromkeys(ids, share)
    leaders = []
    for index in range(partitions):
        open_ = ids if extra else tuple(item for item in ids if room[item] > 0)
        leader = _winner(tuple(round_ for round_ in open_ if room[round_] >= 0), f"partition:{topic}:{index}")
        if not room[leader]:
            extra -= 1
        room[leader] -= 1
        leaders.append(leader)
    return tuple(leaders)


def _winner(ids: Sequence[int], what: str) -> int:
    """Return the id whose hash with `what` is the largest (rendezvous hashing): the same in every process."""
    if len(ids) == 1:
        return ids[0]
    text = what.encode()
    return max(ids, key=lambda item: blake2b(b"%d:%b" % (item, text), digest_size=8).digest())
