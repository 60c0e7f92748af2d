"""The ways that docs/redis.md gives to move a partition whose stream is larger than the limits of MIGRATE."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from redis.crc import key_slot
from redis.exceptions import ResponseError

from korvet.redis.keys import Keys
from tests.support import processes, reading
from tests.support.broker import korvet_broker
from tests.support.load import Load
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster

TOPIC = "large"
KEYS = Keys("korvet")
SLOT = key_slot(KEYS.stream(TOPIC, 0).encode())
LIMITS = ("proto-max-bulk-len", "client-query-buffer-limit")
LIMIT_BYTES = 1 << 20
RAISED_BYTES = 1 << 30
BEFORE, VALUE_BYTES = 300, 10_000

Move = Callable[[RedisCluster, ClusterNode, ClusterNode], None]


def by_migrateslots(cluster: RedisCluster, source: ClusterNode, to: ClusterNode) -> None:
    """Let the node stream its keys, under the same limits; a server that cannot has the other way."""
    if not cluster.can_migrate_slots():
        by_raised_limits(cluster, source, to)
        return
    assert cluster.begin_migration([SLOT], to) is source
    assert cluster.end_migration(source) == "success"


def by_raised_limits(cluster: RedisCluster, source: ClusterNode, to: ClusterNode) -> None:
    raise_limits(cluster)
    cluster.move_slot(SLOT, to)


def after_a_failed_one(cluster: RedisCluster, source: ClusterNode, to: ClusterNode) -> None:
    """Raise the limits once a MIGRATE has failed, and move what keys the source has left."""
    cluster.begin_move(SLOT, to)
    keys = source.call("CLUSTER", "GETKEYSINSLOT", SLOT, 10)
    small = [key for key in keys if key != KEYS.stream(TOPIC, 0).encode()]
    # One key has moved, the other node has a copy of one more, and the stream is as it was.
    cluster.move_keys(source, to, small[:1])
    source.call("MIGRATE", "127.0.0.1", to.port, "", 0, 60_000, "COPY", "KEYS", small[1])
    with pytest.raises(ResponseError, match=r"IOERR|invalid bulk length"):
        cluster.move_keys(source, to, [KEYS.stream(TOPIC, 0).encode()])
    raise_limits(cluster)
    cluster.end_move(SLOT, source, to, replace=True)


def raise_limits(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        for name in LIMITS:
            node.client.config_set(name, RAISED_BYTES)


def fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for _ in range(BEFORE):
        producer.produce(TOPIC, os.urandom(VALUE_BYTES), partition=0)
    assert producer.flush(processes.WAIT_SECONDS_MAX) == 0


@pytest.mark.parametrize("storage_format", ["record", "batch"])
@pytest.mark.parametrize("move", [by_migrateslots, by_raised_limits, after_a_failed_one])
def test_a_stream_above_the_limits_moves_under_load(tmp_path: Path, move: Move, storage_format: str) -> None:
    flags = (part for name in LIMITS for part in (f"--{name}", str(LIMIT_BYTES)))
    with (
        redis_cluster(2, 0, *flags) as cluster,
        korvet_broker(tmp_path, "--redis-url", cluster.url, workers=1) as broker,
    ):
        reading.create_topic(broker.bootstrap, TOPIC, 1, {"storage.format": storage_format})
        fill(broker.bootstrap)
        source = cluster.owner(SLOT)
        [to] = [node for node in cluster.nodes if node is not source]
        assert source.client.memory_usage(KEYS.stream(TOPIC, 0)) > 2 * LIMIT_BYTES
        load = Load(broker.bootstrap, TOPIC, 1)
        load.start()
        processes.wait_until(lambda: len(load.acknowledged) > 100, "records are acknowledged")
        move(cluster, source, to)
        cluster.wait_ok()
        assert cluster.owner(SLOT) is to
        count = load.sent
        processes.wait_until(lambda: len(load.acknowledged) > count, "records of after the move are")
        load.end()
        received = reading.read_all(broker.bootstrap, TOPIC, [0], BEFORE + load.sent)
        assert [record.offset for record in received] == sorted(record.offset for record in received)
        assert [len(record.value or b"") for record in received[:BEFORE]] == [VALUE_BYTES] * BEFORE
        load.check(received[BEFORE:])
