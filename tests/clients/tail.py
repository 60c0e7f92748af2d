"""A consumer under way in a thread of its own, which reads whole partitions as they grow, also while brokers end."""

from __future__ import annotations

import threading

from tests.clients.client_library import Library
from tests.support.load import Load
from tests.support.processes import wait_until
from tests.support.records import Received

_TURN_SECONDS = 0.1
_METADATA_MS = 500
_END_SECONDS_MAX = 60.0


class Tail:
    """One consumer of a topic, from its beginning. It keeps what it received in the order in which it came."""

    def __init__(self, library: Library, bootstrap: str, topic: str, partitions: int) -> None:
        self.received: list[Received] = []
        self.errors: list[object] = []
        self._library, self._bootstrap, self._topic = library, bootstrap, topic
        self._partitions = range(partitions)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tail of {topic}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, count: int) -> None:
        """Read on until there are `count` records, then once more, and end."""
        wait_until(lambda: len(self.received) >= count or self.errors, f"{count} records of {self._topic}")
        self._ending.set()
        self._thread.join(_END_SECONDS_MAX)
        assert not self._thread.is_alive(), f"the tail of {self._topic} does not end"

    def check(self, count: int) -> None:
        """Fail unless a load's `count` records came, each once and in the order of their offsets."""
        assert self.errors == []
        for partition in self._partitions:
            result = [(item.offset, item.value) for item in self.received if item.partition == partition]
            numbers = range(partition, count, len(self._partitions))
            assert [value for _, value in result] == [b"%d" % number for number in numbers]
            assert sorted(result) == result

    def _run(self) -> None:
        try:
            config = {"topic.metadata.refresh.interval.ms": _METADATA_MS}
            consumer = self._library.consumer(self._bootstrap, config)
            consumer.assign(self._topic, dict.fromkeys(self._partitions))
            while not self._ending.is_set():
                self.received += consumer.poll(_TURN_SECONDS)
            self.received += consumer.poll(_TURN_SECONDS)
            consumer.close()
        except Exception as error:  # noqa: BLE001 - any error fails the test
            self.errors.append(error)


def go_on(load: Load, tail: Tail, partitions: int) -> None:
    """Wait until producer and consumer have got further in every partition, so through every broker that leads one."""
    acknowledged, received = len(load.acknowledged), len(tail.received)

    def everywhere() -> bool:
        written = {partition for partition, _ in load.acknowledged[acknowledged:]}
        read = {record.partition for record in tail.received[received:]}
        return len(written) == len(read) == partitions

    wait_until(lambda: everywhere() or load.errors or tail.errors, "producer and consumer go on")
