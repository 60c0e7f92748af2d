"""The keeper process: what has to be done now and then, and by one broker of all that share a Redis.

Knows the lease, the clock and the list of tasks; what a task does to Redis is storage's. It sleeps between rounds and
ends with the supervisor. Losing the lease stops a round before its next step, so two keepers never work side by side
for longer than one step; every task's steps are safe to be done twice.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import islice

import gevent
from gevent import socket
from gevent.event import Event

from korvet import logs
from korvet.config import Settings
from korvet.domain.topics import Topics
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server import metrics
from korvet.server.slot import ChildSlot
from korvet.storage.keeper_store import KeeperStore
from korvet.storage.keys import Keys
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Partition
from korvet.storage.resp import Redis
from korvet.storage.topic_store import TopicStore

_log = logs.Log(__name__)

# Partitions per round trip of a task: far below what would keep Redis from its other clients.
_PARTITIONS_PER_STEP = 100
_RENEWALS_PER_LEASE = 3


class LeaseLostError(Exception):
    """The round must stop: another keeper may be acting."""


class Lease:
    """This process's claim to be the acting keeper."""

    def __init__(self, store: KeeperStore, ttl_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.token: int | None = None
        """The fencing token of the present holding, None while there is none."""
        self._store = store
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._holder = uuid.uuid4().hex
        self._until = 0.0

    def renew(self) -> bool:
        """Take or keep the lease; returns whether it is held. Raises StorageUnavailableError."""
        # Counted from before the question: Redis starts the time to live later than that, never earlier.
        asked = self._clock()
        token = self._store.hold(self._holder, self._ttl_ms)
        if token is not None:
            self._until = asked + self._ttl_ms / 1000
        if token != self.token:
            self.token = token
            metrics.KEEPER_LEADER.set(int(token is not None))
            _log.info("keeper lease", held=token is not None, token=token)
        return token is not None

    @property
    def held(self) -> bool:
        """Whether no other keeper can hold the lease now."""
        return self.token is not None and self._clock() < self._until

    def check(self, token: int) -> None:
        """Raise LeaseLostError unless the lease is still the one that came with `token`."""
        if self.token != token or not self.held:
            raise LeaseLostError

    def give_up(self) -> None:
        """Let another keeper act at once. Raises StorageUnavailableError."""
        if self.token is not None:
            self.token = None
            self._store.give_up(self._holder)


class Keeper:
    """Runs the tasks, round after round, while the lease is held."""

    def __init__(self, settings: Settings) -> None:
        keys = Keys(settings.namespace)
        self._redis = Redis(
            settings.redis_url,
            timeout_ms=settings.redis_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
        )
        self._settings = settings
        self._store = KeeperStore(self._redis, keys)
        self._log_store = LogStore(self._redis, self._redis, keys)
        self._topics = Topics(TopicStore(self._redis, keys), settings, self._log_store.partition)
        self.lease = Lease(self._store, settings.keeper_lease_ms)
        self._tasks: tuple[Callable[[int], None], ...] = (self.expire_producers, self.renumber)

    def run(self, stop: Event) -> None:
        """Keep the lease, or try to get it, and do a round of tasks each interval until `stop` is set."""
        rounds = gevent.spawn(self._rounds, stop)
        away = False
        while not stop.is_set():
            try:
                self.lease.renew()
                away = False
            except StorageUnavailableError as error:
                if not away:
                    _log.warning("keeper cannot reach Redis", reason=error)
                away = True
            stop.wait(self._settings.keeper_lease_ms / 1000 / _RENEWALS_PER_LEASE)
        rounds.kill()
        try:
            self.lease.give_up()
        except StorageUnavailableError as error:
            _log.info("keeper could not give up its lease", reason=error)
        self._redis.close()

    def round(self) -> None:
        """Do every task once; one that fails does not keep the others from their turn."""
        token = self.lease.token
        if token is None or not self.lease.held:
            return
        for task in self._tasks:
            try:
                task(token)
            except LeaseLostError:
                _log.warning("keeper lost its lease in the middle of a round")
                metrics.KEEPER_ROUNDS.labels("lease lost").inc()
                return
            except KafkaError as error:
                _log.warning("keeper task failed", task=task.__name__, reason=error)
                metrics.KEEPER_ROUNDS.labels("failed").inc()
                return
        metrics.KEEPER_ROUNDS.labels("done").inc()

    def expire_producers(self, token: int) -> None:
        """Forget producers that were silent for producer.id.expiration.ms (Kafka's broker setting)."""
        silence_ms = self._settings.producer_id_expiration_ms
        forgotten = 0
        for some in self._partitions():
            unfinished = [(partition, "0") for partition in some]
            while unfinished:
                self.lease.check(token)
                steps = self._store.expire_producers(unfinished, silence_ms)
                following = []
                for (partition, _), step in zip(unfinished, steps, strict=True):
                    if isinstance(step, KafkaError):
                        _log.warning("producers not expired", key=partition.producers, reason=step)
                        continue
                    cursor, removed = step
                    forgotten += removed
                    if cursor != "0":
                        following.append((partition, cursor))
                unfinished = following
        if forgotten:
            metrics.PRODUCERS_EXPIRED.inc(forgotten)
            _log.info("forgot silent producers", count=forgotten)

    def renumber(self, token: int) -> None:
        """Take entries of other Redis clients into the log where nobody appends or reads."""
        for some in self._partitions():
            for partition in some:
                more = True
                while more:
                    self.lease.check(token)
                    try:
                        step = self._log_store.renumber(partition)
                    except StorageUnavailableError:
                        raise
                    except KafkaError as error:
                        _log.warning("foreign entries not taken in", key=partition.stream, reason=error)
                        break
                    metrics.ENTRIES_RENUMBERED.inc(step.moved)
                    more = step.more

    def _partitions(self) -> Iterator[tuple[Partition, ...]]:
        every = (partition for topic in self._topics.all() for partition in topic.partitions)
        while some := tuple(islice(every, _PARTITIONS_PER_STEP)):
            yield some

    def _rounds(self, stop: Event) -> None:
        interval_s = self._settings.log_retention_check_interval_ms / 1000
        while not stop.wait(interval_s):
            self.round()


def main(settings: Settings, slot: ChildSlot) -> None:
    """Be the keeper until SIGTERM or the end of the supervisor; runs in a child that was forked for it."""
    stop = Event()
    gevent.signal_handler(signal.SIGTERM, stop.set)
    gevent.spawn(_stop_with_supervisor, slot.life_fd, stop)
    keeper = Keeper(settings)
    slot.ready()
    keeper.run(stop)


def _stop_with_supervisor(life_fd: int, stop: Event) -> None:
    socket.wait_read(life_fd)
    stop.set()
