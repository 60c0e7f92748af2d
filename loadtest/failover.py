"""What a lost master of a Redis Cluster costs producers: those of its partitions, and all others.

Run as `python -m loadtest.failover [--seconds 10] [--rate 1000] [--fault kill|freeze|move]` from the repository. A
broker of two workers over three masters with two replicas each; librdkafka's idempotent producer with acks=all writes
to twelve partitions at a steady rate. After a third of the time the master that has most of them is killed (SIGKILL)
or frozen, or slots with partitions move to another master. Then all is read, and compared with what was acknowledged.

It fails if that differs, if a partition of the master is not back within 1.5 times cluster-node-timeout and 3 s, or if
a kill makes the p99 of the others more than twice what it was.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from redis.crc import key_slot

from loadtest.harness import table
from tests.support.broker import KORVET, started
from tests.support.processes import free_port
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster

_TOPIC = "load"
_PARTITIONS = 12
_NODE_TIMEOUT_MS = 2000
_READ_SECONDS_MAX = 60.0
_BACK_SECONDS_MAX = 1.5 * _NODE_TIMEOUT_MS / 1000 + 3
_P99_GROWTH_MAX = 2.0


class Acknowledged(NamedTuple):
    """A record that was acknowledged: its partition, when it was produced, and how many seconds that took."""

    partition: int
    at: float
    seconds: float


class Load:
    """Records at a steady rate, and what became of them."""

    def __init__(self, bootstrap: str) -> None:
        conf = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2}
        self._producer = Producer(conf)
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[str] = []

    def run(self, seconds: float, rate: float) -> None:
        """Produce `rate` records a second to the partitions in turn."""
        begun = time.monotonic()
        for number in range(int(seconds * rate)):
            due = begun + number / rate
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)
            partition, at = number % _PARTITIONS, time.monotonic()

            def delivered(
                error: object, _message: object, partition: int = partition, at: float = at
            ) -> None:
                if error:
                    self.errors.append(str(error))
                else:
                    self.acknowledged.append(Acknowledged(partition, at, time.monotonic() - at))

            self._producer.produce(_TOPIC, b"x" * 100, partition=partition, on_delivery=delivered)
            self._producer.poll(0)

    def finish(self) -> int:
        """Wait for the rest; returns how many are neither acknowledged nor refused."""
        return self._producer.flush(30)


def _break(cluster: RedisCluster, fault: str) -> tuple[ClusterNode, set[int]]:
    """Bring the fault about; returns the master, and the partitions that it had."""
    of = {partition: cluster.node_of(f"korvet:{_TOPIC}:{partition}") for partition in range(_PARTITIONS)}
    master = max(cluster.masters(), key=list(of.values()).count)
    theirs = {partition for partition, node in of.items() if node is master}
    if fault == "kill":
        master.kill()
    elif fault == "freeze":
        master.freeze()
    else:
        to = next(node for node in cluster.masters() if node is not master)
        for partition in theirs:
            cluster.move_slot(key_slot(f"korvet:{_TOPIC}:{partition}".encode()), to)
    return master, theirs


def _read(bootstrap: str) -> int:
    """Return how many records there are."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "enable.partition.eof": True})
    consumer.assign([TopicPartition(_TOPIC, item, 0) for item in range(_PARTITIONS)])
    ended, result, until = set[int](), 0, time.monotonic() + _READ_SECONDS_MAX
    while len(ended) < _PARTITIONS and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition() or 0)
        else:
            result += 1
    consumer.close()
    return result


def _p99(results: list[Acknowledged]) -> float:
    """Return the p99 in milliseconds, infinite without records."""
    taken = sorted(result.seconds * 1000 for result in results)
    return taken[math.ceil(len(taken) * 0.99) - 1] if taken else math.inf


def _row(name: str, results: list[Acknowledged]) -> list[str | float]:
    taken = [result.seconds * 1000 for result in results] or [math.nan]
    return [name, len(results), statistics.median(taken), _p99(results), max(taken)]


def main() -> int:
    """Run once; returns 1 if an acknowledged record is gone or is there twice, or a bound is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.failover", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="records a second")
    parser.add_argument("--fault", choices=("kill", "freeze", "move"), default="kill")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="korvet-failover-") as directory:
        return _run(Path(directory), asked.seconds, asked.rate, asked.fault)


def _run(directory: Path, seconds: float, rate: float, fault: str) -> int:
    bootstrap = f"127.0.0.1:{free_port()}"
    with redis_cluster(3, 2, node_timeout_ms=_NODE_TIMEOUT_MS, append_only=True) as cluster:
        command = [*KORVET, "--listen", bootstrap, "--ops-listen", "127.0.0.1:0", "--workers", "2"]
        command += ["--redis-url", cluster.url, "--data-dir", str(directory / "data"), "--set", "replicas=1"]
        with started(command, directory, directory / "data") as broker:
            broker.wait_until_ready()
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)])[_TOPIC].result(30)
            load = Load(bootstrap)
            load.run(2.0, rate)  # to warm up
            load.finish()
            load.acknowledged.clear()
            load.run(seconds / 3, rate)
            broken_at = time.monotonic()
            master, theirs = _break(cluster, fault)
            load.run(seconds * 2 / 3, rate)
            left = load.finish()
            warmed_up = int(2.0 * rate)
            exceeded = _report(load.acknowledged, broken_at, theirs, fault)
            if fault == "freeze":
                master.thaw()
            written, result = warmed_up + len(load.acknowledged), _read(bootstrap)
    print(f"\nacknowledged {written}, read {result}, refused {len(load.errors)}, without an answer {left}")
    for sentence in exceeded:
        print(f"FAILED: {sentence}")
    return int(bool(exceeded) or result < written or result > written + left + len(load.errors))


def _report(acknowledged: list[Acknowledged], broken_at: float, theirs: set[int], fault: str) -> list[str]:
    """Print what was measured; returns the bounds that are exceeded."""
    before = [offset for offset in acknowledged if offset.at + offset.seconds < broken_at]
    after = [offset for offset in acknowledged if offset.at >= broken_at]
    others = [item for item in after if item.partition not in theirs]
    rows = [
        _row("before", before),
        _row("after, other partitions", others),
        _row("after, partitions of that master", [item for item in after if item.partition in theirs]),
    ]
    print(table(("ms until acknowledged", "records", "median", "p99", "longest"), rows))
    first: dict[int, float] = defaultdict(lambda: math.inf)
    for offset in acknowledged:
        done = offset.at + offset.seconds
        if offset.partition in theirs and done >= broken_at + 0.1:
            first[offset.partition] = min(first[offset.partition], done - broken_at)
    back = max(first[partition] for partition in theirs)
    print(f"all of its {len(theirs)} partitions are back after {back:.2f} s")
    exceeded = []
    if back > _BACK_SECONDS_MAX:
        exceeded.append(f"its partitions have to be back after {_BACK_SECONDS_MAX:.2f} s")
    # One that hangs holds up requests with records for its partitions: redis.timeout.ms ends that.
    if fault == "kill" and _p99(others) > _P99_GROWTH_MAX * _p99(before):
        exceeded.append(f"the p99 of other partitions has grown more than {_P99_GROWTH_MAX:g} times")
    return exceeded


if __name__ == "__main__":
    sys.exit(main())
