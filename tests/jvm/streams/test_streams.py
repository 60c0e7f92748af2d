"""Kafka Streams counts words exactly once, while its instances, workers and brokers are killed, and Redis fails over.

Every result is checked, not only the last of each word: a count that is left out, or comes twice, is one that was lost
or taken back. TEST_KORVET_STREAMS_ROUNDS lets that go on for longer: a round is a minute.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.jvm.jars import JARS
from tests.support import processes, reading, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import dying_with_tests, free_port, wait_until
from tests.support.sentinels import Watched, watched

INSTANCES, BROKERS, PARTITIONS = 3, 2, 3
WORDS = [f"word-{number}" for number in range(40)]
WINDOW_MS = 10_000
ROUNDS = int(os.environ.get("TEST_KORVET_STREAMS_ROUNDS", "4"))
"""How often something of each kind is killed."""

# The topics of stores are compacted while it runs: what takes up a task reads its stores through compaction.
SETTINGS = {
    "broker.lease.ms": "2000",
    "log.roll.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "1000",
    "group.streams.initial.rebalance.delay.ms": "1000",
}
CAUGHT_UP_SECONDS_MAX = 300.0
COMMITTED = {"isolation.level": "read_committed"}


class Brokers:
    """Brokers on the Redis of a URL. Each is on the same port again after it was killed."""

    def __init__(self, running: contextlib.ExitStack, directory: Path, url: str, **settings: str) -> None:
        self._running, self._directory, self._url = running, directory, url
        self._settings = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
        self._ports = [free_port() for _ in range(BROKERS)]
        self._starts = 0
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.brokers = [self._started(number) for number in range(BROKERS)]

    def _started(self, number: int) -> Broker:
        self._starts += 1
        return self._running.enter_context(
            korvet_broker(
                self._directory / f"broker-{self._starts}",
                *("--redis-url", self._url, "--broker-id", str(number)),
                *(flag for name, value in self._settings.items() for flag in ("--set", f"{name}={value}")),
                listen=("--listen", f"127.0.0.1:{self._ports[number]}"),
            )
        )

    def kill(self, number: int) -> None:
        """Kill a broker, and start it again."""
        self.brokers[number].kill()
        self.brokers[number] = self._started(number)

    def kill_worker(self, number: int) -> None:
        """Kill a worker, and wait until there is another in its place."""
        broker = self.brokers[number]
        pid = broker.worker_pids()[0]
        processes.kill(pid)
        wait_until(lambda: len(broker.worker_pids()) == 2, "the worker is replaced")


class Instances:
    """Instances of the program, each with a directory that it finds again."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        classes: Path,
        count: int = INSTANCES,
        protocol: str = "classic",
    ) -> None:
        self._directory, self._bootstrap, self._classes = directory, bootstrap, classes
        self._protocol = protocol
        self._processes = [self._started(number) for number in range(count)]

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        # Few threads for the garbage collector and compiler: all share the cores.
        flags = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
        quiet = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=error"
        logs = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", quiet)
        arguments = (
            self._bootstrap,
            str(self._directory / f"state-{number}"),
            str(WINDOW_MS),
            self._protocol,
        )
        with (self._directory / f"instance-{number}.log").open("ab") as log:
            return subprocess.Popen(
                dying_with_tests(
                    ["java", *flags, *logs, "-cp", f"{self._classes}:{JARS}/*", "Counts", *arguments]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, number: int) -> None:
        """Kill an instance, and start it again."""
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._started(number)

    def take_down(self, number: int) -> None:
        """Kill an instance for good."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def end(self) -> None:
        """Kill all that run."""
        for process in self._processes:
            process.kill()
            process.wait()

    def check_alive(self) -> None:
        """Fail if one has ended by itself."""
        assert all(process.poll() is None for process in self._processes)

    def logs(self) -> Iterator[str]:
        """Return the last that each wrote."""
        return (path.read_text()[-5000:] for path in sorted(self._directory.glob("instance-*.log")))


class Lines(threading.Thread):
    """Writes lines of words until it is to stop, and counts what is to come out."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
        self._stop_asked = threading.Event()
        self._failed: list[confluent_kafka.KafkaError] = []
        self.counts: Counter[str] = Counter()
        self.windows: Counter[str] = Counter()

    def run(self) -> None:
        producer = confluent_kafka.Producer({**self._config, "message.timeout.ms": 300_000})
        chance, timestamp = random.Random(1), now_ms()
        while not self._stop_asked.wait(0.02):
            # Now and then a line comes late.
            timestamp += chance.randrange(100)
            at = timestamp - (chance.randrange(2 * WINDOW_MS) if chance.random() < 0.1 else 0)
            words = chance.choices(WORDS, k=3)
            for word in words:
                self.counts[f"{label(word)}/{word}"] += 1
                self.windows[f"{label(word)}/{word}@{at // WINDOW_MS * WINDOW_MS}"] += 1
            producer.produce("lines", " ".join(words), timestamp=at, on_delivery=self._delivered)
            producer.poll(0)
        producer.flush()

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            self._failed.append(error)

    def end(self) -> None:
        """Stop, and wait until all is acknowledged."""
        self._stop_asked.set()
        self.join()
        assert self._failed == []


def label(word: str) -> str:
    """Return the label that a word has in the table."""
    return f"label-{WORDS.index(word) % 7}"


def now_ms() -> int:
    """Return the time: Streams, and the topics of its stores, keep a window for a day after its records' time."""
    return int(time.time() * 1000)


def write_labels(bootstrap: str) -> None:
    """Fill the table."""
    # By Java's partitioner, for Streams joins partition by partition.
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for word in WORDS:
        producer.produce("labels", key=word, value=label(word), timestamp=now_ms() - 3 * WINDOW_MS)
    assert producer.flush(processes.WAIT_SECONDS_MAX) == 0


def wait_until_compacted(stored: Any) -> None:
    """Wait until a pass of compaction has been over the topic of a store."""
    pattern = "{korvet:word-count-*-changelog:*}:clean:*"
    wait_until(lambda: next(stored.scan_iter(pattern, 1000), None), "a store's topic is compacted")


def fail_over(redis: Watched) -> None:
    """Let the master be silent until a replica is promoted; it wakes as a master, and follows then."""
    old = redis.master()
    old.freeze()
    redis.wait_switched(old)
    old.thaw()
    redis.wait_well()


def break_at_random(
    brokers: Brokers, instances: Instances, redis: Watched | None, chance: random.Random
) -> None:
    """Kill one thing after the other, and let Redis fail over if it can; all is there again before the next."""
    kinds: dict[str, tuple[Callable[[int], None], int]] = {
        "instance": (instances.kill, INSTANCES),
        "worker": (brokers.kill_worker, BROKERS),
        "broker": (brokers.kill, BROKERS),
    }
    round_ = ["instance", "worker", "worker", "broker"]
    if redis:
        kinds["redis"] = (lambda _: fail_over(redis), 1)
        round_ += ["redis"]
    for _ in range(ROUNDS):
        for kind in chance.sample(round_, len(round_)):
            # A task that goes to another instance is taken up in some ten seconds.
            time.sleep(chance.uniform(1, 12))
            kill, count = kinds[kind]
            number = chance.randrange(count)
            print(f"{kind} {number}")  # noqa: T201 - pytest shows it if the test fails
            kill(number)


def results(bootstrap: str, topic: str, count: int) -> dict[str, list[int]]:
    """Return all results of each key, in their order; `count` are expected."""
    result: dict[str, list[int]] = defaultdict(list)
    with reading.consumer(bootstrap, topic, range(PARTITIONS), **COMMITTED) as consumer:
        left, stop_at = count, time.monotonic() + CAUGHT_UP_SECONDS_MAX
        # In the end it looks whether more comes.
        while (messages := consumer.consume(1000, 2.0)) or (left > 0 and time.monotonic() < stop_at):
            for message in messages:
                key, value = message.key(), reading.as_received(message).value
                assert isinstance(key, bytes)
                result[key.decode()].append(int(value or b""))
            left -= len(messages)
    return result


def check(result: dict[str, list[int]], wanted: Counter[str]) -> None:
    """Fail unless each key was counted from one to what is wanted."""
    assert {key: counts for key, counts in result.items() if counts != list(range(1, wanted[key] + 1))} == {}
    assert result.keys() == wanted.keys()


@pytest.mark.timeout(400 + 180 * ROUNDS)
@pytest.mark.parametrize(("storage", "protocol"), [("record", "classic"), ("batch", "streams")])
def test_each_word_is_counted_once_whatever_is_killed(
    tmp_path: Path, classes: Path, storage: str, protocol: str
) -> None:
    with (
        redis_servers.server() as url,
        redis_servers.connected(url) as stored,
        contextlib.ExitStack() as running,
    ):
        brokers = Brokers(running, tmp_path, url, storage_format=storage)
        count_words(running, brokers, tmp_path, classes, protocol=protocol)
        wait_until_compacted(stored)


@pytest.mark.timeout(400 + 180 * ROUNDS)
def test_each_word_is_counted_once_while_redis_fails_over(tmp_path: Path, classes: Path) -> None:
    with watched() as redis, contextlib.ExitStack() as running:
        settings = {"storage_format": "batch", "replicas": "1", "redis_timeout_ms": "3000"}
        brokers = Brokers(running, tmp_path, redis.url, **settings)
        count_words(running, brokers, tmp_path, classes, redis)
        wait_until_compacted(redis.master().client)


def count_words(
    running: contextlib.ExitStack,
    brokers: Brokers,
    directory: Path,
    classes: Path,
    redis: Watched | None = None,
    protocol: str = "classic",
) -> None:
    """Let Streams count words while things go wrong, and check all that it counted."""
    for topic in ("labels", "lines", "counts", "windows"):
        reading.create_topic(brokers.bootstrap, topic, PARTITIONS)
    write_labels(brokers.bootstrap)
    lines = Lines(brokers.bootstrap)
    instances = Instances(directory, brokers.bootstrap, classes, protocol=protocol)
    running.callback(instances.end)
    lines.start()
    running.callback(lines.end)
    try:
        break_at_random(brokers, instances, redis, random.Random(directory.name))
        lines.end()
        total = lines.counts.total()
        check(results(brokers.bootstrap, "counts", total), lines.counts)
        check(results(brokers.bootstrap, "windows", total), lines.windows)
        instances.check_alive()
    except BaseException:
        print(*instances.logs(), sep="\n")  # noqa: T201 - pytest shows it
        raise
    assert total > 0
