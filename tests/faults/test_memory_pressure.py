"""A producer fills Redis, or the disk of the embedded server: it is slowed, then refused, and nothing is lost by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from tests.support import ops, processes, reading, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX

VALUE_BYTES = 10_000
IN_FLIGHT_MAX = 200
REFUSED = 'korvet_produce_errors_total{error="KAFKA_STORAGE_ERROR"}'
THROTTLED = "korvet_throttled_requests_total"
FORMATS = pytest.mark.parametrize("storage_format", ["record", "batch"])


class Filling:
    """An idempotent producer that goes on in a thread of its own until it is asked to end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self.errors: list[KafkaError] = []
        self._topic = topic
        self._ending = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Send no more, and wait until every record is acknowledged."""
        self._ending.set()
        self._thread.join(WAIT_SECONDS_MAX)
        assert self._producer.flush(WAIT_SECONDS_MAX) == 0

    def check(self, values: list[bytes | None]) -> None:
        """Fail unless `values` are all that was sent, each once, in order."""
        assert self.errors == []
        assert self.acknowledged == list(range(self.sent))
        assert values == [value(number) for number in range(self.sent)]

    def _run(self) -> None:
        while not self._ending.is_set():
            if self.sent - len(self.acknowledged) < IN_FLIGHT_MAX:
                self._producer.produce(self._topic, value(self.sent), on_delivery=self._outcome(self.sent))
                self.sent += 1
            self._producer.poll(0 if self.sent - len(self.acknowledged) < IN_FLIGHT_MAX else 0.01)

    def _outcome(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.errors.append(error)

        return delivered


def value(number: int) -> bytes:
    """Return a value that no codec makes much smaller and that contains its number."""
    state = number + 1
    digits: list[bytes] = []
    while len(digits) < VALUE_BYTES // 16:
        state = state * 6364136223846793005 % 2**64 + 1442695040888963407
        digits.append(b"%016x" % (state % 2**64))
    return b"%d " % number + b"".join(digits)


@pytest.fixture
def ballasted() -> Iterator[tuple[str, Any]]:
    """Run a Redis with a little more than 60 MB of room in it."""
    with redis_servers.embedded_server() as url, redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 60_000_000)
        yield url, client


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)


def fill_up_and_free(broker: Broker, storage_format: str) -> None:
    """Fill the store, free it by deleting a topic while the producer tries again, and read what it has written."""
    config = {"storage.format": storage_format}
    for topic in ("old", "new"):
        reading.create_topic(broker.bootstrap, topic, config=config)
    old = Filling(broker.bootstrap, "old")
    processes.wait_until(lambda: len(old.acknowledged) > 2000, "the store fills up")
    old.end()
    assert ops.total(broker, REFUSED) == 0
    new = Filling(broker.bootstrap, "new")
    processes.wait_until(lambda: ops.total(broker, THROTTLED) > 0, "the producer is throttled")
    processes.wait_until(lambda: ops.total(broker, REFUSED) > 0, "the producer is refused")
    # Consumers read all that is there meanwhile.
    received = reading.read_all(broker.bootstrap, "old", [0], old.sent)
    old.check([record.value for record in received])
    acknowledged = len(new.acknowledged)
    delete_topic(broker.bootstrap, "old")
    processes.wait_until(lambda: len(new.acknowledged) > acknowledged + IN_FLIGHT_MAX, "there is room again")
    new.end()
    received = reading.read_all(broker.bootstrap, "new", [0], new.sent)
    new.check([record.value for record in received])
    assert "Traceback" not in broker.log()


@FORMATS
def test_a_full_redis_costs_an_idempotent_producer_time_and_nothing_else(
    ballasted: tuple[str, Any], tmp_path: Path, storage_format: str
) -> None:
    url, client = ballasted
    flags = ("--redis-url", url, "--set", "throttle.max.ms=200")
    with korvet_broker(tmp_path, *flags) as broker:
        fill_up_and_free(broker, storage_format)
    assert client.info("stats")["evicted_keys"] == 0


def test_a_full_disk_limit_costs_an_idempotent_producer_time_and_nothing_else(tmp_path: Path) -> None:
    flags = ("--set", "embedded.disk.max.bytes=60000000", "--set", "throttle.max.ms=200")
    with korvet_broker(tmp_path, *flags) as broker:
        fill_up_and_free(broker, "batch")
        used = sum(path.stat().st_size for path in broker.data_dir.rglob("*") if path.is_file())
        assert used < 60_000_000
