"""The backup of a Redis Cluster that docs/backup.md describes: a copy of each master under load, none of one moment."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from korvet.redis.keys import Keys
from tests.cli.commands import korvet
from tests.support import processes, reading
from tests.support import redis_cluster as clusters
from tests.support.broker import korvet_broker
from tests.support.load import Load
from tests.support.redis_cluster import ClusterNode, RedisCluster

PARTITIONS, TOPIC, GROUP = 6, "kept", "billing"
KEYS = Keys("korvet")
_COPIES_APART = 500
"""Records that are produced, and their offsets committed, between two copies, at least."""


def copy(node: ClusterNode, to: Path) -> None:
    """Copy the append-only file of a master as docs/backup.md says."""
    node.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
    processes.wait_until(lambda: not node.client.info("persistence")["aof_rewrite_in_progress"], "no rewrite")
    shutil.copytree(node.append_only_dir, to)


def restore(cluster: RedisCluster, copies: dict[int, Path]) -> None:
    """Give each node of a new cluster the file of the one that had its slots."""
    for at, node in enumerate(cluster.nodes):
        node.kill()
        shutil.rmtree(node.append_only_dir)
        shutil.copytree(copies[at], node.append_only_dir)
        node.start()
    cluster.wait_ok()


class Follower(threading.Thread):
    """A consumer that commits what it reads, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.ending = threading.Event()
        self.committed = 0

    def run(self) -> None:
        running = group_consumer(self.bootstrap)
        while not self.ending.is_set():
            if read := running.consume(200, timeout=0.2):
                running.commit(asynchronous=False)
                self.committed += len(read)
        running.close()


def group_consumer(bootstrap: str) -> Consumer:
    common = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False}
    # The group of a copy has the members of that moment, until their sessions end.
    running = Consumer({**common, "auto.offset.reset": "earliest", "session.timeout.ms": 6000})
    running.subscribe([TOPIC])
    return running


def test_copies_of_different_moments_are_served(tmp_path: Path) -> None:
    flags = (3, 0, "--appendfsync", "always")
    copies: dict[int, Path] = {}
    with (
        clusters.redis_cluster(*flags, append_only=True) as cluster,
        # The copy has the registration of this broker, which must have ended when the other one starts.
        korvet_broker(
            tmp_path / "first", "--redis-url", cluster.url, "--set", "broker.lease.ms=5000", workers=1
        ) as broker,
    ):
        reading.create_topic(broker.bootstrap, TOPIC, PARTITIONS, {"storage.format": "batch"})
        load, follower = Load(broker.bootstrap, TOPIC, PARTITIONS), Follower(broker.bootstrap)
        load.start()
        follower.start()
        processes.wait_until(lambda: follower.committed > 2, "offsets are committed")
        # The registry first; the group last, so that it has offsets past the ends of the logs that were copied before.
        last = [cluster.node_of(KEYS.topics), cluster.node_of(KEYS.group_state(GROUP))]
        order = sorted(cluster.nodes, key=lambda node: (node is not last[0]) + (node is last[1]))
        before: dict[int, int] = {}
        for node in order:
            at = cluster.nodes.index(node)
            before[at] = len(load.acknowledged)
            copy(node, tmp_path / f"copy-{at}")
            copies[at] = tmp_path / f"copy-{at}"
            if node is order[0]:
                reading.create_topic(broker.bootstrap, "later", 3, {"storage.format": "batch"})
            count = len(load.acknowledged) + _COPIES_APART
            processes.wait_until(lambda: follower.committed > count, "more is committed")  # noqa: B023 - called at once
        load.end()
        follower.ending.set()
        follower.join()
        of = {
            index: cluster.nodes.index(cluster.node_of(KEYS.state(TOPIC, index)))
            for index in range(PARTITIONS)
        }
        read = reading.read_all(broker.bootstrap, TOPIC, range(PARTITIONS), len(load.acknowledged))
        values = {(item.partition, item.offset): item.value for item in read}
    assert len(set(of.values())) == len(cluster.nodes)
    with clusters.redis_cluster(*flags, append_only=True) as cluster:
        restore(cluster, copies)
        with korvet_broker(tmp_path / "second", "--redis-url", cluster.url, workers=1) as broker:
            check(
                broker.bootstrap,
                load,
                values,
                {at: load.acknowledged[:count] for at, count in before.items()},
                of,
            )


def check(
    bootstrap: str,
    load: Load,
    values: dict[tuple[int, int], bytes | None],
    before: dict[int, list[tuple[int, int]]],
    of: dict[int, int],
) -> None:
    """Check a broker on the copies: `before` is what was acknowledged before that of each node, `of` a partition's."""
    with reading.consumer(bootstrap, TOPIC, range(PARTITIONS)) as running:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        ends = {partition.partition: running.get_watermark_offsets(partition)[1] for partition in partitions}
        received = reading.read(running, sum(ends.values()))
    places = {(item.partition, item.offset) for item in received}
    # Each log from its start to its end, each record as it was, and all that was acknowledged before its copy.
    assert places == {(index, offset) for index, end in ends.items() for offset in range(end)}
    assert all(values[item.partition, item.offset] == item.value for item in received)
    for index, node in of.items():
        assert {place for place in before[node] if place[0] == index} <= places
    # A topic that was made after the registry was copied is not there, and can be made.
    reading.create_topic(bootstrap, "later", 3, {"storage.format": "batch"})
    assert reading.read_all(bootstrap, "later", range(3), 0) == []
    # The group was copied last: it has offsets past the ends of logs.
    with reading.consumer(bootstrap, TOPIC, range(PARTITIONS), **{"group.id": GROUP}) as running:
        restored = {item.partition: item.offset for item in running.committed(partitions)}
    assert any(offset > ends[index] for index, offset in restored.items())
    # They can be reset once the session of the member in the copy has ended.
    reset = ("groups", "reset-offsets", GROUP, "--all-topics", "--to-earliest", "--execute", "-b", bootstrap)
    processes.wait_until(lambda: korvet(*reset).returncode == 0, "the offsets are reset")
    with reading.consumer(bootstrap, TOPIC, range(PARTITIONS), **{"group.id": GROUP}) as running:
        assert {item.offset for item in running.committed(partitions)} <= {0, OFFSET_INVALID}
