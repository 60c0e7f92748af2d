"""Clients at work while something goes wrong, and what has to be true of their records afterwards."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TypeVar

from confluent_kafka import Consumer

from tests.support import processes, reading
from tests.support.load import Load

PARTITIONS = 2
_MORE = 500
# A client may have gone to sleep for its longest back-off, or have to find out first that its connection is dead.
_GO_ON_SECONDS_MAX = 90.0

Entered = TypeVar("Entered")

RECOVERIES: list[tuple[str, float]] = []
"""What was waited for, and how long, in seconds."""


class Work:
    """Two producers, each with a topic of its own storage format, and a group that reads both; a context manager.

    Leaving it ends the producers and checks everything.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loads = [
            Load(bootstrap, "confluent", PARTITIONS),
            Load(bootstrap, "aiokafka", PARTITIONS, "aiokafka"),
        ]
        for load, form in zip(self._loads, ("batch", "record"), strict=True):
            reading.create_topic(bootstrap, load.topic, PARTITIONS, {"storage.format": form})
        self._reader = _Reader(bootstrap, [load.topic for load in self._loads])
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for load in self._loads:
            load.start()
        self._reader.start()
        self.goes_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._entered:
            if error is None:
                self._end()
            # Otherwise what the test found wrong is to be reported, not what follows from it.
            for load in self._loads:
                load.abandon()
            self._reader.end()

    def enter(self, context: AbstractContextManager[Entered]) -> Entered:
        """Enter what has to be there until everything is checked."""
        return self._entered.enter_context(context)

    def _end(self) -> None:
        for load in self._loads:
            load.end()
        sent = {(load.topic, b"%d" % number) for load in self._loads for number in range(load.sent)}
        processes.wait_until(
            lambda: sent <= self._reader.received, "the group has got everything", _GO_ON_SECONDS_MAX
        )
        assert self._reader.received == sent
        self.check(self._bootstrap)

    def check(self, bootstrap: str) -> None:
        """Fail unless every record is in the log once, in order, where its acknowledgement said."""
        for load in self._loads:
            load.check(reading.read_all(bootstrap, load.topic, range(PARTITIONS), load.sent))

    def goes_on(self, fault: str = "") -> None:
        """Wait until all that was sent so far is acknowledged and more, and the group gets records, too.

        With a `fault` that is just over, the time until then is noted.
        """
        sent = [load.sent for load in self._loads]
        got = len(self._reader.received)
        began = time.monotonic()

        def beyond(more: int) -> bool:
            return all(
                len(load.acknowledged) > old + more for load, old in zip(self._loads, sent, strict=True)
            )

        processes.wait_until(
            lambda: beyond(0), "all is acknowledged that was sent before", _GO_ON_SECONDS_MAX
        )
        if fault:
            RECOVERIES.append((fault, time.monotonic() - began))
        processes.wait_until(lambda: beyond(_MORE), "producers go on", _GO_ON_SECONDS_MAX)
        processes.wait_until(
            lambda: len(self._reader.received) > got, "the group goes on", _GO_ON_SECONDS_MAX
        )


class _Reader:
    """A member of a group in a thread of its own. Commits what it has: it may get a record again, but none never."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self.received: set[tuple[str, bytes]] = set()
        self._bootstrap = bootstrap
        self._topics = topics
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(processes.WAIT_SECONDS_MAX)

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
                "reconnect.backoff.max.ms": 1000,
            }
        )
        consumer.subscribe(self._topics)
        while not self._ending.is_set():
            for message in consumer.consume(1000, timeout=0.1):
                # While something is wrong the client says so; it goes on by itself.
                if message.error() is None:
                    self.received.add((str(message.topic()), bytes(message.value() or b"")))
        with contextlib.suppress(Exception):
            consumer.close()
