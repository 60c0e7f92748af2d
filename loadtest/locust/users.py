"""The users: each has a client of librdkafka, does what its kind of application does, and reports how long that took.

Producers are idempotent, acks=all, each with a fixed number of records a second, independent of the broker's latency. A
record's latency runs from its being handed to the client to the client's word that it is in the log, so the client's
own linger.ms is part of it, as it is for an application. End to end is from when the producer had a record to when a
consumer has it. Each leave and join of a group makes all of its members join again, as deployments do.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, ParamSpec, TypeVar

import gevent
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # documented there
from confluent_kafka.cimpl import NewTopic
from gevent.threadpool import ThreadPool
from locust import User, constant_throughput, task
from locust.env import Environment

from loadtest.locust import ledger, operations, topics
from loadtest.locust.ledger import Key, Page
from loadtest.locust.operations import Operation

P = ParamSpec("P")
T = TypeVar("T")

REQUEST_SECONDS_MAX = 15.0
"""How long a client waits for one answer before it calls it a failure."""

_BURSTS_PER_SECOND = 10
_KEYS_PER_TOPIC = 4
_POLL_SECONDS = 0.5
_FULL_PAUSE_SECONDS = 0.05
_WAIT_SECONDS = 0.5
_RECORDS_MAX = 1000
_LOOKS_PER_SECOND = 2
_COMMIT_SECONDS = 1.0
_STAY_SECONDS = (20.0, 40.0)
_JOIN_SECONDS_MAX = 60.0
# The answer to a member whose group is rebalancing: it commits again with its next generation.
_TOO_LATE = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
}
_TASKS_PER_SECOND = 1
_PARTITIONS = 6


class Measured:
    """What a measured block reports: how many bytes it has moved."""

    size = 0


class KafkaUser(User):
    """A user with one client, or several, of librdkafka.

    librdkafka has threads of its own in C, which gevent cannot patch: a call that waits would stop every user of the
    process. Polling without waiting would instead add its pause to each latency. So each user has one real thread for
    calls that wait, in which callbacks run too; their results go into the statistics in the user's greenlet, since
    statistics are not made for threads.
    """

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        assert environment.parsed_options is not None
        self.options: Namespace = environment.parsed_options
        self._thread = ThreadPool(1)

    def blocking(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may wait in this user's thread, after one that it has not finished."""

        # The client's errors come back as values: gevent prints the stack of what is raised in its threads.
        def caught() -> tuple[T] | KafkaException:
            try:
                return (call(*args, **kwargs),)
            except KafkaException as error:
                return error

        result: tuple[T] | KafkaException = self._thread.apply(caught)
        if isinstance(result, KafkaException):
            raise result
        return result[0]

    def client_config(self, **more: str | float) -> dict[str, str | int | float | bool]:
        """Return the configuration that every client has, and more."""
        return {
            "bootstrap.servers": self.host or "",
            "client.id": f"loadtest-{type(self).__name__}",
            "socket.timeout.ms": int(REQUEST_SECONDS_MAX * 1000),
            # A connection that is lost and made again is no failure; a call that fails for it is reported as one.
            "log_level": 0,
            **more,
        }

    def report(self, operation: Operation, seconds: float, size: int = 0, error: object = None) -> None:
        """Add an operation to the statistics; `error` says why it failed."""
        exception = None if error is None else error if isinstance(error, Exception) else RuntimeError(error)
        self.environment.events.request.fire(
            request_type=operation.type,
            name=operation.name,
            response_time=seconds * 1000,
            response_length=size,
            exception=exception,
            context=self.context(),
        )

    @contextmanager
    def measured(self, operation: Operation) -> Iterator[Measured]:
        """Time a block and report it, as a failure where the client raises; the user goes on."""
        measured = Measured()
        began = time.perf_counter()
        try:
            yield measured
        except KafkaException as error:
            self.report(operation, time.perf_counter() - began, error=error)
        else:
            self.report(operation, time.perf_counter() - began, measured.size)

    def on_stop(self) -> None:
        """End this user's thread, the last thing that a user does."""
        self._thread.kill()


class ProducerUser(KafkaUser):
    """Writes a burst of records ten times a second, with keys of its own in all topics."""

    wait_time = constant_throughput(_BURSTS_PER_SECOND)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        name = uuid.uuid4().hex
        self._operations: dict[Key, Operation] = {
            Key(topic.name, f"{name}-{number}"): operations.DELIVER.to(topic.format)
            for number in range(_KEYS_PER_TOPIC)
            for topic in topics.planned(self.options)
        }
        self._turns = deque(self._operations)
        self._page = Page(self._operations)
        self._filler = ledger.padding(self.options.message_size)
        self._due = 0.0
        self._poller: gevent.Greenlet[[], None] | None = None
        # Filled in the user's thread, emptied in its greenlet.
        self._answered: deque[tuple[Key, int, float, KafkaError | None]] = deque()

    def on_start(self) -> None:
        """Connect, and begin to listen for answers."""
        self._producer = Producer(
            self.client_config(
                **{
                    "enable.idempotence": True,
                    "linger.ms": self.options.linger_ms,
                    "delivery.timeout.ms": int(self.options.delivery_timeout * 1000),
                }
            )
        )
        # librdkafka asks for a producer id when it likes, up to half a second after the start. That would stand out as
        # the slowest records of a run, so a producer's first record has a row of its own.
        with self.measured(operations.FIRST):
            self._send(self._turns[0])
            self.blocking(self._producer.flush)
            key, number, _, error = self._answered.popleft()
            if error is not None:
                raise KafkaException(error)
            self._page.acknowledge(key, number)
        self._poller = gevent.spawn(self._poll)

    @task
    def write(self) -> None:
        """Send a burst; what it must not wait for is reported by `_poll`."""
        self._due += self.options.rate / _BURSTS_PER_SECOND
        while self._due >= 1:
            self._due -= 1
            self._turns.rotate(-1)
            self._send(self._turns[0])

    def _send(self, key: Key) -> None:
        number = self._page.send(key)
        value = ledger.value(ledger.Stamp(number, time.time_ns()), self._filler)
        began = time.perf_counter()

        def answered(error: KafkaError | None, _: Message) -> None:
            self._answered.append((key, number, time.perf_counter() - began, error))

        while True:
            try:
                self._producer.produce(key.topic, value=value, key=key.name, on_delivery=answered)
            except BufferError:
                # The broker lags by as much as the client keeps: its latency says so, and fewer are sent.
                gevent.sleep(_FULL_PAUSE_SECONDS)
            else:
                return

    def _poll(self) -> None:
        while True:
            self.blocking(self._producer.poll, _POLL_SECONDS)
            self._settle()

    def _settle(self) -> None:
        while self._answered:
            key, number, seconds, error = self._answered.popleft()
            if error is None:
                self._page.acknowledge(key, number)
            self.report(self._operations[key], seconds, ledger.SIZE_MIN + len(self._filler), error)

    def on_stop(self) -> None:
        """Wait for the last answers, within the longest time of a delivery, and record the sure ones."""
        # None where this user is stopped while it starts.
        if self._poller is not None:
            self._poller.kill()
        self.blocking(self._producer.flush)
        self._settle()
        if self.options.ledger:
            self._page.write(Path(self.options.ledger))
        super().on_stop()


def config(group: str, **more: str | float) -> dict[str, str | float]:
    """Return what all consumers configure; one without a group has to name one all the same."""
    return {"group.id": group, "enable.auto.commit": False, **more}


def take(consumer: Consumer) -> tuple[list[Message], int]:
    """Wait for records and return all that are there, with the time when (ns, Unix time).

    Consumer.consume alone would wait until it has as many as it may return.
    """
    first = consumer.poll(_WAIT_SECONDS)
    if first is None:
        return [], 0
    messages = [first, *consumer.consume(_RECORDS_MAX - 1, 0)]
    now_ns = time.time_ns()
    for message in messages:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    return messages, now_ns


class _Unpartitioned(KafkaUser):
    """Has one consumer, without a group, and one of the topics, each user the next one."""

    abstract = True
    _numbers = itertools.count()
    _config: ClassVar[Mapping[str, str | float]] = {}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        planned = topics.planned(self.options)
        self._topic = planned[next(self._numbers) % len(planned)]

    def on_start(self) -> None:
        """Connect."""
        group = f"{self.options.prefix}-{uuid.uuid4().hex}"
        self._consumer = Consumer(self.client_config(**config(group, **self._config)))

    def on_stop(self) -> None:
        """Disconnect."""
        self.blocking(self._consumer.close)
        super().on_stop()


class ConsumerUser(_Unpartitioned):
    """Follows the end of all partitions of one topic."""

    _numbers = itertools.count()

    def on_start(self) -> None:
        """Begin at the end."""
        super().on_start()
        name = self._topic.name
        self._consumer.assign(
            [TopicPartition(name, number, OFFSET_END) for number in range(self.options.partitions)]
        )

    @task
    def follow(self) -> None:
        """Take what has come."""
        operation = operations.TAIL.to(self._topic.format)
        try:
            messages, now_ns = self.blocking(take, self._consumer)
        except KafkaException as error:
            self.report(operation, 0, error=error)
            return
        for message in messages:
            if (stamp := ledger.parse(message.value())) is not None:
                self.report(operation, (now_ns - stamp.sent_ns) / 1e9, len(message))


class ReaderUser(_Unpartitioned):
    """Asks for the bounds of a partition, and reads on from a random offset between them: catching up, replaying."""

    wait_time = constant_throughput(_LOOKS_PER_SECOND)
    _numbers = itertools.count()
    # By default librdkafka reads on by megabytes, which are thrown away here, and all else waits for them. One that
    # may not read on looks whether it may again after a second by default, also where it was sent elsewhere since.
    _config: ClassVar[Mapping[str, str | float]] = {
        "fetch.message.max.bytes": 1 << 16,
        "queued.min.messages": 1,
        "fetch.queue.backoff.ms": 10,
    }

    @task
    def look_back(self) -> None:
        """Read one piece."""
        partition = TopicPartition(self._topic.name, random.randrange(self.options.partitions))
        low = high = 0
        with self.measured(operations.LIST_OFFSETS):
            low, high = self.blocking(
                self._consumer.get_watermark_offsets, partition, timeout=REQUEST_SECONDS_MAX, cached=False
            )
        if low >= high:
            return
        partition.offset = random.randrange(low, high)
        with self.measured(operations.FETCH.to(self._topic.format)) as fetch:
            fetch.size = self.blocking(self._read, partition)

    def _read(self, partition: TopicPartition) -> int:
        """Read what comes first from an offset, in the user's thread; returns how many bytes that were."""
        # Taken off afterwards: a client that is left at the end of a log has a fetch waiting there, and asks for
        # nothing else until that is answered.
        self._consumer.assign([partition])
        try:
            first = self._consumer.poll(REQUEST_SECONDS_MAX)
            if first is None:
                raise KafkaException(f"nothing came from an offset below the end: {partition}")
            if (error := first.error()) is not None:
                raise KafkaException(error)
            return len(first) + sum(len(item) for item in self._consumer.consume(_RECORDS_MAX, 0))
        finally:
            self._consumer.unassign()


class GroupUser(KafkaUser):
    """A member of one of the groups, subscribed to all topics."""

    _numbers = itertools.count()

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        names = topics.group_names(self.options)
        self._group_id = names[next(self._numbers) % len(names)]
        self._operations = {
            item.name: operations.GROUP_TAIL.to(item.format) for item in topics.planned(self.options)
        }
        self._leave_at = self._commit_at = 0.0
        self._assigned = False
        self._uncommitted = False

    def on_start(self) -> None:
        """Become a member: from subscribing until the first assignment is there."""
        self._assigned = self._uncommitted = False
        # A member hears of a rebalance with its next heartbeat, so joins take as long as those are apart.
        more: dict[str, str | float] = {"heartbeat.interval.ms": 500, "auto.offset.reset": "latest"}
        self._consumer = Consumer(self.client_config(**config(self._group_id, **more)))
        with self.measured(operations.JOIN):
            self.blocking(self._join)
        now = time.monotonic()
        self._leave_at, self._commit_at = now + random.uniform(*_STAY_SECONDS), now + _COMMIT_SECONDS

    def _join(self) -> None:
        self._consumer.subscribe(list(self._operations), on_assign=self._on_assign)
        deadline = time.monotonic() + _JOIN_SECONDS_MAX
        while not self._assigned:
            if time.monotonic() > deadline:
                raise KafkaException(f"no assignment in {_JOIN_SECONDS_MAX:.0f} s")
            # Nothing can come before the assignment; what came with it would be lost to the statistics only.
            self._consumer.poll(0.1)

    def _on_assign(self, *_: object) -> None:
        self._assigned = True

    @task
    def read(self) -> None:
        """Take what has come; commit once a second; leave and join again after a while."""
        try:
            messages, now_ns = self.blocking(take, self._consumer)
        except KafkaException as error:
            self.report(next(iter(self._operations.values())), 0, error=error)
            return
        for message in messages:
            if (stamp := ledger.parse(message.value())) is not None:
                operation = self._operations[str(message.topic())]
                self.report(operation, (now_ns - stamp.sent_ns) / 1e9, len(message))
        self._uncommitted = self._uncommitted or bool(messages)
        now = time.monotonic()
        if self._uncommitted and now >= self._commit_at:
            self._commit_at = now + _COMMIT_SECONDS
            self._uncommitted = False
            self._commit()
        if now >= self._leave_at:
            self._leave()
            self.on_start()

    def _commit(self) -> None:
        began = time.perf_counter()
        try:
            self.blocking(self._consumer.commit, asynchronous=False)
        except KafkaException as error:
            took, code = time.perf_counter() - began, error.args[0].code()
            if code in _TOO_LATE:
                self.report(operations.COMMIT_REFUSED, took)
            elif code != KafkaError._NO_OFFSET:  # noqa: SLF001 - so the client spells its own errors
                self.report(operations.COMMIT, took, error=error)
            # Otherwise the partitions were taken away since the records came: the broker was not asked.
        else:
            self.report(operations.COMMIT, time.perf_counter() - began)

    def _leave(self) -> None:
        with self.measured(operations.LEAVE):
            self.blocking(self._consumer.close)

    def on_stop(self) -> None:
        """Leave."""
        self._leave()
        super().on_stop()


class AdminUser(KafkaUser):
    """Does one thing a second."""

    wait_time = constant_throughput(_TASKS_PER_SECOND)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._topics = topics.planned(self.options)
        self._groups = topics.group_names(self.options)

    def on_start(self) -> None:
        """Connect, and ask for all topics, so that even a run of seconds has measured that."""
        self._client = AdminClient(self.client_config())
        self.look()

    @task(2)
    def look(self) -> None:
        """Ask for all topics."""
        with self.measured(operations.METADATA):
            self.blocking(self._client.list_topics, timeout=REQUEST_SECONDS_MAX)

    @task(2)
    def describe(self) -> None:
        """Ask for a topic's configs, and for a group with its members."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topics[0].name)
        with self.measured(operations.DESCRIBE_CONFIGS):
            self.blocking(self._client.describe_configs([resource])[resource].result, REQUEST_SECONDS_MAX)
        group = self._groups[0]
        with self.measured(operations.DESCRIBE_GROUP):
            described = self._client.describe_consumer_groups([group])[group]
            self.blocking(described.result, REQUEST_SECONDS_MAX)

    @task(1)
    def create_and_delete(self) -> None:
        """Make a topic and delete it."""
        name = f"{self.options.prefix}-short-{uuid.uuid4().hex}"
        with self.measured(operations.CREATE_TOPIC):
            created = self._client.create_topics([NewTopic(name, _PARTITIONS, 1)])[name]
            self.blocking(created.result, REQUEST_SECONDS_MAX)
        with self.measured(operations.DELETE_TOPIC):
            self.blocking(self._client.delete_topics([name])[name].result, REQUEST_SECONDS_MAX)
