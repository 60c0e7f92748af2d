"""Clients with transactions, by librdkafka: writers, and copiers, which read, process and write.

A writer at times leaves a transaction open, and a new one with its transactional id fences it: then it goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.jepsen.checker import Violation
from tests.jepsen.clients import COPIERS, COPIES, PARTITIONS, RECONNECT, TRANSACTIONS, Client, record_of
from tests.jepsen.history import Committing, Ended, History, Log, Put, now, value_of
from tests.support.processes import wait_until

_TRANSACTION_TIMEOUT_MS = 15_000
_CALL_SECONDS, _CALLS_SECONDS_MAX = 10.0, 35.0
# A call that hangs is left before its transaction ends by the time limit: then its error would be another one.
_CALL_SECONDS_MAX = 12.0
_COMMITTED, _LEFT_OPEN = 0.75, 0.03
_VALUES_MAX = 12
_PAUSE_SECONDS_MAX = 0.1
_COPIED_AT_ONCE_MAX = 50
_SETTLED_SECONDS_MAX = 150.0


class _Open(NamedTuple):
    """A transaction that a producer was left with."""

    producer: Producer
    transaction: str


class TransactionalClient(Client):
    """A producer with transactions, whose transactional id is its name.

    librdkafka 2.16 forgets on abort which of the values that it drops it has sent before. The next transaction has
    their sequence numbers, so a broker that has written one takes the next value for it. A new producer has an epoch
    of its own (`reuses_sequences`: it is needed).
    """

    reuses_sequences = False

    def __init__(self, name: str, bootstrap: str, history: History, seed: int) -> None:
        self.random = random.Random(seed)
        self.last_acknowledged = now()
        super().__init__(name, bootstrap, history)

    def begin_producer(self) -> Producer:
        """Return a producer that has fenced the one before."""
        self.reuses_sequences = False
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
                "socket.timeout.ms": 10_000,
                "request.timeout.ms": 5000,
                "topic.metadata.refresh.interval.ms": 5000,
                **RECONNECT,
            }
        )
        _until_answered(producer.init_transactions)
        return producer

    def put(
        self,
        producer: Producer,
        transaction: str,
        topic: str,
        number: int,
        source: tuple[int, int, str] | None = None,
    ) -> None:
        """Give one value to the producer."""
        partition = self.random.randrange(PARTITIONS)
        self.history.add(Put(transaction, partition, number, source, now()))
        producer.produce(topic, value_of(transaction, number), partition=partition)

    def end_transaction(self, producer: Producer, transaction: str, *, commit: bool) -> bool:
        """Commit or abort, and return whether it is committed; raises KafkaException if that is not known."""
        if commit:
            self.history.add(Committing(transaction, now()))
        elif len(producer):
            self.reuses_sequences = True
        try:
            _until_answered(producer.commit_transaction if commit else producer.abort_transaction)
        except KafkaException as error:
            if not (commit and error.args[0].txn_requires_abort()):
                raise
            return self.end_transaction(producer, transaction, commit=False)
        self.history.add(Ended(transaction, commit, now()))
        self.last_acknowledged = now()
        return commit


class WriterClient(TransactionalClient):
    """Writes to several partitions, commits most and aborts some."""

    _left: _Open | None = None

    def live(self, instance: str) -> None:
        """Do one transaction after another until the end, or until one is left open."""
        producer = self.begin_producer()
        if left := self._left:
            self.history.add(Ended(left.transaction, committed=False, at=now()))
        for number in itertools.count():
            if not self.goes_on:
                return
            transaction = f"{instance}.{number}"
            producer.begin_transaction()
            commit = self._write(producer, transaction) and self.random.random() < _COMMITTED
            if self._left and number:
                left, self._left = self._left, None
                with contextlib.suppress(KafkaException):
                    self.put(left.producer, left.transaction, TRANSACTIONS, 2 * _VALUES_MAX)
                    self.end_transaction(left.producer, left.transaction, commit=True)
            elif not self._left and self.random.random() < _LEFT_OPEN:
                self._left = _Open(producer, transaction)
                return
            self.end_transaction(producer, transaction, commit=commit)
            if self.reuses_sequences:
                producer = self.begin_producer()
            self._ending.wait(self.random.uniform(0, _PAUSE_SECONDS_MAX))

    def _write(self, producer: Producer, transaction: str) -> bool:
        """Write the values of one transaction; False if it has to be aborted."""
        pause = self.random.choice((0.0, 0.0, 0.01, 0.1, 0.5))
        for number in range(self.random.randint(1, _VALUES_MAX)):
            try:
                self.put(producer, transaction, TRANSACTIONS, number)
            except KafkaException:
                return False
            producer.poll(0)
            self._ending.wait(pause * self.random.random())
        return True


class CopierClient(TransactionalClient):
    """Copies what writers have committed as a member of a group, whose offsets its transactions commit (KIP-447)."""

    def live(self, instance: str) -> None:
        """Copy some records in each transaction until the end."""
        producer = self.begin_producer()
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": COPIERS,
                "client.id": instance,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 1000,
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 5000,
                **RECONNECT,
            }
        )
        changes = 0

        def changed(*_: object) -> None:
            nonlocal changes
            changes += 1

        consumer.subscribe([TRANSACTIONS], on_assign=changed, on_revoke=changed, on_lost=changed)
        try:
            for number in itertools.count():
                if not self.goes_on:
                    return
                before = changes
                result = [item for item in consumer.consume(_COPIED_AT_ONCE_MAX, 0.2) if not item.error()]
                # What was read before partitions were assigned again may be another member's now.
                is_mine = changes == before
                if result and not (
                    is_mine and self._copy(producer, consumer, f"{instance}.{number}", result)
                ):
                    self._rewind(consumer)
                if self.reuses_sequences:
                    producer = self.begin_producer()
        finally:
            consumer.close()

    def _copy(
        self, producer: Producer, consumer: Consumer, transaction: str, result: Sequence[Message]
    ) -> bool:
        """Write one copy of each record; False if that was aborted."""
        producer.begin_transaction()
        offsets: dict[int, int] = {}
        try:
            for number, source in enumerate(map(record_of, result)):
                offsets[source[0]] = source[1] + 1
                self.put(producer, transaction, COPIES, number, source)
            places = [TopicPartition(TRANSACTIONS, *place) for place in offsets.items()]
            metadata = consumer.consumer_group_metadata()
            _until_answered(producer.send_offsets_to_transaction, places, metadata)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            return self.end_transaction(producer, transaction, commit=False)
        return self.end_transaction(producer, transaction, commit=self.random.random() < _COMMITTED)

    def _rewind(self, consumer: Consumer) -> None:
        """Go back to what is committed; raises KafkaException if it cannot, for no record may be passed."""
        for place in consumer.committed(consumer.assignment(), timeout=_CALL_SECONDS):
            if place.error is not None:
                raise KafkaException(place.error)
            consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


def _until_answered(call: Any, *args: object) -> None:
    """Call a method of a producer again while it may be; raises KafkaException if that lasts too long.

    Raises TimeoutError if the method itself does not return: librdkafka's may forget that it has a time limit (its
    issue 5456), and then waits for a coordinator that it has given up after that was away (5511).
    """
    since = now()
    while True:
        try:
            _within(_CALL_SECONDS_MAX, call, *args, _CALL_SECONDS)
        except KafkaException as error:
            if now() - since > _CALLS_SECONDS_MAX or not error.args[0].retriable():
                raise
        else:
            return


def _within(seconds: float, call: Any, *args: object) -> None:
    """Call; after so long leave it alone, and raise TimeoutError."""
    answer = Future[None]()

    def run() -> None:
        try:
            answer.set_result(call(*args))
        except KafkaException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"{call.__name__} has not returned for {seconds} s") from None


def find_hanging(bootstrap: str, topic: str) -> list[Violation]:
    """Wait until no transaction is open in a topic; returns where one is all the same."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # has no types
    asked = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}

    def ends(isolation: IsolationLevel) -> dict[int, int]:
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=_CALL_SECONDS)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    hanging: list[int] = []

    def is_stable() -> bool:
        written, stable = ends(IsolationLevel.READ_UNCOMMITTED), ends(IsolationLevel.READ_COMMITTED)
        hanging[:] = [file for file in written if stable[file] < written[file]]
        return not hanging

    with contextlib.suppress(AssertionError):
        wait_until(is_stable, "no transaction is open", _SETTLED_SECONDS_MAX)
    return [Violation("hanging", f"partition {item} of {topic} has an open transaction") for item in hanging]


def wait_for_copies(bootstrap: str, log: Log) -> None:
    """Wait until copiers have committed the end of a log, or for a while."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": COPIERS, "enable.auto.commit": False})
    places = [TopicPartition(TRANSACTIONS, item) for item, records in log.items() if records]

    def are_all() -> bool:
        with contextlib.suppress(KafkaException):
            results = consumer.committed(places, timeout=_CALL_SECONDS)
            return all(result.offset > log[result.partition][-1][0] for result in results)
        return False

    try:
        with contextlib.suppress(AssertionError):
            wait_until(are_all, "all is copied", _SETTLED_SECONDS_MAX)
    finally:
        consumer.close()
