"""The clients of a run, each in a thread of its own. They write down what they learn, and judge nothing.

librdkafka for producers, readers and commits; kafka-python for members of a group, since it says its generation.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import kafka
import kafka.errors
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.jepsen.checker import Violation, not_delivered
from tests.jepsen.history import (
    Acknowledged,
    Began,
    Committed,
    Delivered,
    Failed,
    Fetched,
    History,
    Log,
    Owned,
    Revoked,
    Seen,
    Sent,
    now,
    place_of,
    value_of,
)

PARTITIONS = 4
TOPIC, COMMIT_TOPIC, GROUP = "records", "commits", "members"
# What is written in transactions, and its copies by a group that reads, processes and writes.
TRANSACTIONS, COPIES, COPIERS = "transactions", "copies", "copiers"
_UNANSWERED_MAX = 2000
_TURN_SECONDS = 0.1
# In each partition: what an instance of a reader sees that the one before saw too.
_READ_AGAIN = 1000
# Longer than any fault stops a worker: so a member whose session has ended learns that before it may leave.
SESSION_MS = 15_000
# How long an instance of a member lives.
LIFE_SECONDS = (5.0, 40.0)
_END_SECONDS_MAX = 180.0
Protocol: TypeAlias = Literal["classic", "consumer"]
RECONNECT = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "log_level": 0}


class Client(ABC):
    """One client under way. `turn` is done again and again until `end`; an error of it makes a new client."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        """Name it; clients that replace it are named after it."""
        self.name = name
        self.history = history
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        self._names = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> list[Violation]:
        """Stop it, when it has nothing open any more; returns where it is if it does not end."""
        self._ending.set()
        self._thread.join(_END_SECONDS_MAX)
        if not self._thread.is_alive():
            return []
        frame = sys._current_frames().get(self._thread.ident or 0)
        return [Violation("stuck", f"{self.name}\n{''.join(traceback.format_stack(frame))}")]

    def _run(self) -> None:
        while not self._ending.is_set():
            instance = f"{self.name}.{next(self._names)}"
            try:
                self.live(instance)
            except (KafkaException, kafka.errors.KafkaError, OSError) as error:
                self.history.add(Failed(instance, repr(error), now()))
                self._ending.wait(1.0)

    @property
    def goes_on(self) -> bool:
        """Whether nobody has ended it."""
        return not self._ending.is_set()

    @abstractmethod
    def live(self, instance: str) -> None:
        """Be one client until the end; raises an error of the client's library that it cannot go on from."""


class ProducerClient(Client):
    """librdkafka's producer with acks=all, idempotent or not. `last_acknowledged` is the time of its last progress."""

    def __init__(self, name: str, bootstrap: str, history: History, *, idempotent: bool, seed: int) -> None:
        self._idempotent = idempotent
        self._random = random.Random(seed)
        self.last_acknowledged = now()
        super().__init__(name, bootstrap, history)

    def live(self, instance: str) -> None:
        """Send bursts of values; more only while few are unanswered."""
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": self._idempotent,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 0,
                "socket.timeout.ms": 10_000,
                "request.timeout.ms": 5000,
                "topic.metadata.refresh.interval.ms": 5000,
                **RECONNECT,
            }
        )
        failed: list[Any] = []
        open_ = 0

        def delivered(partition: int, number: int) -> Any:
            def report(error: Any, message: Message) -> None:
                nonlocal open_
                open_ -= 1
                if error is None:
                    self.last_acknowledged = now()
                    offset = message.offset()
                    offset = -1 if offset is None else offset
                    self.history.add(
                        Acknowledged(instance, partition, number, offset, self._idempotent, now())
                    )
                else:
                    failed.append(error)

            return report

        for number in itertools.count():
            if failed:
                raise KafkaException(failed[0])
            if not self.goes_on:
                break
            while open_ >= _UNANSWERED_MAX and not failed and self.goes_on:
                producer.poll(_TURN_SECONDS)
            partition = self._random.randrange(PARTITIONS)
            self.history.add(Sent(instance, partition, number, now()))
            producer.produce(
                TOPIC,
                value_of(instance, number),
                partition=partition,
                on_delivery=delivered(partition, number),
            )
            open_ += 1
            producer.poll(0 if number % 10 else 0.05)
        producer.flush(_END_SECONDS_MAX)


class Reading:
    """Where a reader's next instance begins: a while before the last one's end, which a loss may have cut off."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._ends = dict.fromkeys(range(PARTITIONS), 0)
        self._back = 0

    def begin(self, instance: str) -> dict[int, int]:
        """Return the offset of each partition at which an instance is to begin."""
        # Further back each time that an instance sees nothing: its offsets are still beyond the end.
        self._back = max(_READ_AGAIN, self._back * 10)
        offsets = {partition: max(0, end - self._back) for partition, end in self._ends.items()}
        self._history.add(*(Began(instance, *place, now()) for place in offsets.items()))
        return offsets

    def note(self, instance: str, partition: int, offset: int, value: str) -> None:
        """Note a record."""
        self._ends[partition] = offset + 1
        self._back = 0
        self._history.add(Seen(instance, partition, offset, value, now()))


class ReaderClient(Client):
    """librdkafka's consumer without a group, which reads what is committed."""

    def __init__(self, name: str, bootstrap: str, history: History, topic: str = TOPIC) -> None:
        self._topic = topic
        self._reading = Reading(history)
        super().__init__(name, bootstrap, history)

    def live(self, instance: str) -> None:
        """Read until the end, or until an offset is gone: then another one begins."""
        consumer = _reader(self._bootstrap)
        try:
            consumer.assign(
                [TopicPartition(self._topic, *place) for place in self._reading.begin(instance).items()]
            )
            while self.goes_on:
                for message in consumer.consume(500, _TURN_SECONDS):
                    if (error := message.error()) is not None:
                        gone = error.code() == KafkaError._AUTO_OFFSET_RESET
                        if gone or not (error.retriable() or error.code() < 0):
                            raise KafkaException(error)
                        continue
                    self._reading.note(instance, *record_of(message))
        finally:
            consumer.close()


class Membership:
    """One instance of a member of the group, as it writes down what it has, reads and commits."""

    def __init__(self, history: History, instance: str) -> None:
        self.owned: set[int] = set()
        self._history = history
        self._instance = instance
        # When partitions were assigned of which it has got no record since.
        self._fresh: dict[int, float] = {}

    def assign(self, partitions: Sequence[int], at: float, generation: int = -1) -> None:
        """Note partitions that it was assigned."""
        self.owned.update(partitions)
        self._fresh |= dict.fromkeys(partitions, at)
        self._history.add(Owned(GROUP, generation, self._instance, tuple(partitions), at))

    def revoke(self, partitions: Sequence[int], at: float, *, lost: bool) -> None:
        """Note partitions that it gives up, or has lost."""
        self.owned.difference_update(partitions)
        self._history.add(Revoked(GROUP, self._instance, tuple(partitions), lost, at))

    def deliver(self, partition: int, offset: int) -> None:
        """Note a record; where it begins is the committed offset, or above that."""
        if partition in self._fresh:
            began = self._fresh.pop(partition)
            self._history.add(Fetched(place_of(GROUP, partition), offset, began, now()))
        self._history.add(Delivered(GROUP, partition, offset, now()))

    def commit(self, partition: int, offset: int, began: float, at: float) -> None:
        """Note a commit."""
        self._history.add(Committed(place_of(GROUP, partition), offset, at, self._instance, began))


class MemberClient(Client):
    """kafka-python's consumer as a member of the group, by the classic protocol; commits after each poll."""

    def __init__(self, name: str, bootstrap: str, history: History, *, seed: int, is_mixed: bool) -> None:
        """`is_mixed` says that others use the consumer protocol."""
        self._random = random.Random(seed)
        self._is_mixed = is_mixed
        super().__init__(name, bootstrap, history)

    def live(self, instance: str) -> None:
        """Read as a member for a while."""
        until = now() + self._random.uniform(*LIFE_SECONDS)
        is_mixed, member = self._is_mixed, Membership(self.history, instance)
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap.split(","),
            group_id=GROUP,
            client_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1000,
            request_timeout_ms=SESSION_MS + 5_000,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=5000,
        )

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # has no types
            def on_partitions_revoked(self, revoked: Any) -> None:
                member.revoke([partition.partition for partition in revoked], now(), lost=False)

            def on_partitions_lost(self, lost: Any) -> None:
                member.revoke([partition.partition for partition in lost], now(), lost=True)

            def on_partitions_assigned(self, assigned: Any) -> None:
                generation = -1 if is_mixed else consumer._coordinator._generation.generation_id
                member.assign(sorted(partition.partition for partition in assigned), now(), generation)

        consumer.subscribe([TOPIC], listener=Listener())
        try:
            while self.goes_on and now() < until:
                result = consumer.poll(timeout_ms=int(_TURN_SECONDS * 1000), max_records=500)
                offsets = {}
                for place, records in result.items():
                    for record in records:
                        member.deliver(place.partition, record.offset)
                        offsets[place] = kafka.OffsetAndMetadata(record.offset + 1, "", -1)
                # A commit that is refused is done again with the next records.
                with contextlib.suppress(kafka.errors.KafkaError):
                    if offsets:
                        began = now()
                        consumer.commit(offsets)
                        for place, committed in offsets.items():
                            member.commit(place.partition, committed.offset, began, now())
        finally:
            with contextlib.suppress(kafka.errors.KafkaError):
                consumer.close(autocommit=False)


class RdkafkaMemberClient(Client):
    """librdkafka's consumer as a member of the group; commits after each poll."""

    def __init__(
        self, name: str, bootstrap: str, history: History, protocols: Sequence[Protocol], *, seed: int
    ) -> None:
        """Its instances use the protocols in turn."""
        self._protocols = itertools.cycle(protocols)
        self._random = random.Random(seed)
        super().__init__(name, bootstrap, history)

    def live(self, instance: str) -> None:
        """Read as a member for a while."""
        until = now() + self._random.uniform(*LIFE_SECONDS)
        member = Membership(self.history, instance)
        config: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": GROUP,
            "client.id": instance,
            "enable.auto.commit": False,
            # Where a log was cut off librdkafka drops what it has fetched before the end and goes on there, unless it
            # has to report that: the next instance begins at the committed offset.
            "auto.offset.reset": "error" if self._has_committed() else "earliest",
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 5000,
            "socket.timeout.ms": 10_000,
            **RECONNECT,
        }
        if next(self._protocols) == "consumer":
            config["group.protocol"] = "consumer"  # the broker has the times
        else:
            config |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1000}
        consumer = Consumer(config)

        def on_assign(_consumer: Consumer, assigned: list[TopicPartition]) -> None:
            member.assign([partition.partition for partition in assigned], now())

        def on_revoke(_consumer: Consumer, revoked: list[TopicPartition]) -> None:
            member.revoke([partition.partition for partition in revoked], now(), lost=False)

        def on_lost(_consumer: Consumer, lost: list[TopicPartition]) -> None:
            member.revoke([partition.partition for partition in lost], now(), lost=True)

        consumer.subscribe([TOPIC], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        try:
            while self.goes_on and now() < until:
                self._read(consumer, member)
        finally:
            consumer.close()

    def _has_committed(self) -> bool:
        """Whether the group has an offset of each partition."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": GROUP, **RECONNECT})
        try:
            places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
            return all(item.offset >= 0 for item in consumer.committed(places, timeout=10.0))
        finally:
            consumer.close()

    @staticmethod
    def _read(consumer: Consumer, member: Membership) -> None:
        offsets: dict[int, int] = {}
        for message in consumer.consume(500, _TURN_SECONDS):
            if (error := message.error()) is not None:
                if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
                continue
            partition, offset, _ = record_of(message)
            member.deliver(partition, offset)
            offsets[partition] = offset + 1
        # It may have given up some that it got before in the same call.
        places = [TopicPartition(TOPIC, *place) for place in offsets.items() if place[0] in member.owned]
        if not places:
            return
        began = now()
        with contextlib.suppress(KafkaException):
            for item in consumer.commit(offsets=places, asynchronous=False) or ():
                if item.error is None:
                    member.commit(item.partition, item.offset, began, now())


class CommitClient(Client):
    """librdkafka's consumer that commits rising offsets for a group of its own, and reads them back."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        self._offset = 0
        super().__init__(name, bootstrap, history)

    def live(self, _instance: str) -> None:
        """Commit and read in turn."""
        group = self.name
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                **RECONNECT,
            }
        )
        try:
            while self.goes_on:
                self._offset += 1
                place = TopicPartition(COMMIT_TOPIC, 0, self._offset)
                with contextlib.suppress(KafkaException):
                    [answer] = consumer.commit(offsets=[place], asynchronous=False) or [place]
                    if answer.error is None:
                        self.history.add(Committed(group, self._offset, now()))
                began = now()
                with contextlib.suppress(KafkaException):
                    [read] = consumer.committed([TopicPartition(COMMIT_TOPIC, 0)], timeout=5.0)
                    if read.error is None:
                        self.history.add(Fetched(group, read.offset, began, now()))
                self._ending.wait(0.02)
        finally:
            consumer.close()


def read_log(bootstrap: str, topic: str = TOPIC) -> Log:
    """Return all committed records, as a new reader sees them when nothing goes wrong any more."""
    log: Log = {number: [] for number in range(PARTITIONS)}
    consumer = _reader(bootstrap)
    try:
        ends = {
            item: consumer.get_watermark_offsets(TopicPartition(topic, item), timeout=30.0)[1] for item in log
        }
        left = {partition for partition, end in ends.items() if end}
        consumer.assign([TopicPartition(topic, item, OFFSET_BEGINNING) for item in sorted(left)])
        quiet = deque[bool](maxlen=int(10 / _TURN_SECONDS))
        while left:
            results = consumer.consume(1000, _TURN_SECONDS)
            # The end is said with the offset of the next record, for the last ones may be markers.
            left -= {result.partition() for result in results if _is_end(result, ends)}
            messages = [result for result in results if result.error() is None]
            for partition, offset, value in map(record_of, messages):
                log[partition].append((offset, value))
                if offset + 1 >= ends[partition]:
                    left.discard(partition)
            quiet.append(not messages)
            # The last offsets of a log may hold no record.
            if len(quiet) == quiet.maxlen and all(quiet):
                break
    finally:
        consumer.close()
    return log


def _is_end(message: Message, ends: Mapping[int, int]) -> bool:
    error, partition, offset = message.error(), message.partition(), message.offset()
    if error is None or error.code() != KafkaError._PARTITION_EOF or partition is None or offset is None:
        return False
    return offset >= ends[partition]


def wait_for_delivery(history: History, log: Log, seconds: float) -> None:
    """Wait until each group's members have got every record, or for that many seconds."""
    deadline = now() + seconds
    while now() < deadline and any(not_delivered(history.events, log)):
        time.sleep(1.0)


def _reader(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 5000,
            "socket.timeout.ms": 10_000,
            **RECONNECT,
        }
    )


def record_of(message: Message) -> tuple[int, int, str]:
    """Return the partition, offset and value of a message."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    return partition, offset, bytes(value or b"").decode().rstrip()
