"""A master of a Redis Cluster dies or falls silent under a producer: nothing acknowledged is lost, the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ops, processes, reading
from tests.support.broker import korvet_broker
from tests.support.load import Load
from tests.support.redis_cluster import ClusterNode, redis_cluster

PARTITIONS = 6
_MORE = 500


@pytest.mark.parametrize(
    "go",
    [pytest.param(ClusterNode.kill, marks=pytest.mark.smoke), ClusterNode.freeze],
    ids=["killed", "silent"],
)
def test_the_loss_of_a_master_costs_an_idempotent_producer_only_time(
    tmp_path: Path, go: Callable[[ClusterNode], None]
) -> None:
    # With acks=all one of two replicas has each record, and the cluster promotes the one that has more.
    with redis_cluster(3, 2, node_timeout_ms=2000, append_only=True) as cluster:
        settings = {"min.insync.replicas": 2, "redis.timeout.ms": 2000}
        with korvet_broker(tmp_path, "--redis-url", cluster.url, settings=settings) as broker:
            workers = broker.worker_pids()
            load = Load(broker.bootstrap, "orders", PARTITIONS)
            reading.create_topic(broker.bootstrap, load.topic, PARTITIONS)
            masters = [cluster.node_of(f"korvet:orders:{partition}") for partition in range(PARTITIONS)]
            gone = masters[0]
            assert len(set(masters)) > 1
            load.start()

            def wait_for_more(*, of_gone: bool) -> None:
                begun = len(load.acknowledged)

                def result() -> int:
                    since = load.acknowledged[begun:]
                    return sum((masters[partition] is gone) == of_gone for partition, _ in since)

                processes.wait_until(lambda: result() > _MORE, f"more is acknowledged ({of_gone=})", 60.0)

            wait_for_more(of_gone=True)
            # Without its master until the others are seen to go on, however slow the machine.
            replicas = cluster.replicas_of(gone)
            for replica in replicas:
                replica.client.config_set("cluster-replica-no-failover", "yes")
            go(gone)
            wait_for_more(of_gone=False)
            assert not any(replica.is_master() for replica in replicas)
            for replica in replicas:
                replica.client.config_set("cluster-replica-no-failover", "no")
            cluster.wait_promoted(gone)
            wait_for_more(of_gone=True)
            wait_for_more(of_gone=False)
            load.end()
            load.check(reading.read_all(broker.bootstrap, load.topic, range(PARTITIONS), load.sent))
            assert broker.worker_pids() == workers
            processes.wait_until(
                lambda: '"redis": "ok"' in ops.page(broker, "/readyz"), "ops found the master"
            )
            assert "Traceback" not in broker.log()
