"""Members of one share group: librdkafka's and Java's consumers, and plain redis-py workers on the streams themselves.

Each polls, waits longer than its lock at times, releases some records and accepts the others, and waits for the answer.
"""

from __future__ import annotations

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import redis
from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaException, ShareConsumer
from redis.backoff import NoBackoff
from redis.retry import Retry

from korvet.topics.entry_ids import id_of_end
from tests.jepsen import programs
from tests.jepsen.clients import PARTITIONS, RECONNECT, TOPIC, Client
from tests.jepsen.history import Acquisition, Departed, History, Log, Settled, Settling, now
from tests.jepsen.redis_clients import WRITTEN_PARTITION
from tests.jepsen.system import BITS, Layout
from tests.jvm import share
from tests.support.entry_ids import end_of_id

SHARERS = "sharers"
LOCK_MS, DELIVERIES_MAX = 5000, 10
SETTINGS = {
    "group.share.min.record.lock.duration.ms": LOCK_MS,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.delivery.count.limit": DELIVERIES_MAX,
    # Partitions of a member that was killed are another one's after the end of its session.
    "group.share.min.session.timeout.ms": 10_000,
    "group.share.session.timeout.ms": 10_000,
    "group.share.min.heartbeat.interval.ms": 1000,
    "group.share.heartbeat.interval.ms": 1000,
}
_RELEASED, _LATE, _KILLED = 0.05, 0.01, 0.005
_POLL_SECONDS = 0.1
# Acknowledges an entry that is still the consumer's: KEYS stream, ARGV group, id, consumer.
_XACK_OWN = """
local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1, ARGV[3])
return #mine > 0 and redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) or 0
"""


class Taken(NamedTuple):
    """A record that a member was given for the `delivery`th time."""

    partition: int
    offset: int
    delivery: int


class Member(ABC):
    """A member of the share group. Where it cannot go on it raises an OSError or a KafkaException."""

    releases = True
    """Whether it can release records; else it lets them lie."""

    @abstractmethod
    def poll(self) -> list[Taken]:
        """Return the records that it is given now."""

    @abstractmethod
    def settle(self, accepted: Sequence[Taken], released: Sequence[Taken]) -> set[Taken]:
        """Acknowledge records; returns the ones acknowledged without an error."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""

    def kill(self) -> None:
        """Leave it without a word, if it can."""
        self.close()


class LibrdkafkaMember(Member):
    """confluent-kafka's share consumer."""

    def __init__(self, bootstrap: str) -> None:
        # It asks one broker after the other.
        own = {"group.id": SHARERS, "share.acknowledgement.mode": "explicit", "fetch.wait.max.ms": 100}
        self._consumer = ShareConsumer({"bootstrap.servers": bootstrap, **own, **RECONNECT})
        self._consumer.subscribe([TOPIC])

    def poll(self) -> list[Taken]:
        """Poll once."""
        taken = []
        for item in self._consumer.poll(_POLL_SECONDS):
            if (error := item.error()) is not None:
                raise KafkaException(error)
            taken.append(Taken(item.partition() or 0, item.offset() or 0, item.delivery_count() or 0))
        return taken

    def settle(self, accepted: Sequence[Taken], released: Sequence[Taken]) -> set[Taken]:
        """Acknowledge, and commit."""
        for records, kind in ((accepted, AcknowledgeType.ACCEPT), (released, AcknowledgeType.RELEASE)):
            for record in records:
                try:
                    self._consumer.acknowledge_offset(TOPIC, record.partition, record.offset, kind)
                except IllegalStateException as error:
                    raise OSError(f"{type(error).__name__}: {error}") from error
        answers = {place.partition: error for place, error in self._consumer.commit_sync(30.0).items()}
        return {item for item in (*accepted, *released) if answers.get(item.partition, "none") is None}

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


class JavaShareMember(Member):
    """Kafka's share consumer; it can be killed."""

    def __init__(self, bootstrap: str, log: Path) -> None:
        timeouts = ("request.timeout.ms=15000", "default.api.timeout.ms=30000", "fetch.max.wait.ms=100")
        self._running = share.ShareConsumer(
            programs.CLASSES, log, bootstrap, SHARERS, TOPIC, share.EXPLICIT, *timeouts
        )

    def poll(self) -> list[Taken]:
        """Poll once."""
        try:
            return [Taken(*item[:3]) for item in self._running.fetch(_POLL_SECONDS)]
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def settle(self, accepted: Sequence[Taken], released: Sequence[Taken]) -> set[Taken]:
        """Acknowledge, and commit."""
        try:
            for verb, records in (("accept", accepted), ("release", released)):
                self._running.do(verb, *(f"{record.partition}:{record.offset}" for record in records))
            answers = self._running.do("commit").split()
        except RuntimeError as error:
            raise OSError(str(error)) from error
        return {item for item in (*accepted, *released) if f"{item.partition}:done" in answers}

    def close(self) -> None:
        """Leave the group, and end the JVM."""
        try:
            self._running.close()
        except RuntimeError as error:
            raise OSError(str(error)) from error
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the JVM."""
        self._running.kill()


class Worker(Member):
    """A worker that knows nothing of Kafka; it cannot release, but lets records lie.

    It waits for replicas as a broker does, after it has claimed entries and after XACK. Ids of entries by XADD may
    change after it has read them: it leaves the partition that has some to the others.
    """

    releases = False

    def __init__(self, name: str, port: int, replicas: int, layout: Layout) -> None:
        self._name, self._replicas, self._bits = name, replicas, BITS[layout]
        self._partitions = itertools.cycle(sorted({*range(PARTITIONS)} - {WRITTEN_PARTITION}))
        self._redis: Any = redis.Redis(port=port, socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    def poll(self) -> list[Taken]:
        """Claim what others hold for too long in one partition, else read on there."""
        partition = next(self._partitions)
        stream = _stream(partition)
        try:
            claimed = self._redis.xautoclaim(stream, SHARERS, self._name, LOCK_MS, count=50)[1]
            entries = [entry_id for entry_id, _ in claimed]
            if not entries:
                read = self._redis.xreadgroup(SHARERS, self._name, {stream: ">"}, count=50)
                entries = [entry_id for _, results in read for entry_id, _ in results]
            pending = [self._pending(stream, entry_id) for entry_id in entries]
            if entries and not self._is_replicated():
                return []
        except redis.ResponseError as error:
            if "NOGROUP" in str(error):  # the first share consumer makes it
                return []
            raise OSError(f"{type(error).__name__}: {error}") from error
        except redis.RedisError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        mine = [
            result for results in pending for result in results if result["consumer"] == self._name.encode()
        ]
        time.sleep(_POLL_SECONDS / PARTITIONS)
        return [Taken(partition, self._offset(file["message_id"]), file["times_delivered"]) for file in mine]

    def _is_replicated(self) -> bool:
        return bool(self._redis.wait(self._replicas, 3000) >= self._replicas)

    def _offset(self, entry_id: bytes) -> int:
        end = end_of_id(entry_id, self._bits)
        assert end is not None
        return end - 1

    def _pending(self, stream: str, entry_id: bytes) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self._redis.xpending_range(stream, SHARERS, entry_id, entry_id, 1)
        return result

    def settle(self, accepted: Sequence[Taken], _released: Sequence[Taken]) -> set[Taken]:
        """Acknowledge what is still its own."""
        settled = set[Taken]()
        try:
            for item in accepted:
                stream, entry_id = _stream(item.partition), id_of_end(item.offset + 1, self._bits)
                settled |= (
                    {item} if self._redis.eval(_XACK_OWN, 1, stream, SHARERS, entry_id, self._name) else set()
                )
            if accepted and not self._is_replicated():
                return set()
        except redis.RedisError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return settled

    def close(self) -> None:
        """Disconnect."""
        self._redis.close()


class ShareClient(Client):
    """One member after another; `join` makes one that is named."""

    def __init__(
        self, name: str, bootstrap: str, history: History, join: Callable[[str], Member], seed: int
    ) -> None:
        self._join, self._random = join, random.Random(seed)
        super().__init__(name, bootstrap, history)

    def live(self, instance: str) -> None:
        """Be one member until the end, or until it is killed."""
        member = self._join(instance)
        # Records may come in the next poll after the one that asked for them.
        began = deque([now()], maxlen=2)
        killed = False
        try:
            while self.goes_on and not killed:
                polled = now()
                taken = member.poll()
                self.history.add(*(Acquisition(SHARERS, instance, *item, began[0], now()) for item in taken))
                if taken:
                    began.append(polled)
                    chance = self._random.random()
                    if chance < _LATE:
                        self._ending.wait(1.2 * LOCK_MS / 1000)
                    killed = _LATE <= chance < _LATE + _KILLED
                    if not killed:
                        self._settle(member, instance, taken)
        finally:
            self.history.add(Departed(instance, now()))
            (member.kill if killed else member.close)()

    def _settle(self, member: Member, instance: str, taken: list[Taken]) -> None:
        released = [item for item in taken if self._random.random() < _RELEASED]
        accepted = [item for item in taken if item not in released]
        if not member.releases:
            released = []
        kinds = {**dict.fromkeys(accepted, True), **dict.fromkeys(released, False)}
        self.history.add(
            *(Settling(SHARERS, instance, *item, accept, now()) for item, accept in kinds.items())
        )
        settled = member.settle(accepted, released)
        self.history.add(*(Settled(SHARERS, instance, *item, kinds[item], now()) for item in settled))


def share_clients(
    libraries: Sequence[str],
    bootstrap: str,
    history: History,
    worker: Callable[[str], Member] | None,
    log: Path,
    seed: int,
) -> list[ShareClient]:
    """Start members of a group that begins at the start; the last is a worker on the streams, if there can be one."""
    share.configure(bootstrap, SHARERS, share_auto_offset_reset="earliest")

    def librdkafka(_instance: str) -> Member:
        return LibrdkafkaMember(bootstrap)

    def java(_instance: str) -> Member:
        return JavaShareMember(bootstrap, log)

    joins: dict[str, Callable[[str], Member]] = {
        "share-a": librdkafka,
        "share-b": java if "java" in libraries else librdkafka,
    }
    if worker:
        joins["share-worker"] = worker
    return [
        ShareClient(name, bootstrap, history, join, seed + number)
        for number, (name, join) in enumerate(joins.items())
    ]


def wait_for_shares(history: History, log: Log, seconds: float) -> None:
    """Wait until members have accepted every record, or for that long no more of them."""
    wanted = {(partition, offset) for partition, records in log.items() for offset, _ in records}
    last = now()
    while wanted and now() < last + seconds:
        done = [event for event in history.events if isinstance(event, Settled) and event.accept]
        last = max([last, *(item.at for item in done)])
        wanted -= {(item.partition, item.offset) for item in done}
        time.sleep(1.0)


def _stream(partition: int) -> str:
    return f"korvet:{TOPIC}:{partition}"
