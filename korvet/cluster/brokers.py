"""The cluster as clients are told of it: the live brokers, who leads a partition, keeps a group, is the controller.

Knows who was live when this worker last looked, and how work is spread over them; nothing of registering. Every broker
serves every partition and every group, so a leader, a coordinator or a controller is advice for load: one that has just
died costs its clients a try, and this broker is always among the live ones, for it is the one that answers. Clients of
one listener are told of the brokers that have it, at what these advertise for it; who leads is the same for all.

The registry of brokers in Redis: who is live, by leases on Redis' clock, and whose keeper acts.

Knows the scripts under lua/broker and what a row looks like; nothing of leaders or of the wire. A row that cannot be
read is no broker: one log line for each such text, and the others are told.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, NamedTuple, cast

import msgspec

from korvet.cluster.registration import Endpoint, Registration
from korvet.config.listeners import DEFAULT_LISTENER
from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pending import Pending, Then
from korvet.redis.replies import Reply, RespError, value_of

_LOG = logging.getLogger(__name__)
_REGISTER = scripts.get("broker/register")
_UNREGISTER = scripts.get("broker/unregister")
_LOOK = scripts.get("broker/look")


class LiveBroker(NamedTuple):
    """A broker whose registration has not run out, and when it began, in ms of Redis' clock.

    `address` is what brokers are told apart by. `listeners` is empty where the broker registered none: then it is of a
    version that had one, without a name, at that address.
    """

    broker_id: int
    address: Endpoint
    listeners: Mapping[str, Endpoint]
    started_ms: int


class Seen(NamedTuple):
    """The live brokers at one moment, in order of their ids; `keeper` is the broker whose keeper holds the lease."""

    brokers: tuple[LiveBroker, ...]
    keeper: int | None


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A row as JSON in the registry, where the id is the field's."""

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    until: int
    started: int
    listeners: dict[str, Endpoint] = {}


class BrokerStore:
    """The registry of one namespace. Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._unreadable: set[tuple[bytes, bytes]] = set()

    def register(self, registration: Registration, lease_ms: int) -> None:
        """Register a broker, or renew its registration, for `lease_ms` from now on.

        Raises KafkaError DUPLICATE_BROKER_REGISTRATION where a live broker at another address has the id.
        """
        try:
            self._redis.script(_REGISTER, (self._keys.brokers,), registration.arguments(lease_ms, own=False))
        except RespError as error:
            raise self._malformed(str(error)) from error

    def unregister(self, registration: Registration) -> None:
        """End the registration of this start of the broker, so that nobody is sent there any more."""
        args = (registration.broker_id, registration.incarnation)
        try:
            self._redis.script(_UNREGISTER, (self._keys.brokers,), args)
        except RespError as error:
            raise self._malformed(str(error)) from error

    def begin_look(self) -> Pending[Seen]:
        """Ask who is live; what is asked of Redis until the answer is awaited goes there in the same round trip."""
        call = (_LOOK, (self._keys.brokers, self._keys.keeper_lease), ())
        return Then(self._redis.begin_scripts([call]), lambda replies: self.read(replies[0]))

    def read(self, reply: Reply) -> Seen:
        """Return what the answer of lua/broker/look.lua says; raises KafkaError where it says nothing."""
        try:
            now_text, holder, *flat = cast("list[bytes]", value_of(reply))
            now_ms = int(now_text)
            rows = dict(zip(flat[::2], flat[1::2], strict=True))
        except (RespError, TypeError, ValueError) as error:
            raise self._malformed(str(error)) from error
        live = []
        for name, text in rows.items():
            try:
                broker_id, row = int(name), msgspec.json.decode(text, type=_Stored)
            except (ValueError, msgspec.DecodeError) as error:
                self._tell(name, text, error)
                continue
            if row.until > now_ms:
                live.append(LiveBroker(broker_id, Endpoint(row.host, row.port), row.listeners, row.started))
        keeper, _, _ = holder.partition(b":")
        live.sort(key=lambda broker: broker.broker_id)
        return Seen(tuple(live), int(keeper) if keeper.isdigit() else None)

    def _tell(self, name: bytes, text: bytes, error: Exception) -> None:
        if (name, text) not in self._unreadable:
            self._unreadable = {row for row in self._unreadable if row[0] != name} | {(name, text)}
            _LOG.error("%s: the row of broker %r is malformed: %s", self._keys.brokers, name, error)

    def _malformed(self, what: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._keys.brokers}: Redis answered {what}")


LEADER_EPOCH = 0
"""Of every partition: leadership does not move, since no broker holds anything (KIP-320 fences by this number)."""

NOBODY = -1
"""In the place of a leader, or controller, that cannot be reached by a client's listener."""

_TOPICS_REMEMBERED = 16_384


class Member(msgspec.Struct, frozen=True):
    """A live broker: its id, and what the clients of each of its listeners are told."""

    broker_id: int
    listeners: Mapping[str, Endpoint]


class BrokerAddress(msgspec.Struct, frozen=True):
    """A live broker as the clients of one listener are told of it: its id, and the host and port for them."""

    broker_id: int
    host: str
    port: int


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where clients are told that a partition is: broker ids, of which `leader` is one of `replicas` and of `live`.

    `replicas` are those of its assignment, the preferred leader first, and behind them a leader that is none of
    these, since an assigned broker that lives there is not; where any broker will do it is the leader alone. They are
    not copies: each of them that lives (`live`) serves the partition as any other broker does. `offline` are the rest.
    """

    leader: int
    replicas: list[int]
    live: list[int]
    offline: list[int]


class LiveBrokers:
    """The live brokers at one moment, at least one, and what follows from who they are. Never changes."""

    def __init__(self, brokers: Sequence[Member], keeper: int | None) -> None:
        """`keeper` is the broker whose keeper acts, as far as is known."""
        self.all = tuple(sorted(brokers, key=lambda broker: broker.broker_id))
        self.keeper = keeper
        self._by_id = {each.broker_id: each for each in self.all}
        self._ids = tuple(self._by_id)
        self._reachable: dict[str, Reachable] = {}

    def on(self, listener: str) -> Reachable:
        """Return what the clients of a listener are told."""
        found = self._reachable.get(listener)
        if found is None:
            found = self._reachable[listener] = Reachable(self, listener)
        return found

    def leaders(self, topic: str, partitions: int, assignment: Sequence[Sequence[int]] | None) -> list[int]:
        """Return the broker that clients are to use for each partition: the first live one of its assignment.

        Where that has none, a hash decides: the loss of a broker moves only the partitions that it led.
        """
        winners = _winners(self._ids, topic, partitions)
        if not assignment:
            return list(winners)
        assigned = [next((each for each in some if each in self._by_id), None) for some in assignment]
        assigned += [None] * (partitions - len(assigned))
        return [
            winner if chosen is None else chosen for chosen, winner in zip(assigned, winners, strict=False)
        ]

    def placed(self, topic: str, partitions: int, assignment: Sequence[Sequence[int]] | None) -> list[Placed]:
        """Return where each partition is, and with whom it shall be."""
        leaders = self.leaders(topic, partitions, assignment)
        if not assignment:
            return [Placed(leader, [leader], [leader], []) for leader in leaders]
        placed = []
        for index, leader in enumerate(leaders):
            replicas = list(assignment[index]) if index < len(assignment) else []
            if leader not in replicas:
                replicas.append(leader)
            live = [each for each in replicas if each in self._by_id]
            placed.append(Placed(leader, replicas, live, [each for each in replicas if each not in live]))
        return placed

    def coordinator(self, group: str) -> int:
        """Return the broker that the members of a group are to talk to."""
        return _winner(self._ids, f"group:{group}")


class Reachable:
    """The live brokers as the clients of one listener are told of them, as Kafka tells its own. Never changes.

    A broker that does not have the listener is none of them; what it leads has no leader for these clients, until it
    has the listener too or they use one that all brokers have.
    """

    def __init__(self, live: LiveBrokers, listener: str) -> None:
        self.all = tuple(
            BrokerAddress(each.broker_id, *each.listeners[listener])
            for each in live.all
            if listener in each.listeners
        )
        self._live = live
        self._listener = listener
        self._by_id = {each.broker_id: each for each in self.all}

    @property
    def controller_id(self) -> int:
        """The broker that clients send administration to: the one whose keeper acts, else the one of lowest id."""
        keeper = self._live.keeper
        return keeper if keeper in self._by_id else next(iter(self._by_id), NOBODY)

    def placed(self, topic: str, partitions: int, assignment: Sequence[Sequence[int]] | None) -> list[Placed]:
        """Return where each partition is; the leader is NOBODY where these clients cannot reach it."""
        placed = self._live.placed(topic, partitions, assignment)
        return (
            placed if len(self._by_id) == len(self._live.all) else [self._as_reached(each) for each in placed]
        )

    def coordinator(self, group: str) -> BrokerAddress:
        """Return the broker that the members of a group are to talk to.

        Raises KafkaError COORDINATOR_NOT_AVAILABLE where that one does not have the listener.
        """
        broker_id = self._live.coordinator(group)
        if broker_id not in self._by_id:
            message = f"broker {broker_id} has no listener {self._listener}"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return self._by_id[broker_id]

    def _as_reached(self, placed: Placed) -> Placed:
        leader = placed.leader if placed.leader in self._by_id else NOBODY
        offline = [each for each in placed.replicas if each not in self._by_id]
        return Placed(leader, placed.replicas, placed.live, offline)


class Cluster:
    """One worker's view of the cluster: its id, this broker, and who was live when it last looked."""

    def __init__(self, cluster_id: str, this: Member, store: BrokerStore) -> None:
        self.cluster_id = cluster_id
        self.this = this
        self.live = LiveBrokers([this], None)
        self._seen: Seen | None = None
        self._store = store

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look who is live; what is asked of Redis inside goes there in the same round trip.

        Where Redis is away, or says nothing that can be read, the view stays as it was.
        """
        try:
            looking = self._store.begin_look()
        except KafkaError:
            yield
            return
        yield
        with contextlib.suppress(KafkaError):
            self._see(looking.result())

    def look(self) -> LiveBrokers:
        """Look who is live, and return that."""
        with self.looking():
            pass
        return self.live

    def _see(self, seen: Seen) -> None:
        # Clients look far more often than brokers come and go.
        if seen == self._seen:
            return
        self._seen = seen
        members = {next(iter(self.this.listeners.values())): self.this}
        # Where two have the same address, the later one has it: the other is what was there before.
        for each in sorted(seen.brokers, key=lambda broker: broker.started_ms, reverse=True):
            if each.broker_id != self.this.broker_id:
                listeners = each.listeners or {DEFAULT_LISTENER: each.address}
                members.setdefault(each.address, Member(each.broker_id, listeners))
        self.live = LiveBrokers(list(members.values()), seen.keeper)


@lru_cache(maxsize=_TOPICS_REMEMBERED)
def _winners(ids: tuple[int, ...], topic: str, partitions: int) -> tuple[int, ...]:
    return tuple(_winner(ids, f"partition:{topic}:{index}") for index in range(partitions))


def _winner(ids: tuple[int, ...], what: str) -> int:
    """Return the id whose hash with `what` is the largest (rendezvous hashing): the same in every process."""
    if len(ids) == 1:
        return ids[0]
    text = what.encode()
    return max(ids, key=lambda each: blake2b(b"%d:%b" % (each, text), digest_size=8).digest())
