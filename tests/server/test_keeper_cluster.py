"""The keeper over a real Redis Cluster: its tasks on logs run for each master by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from korvet.config.settings import Settings
from korvet.log.packed import ProducerRow
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.keeper.keeper import Keeper
from korvet.telemetry.snapshot import LogStatsSnapshot, read
from korvet.topics.registry import TopicSpec
from korvet.topics.types import Partition
from tests.groups.support import Group
from tests.support.batches import Record
from tests.support.domain import Domain, domain
from tests.support.partition_state import log_of, producers_of, set_producer
from tests.support.proxy import until
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_cluster import redis_cluster as started_cluster

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
DAY_MS = 86_400_000
SILENT = ProducerRow(epoch=0, next_sequence=1, last_ms=1000)
"""The row of a producer that was silent for long."""


@contextlib.contextmanager
def view_of(cluster: RedisCluster) -> Iterator[Domain]:
    """Give a worker's view of a cluster, with a topic that has logs on every node."""
    with domain(cluster.url) as made:
        made.topics.create(TopicSpec(name="orders", partitions=12))
        yield made


def spare(cluster: RedisCluster) -> ClusterNode:
    """Return a node that has neither the keeper's lease, nor the registry, nor the list of groups."""
    needed = {cluster.node_of(key).port for key in (KEYS.keeper_lease, KEYS.topics, KEYS.groups)}
    return next(node for node in cluster.masters() if node.port not in needed)


def keeper_of(cluster: RedisCluster, tmp_path: Path, **changed: int) -> Keeper:
    return Keeper(Settings(redis_url=cluster.url, **changed), tmp_path)  # type: ignore[arg-type]  # each an int


def logs_of(
    here: Domain, cluster: RedisCluster, node: ClusterNode
) -> tuple[list[Partition], list[Partition]]:
    """Return the logs on other nodes, and those on this one."""
    result: tuple[list[Partition], list[Partition]] = ([], [])
    for partition in here.topics.get("orders").partitions:
        result[cluster.node_of(partition.stream) is node].append(partition)
    assert all(result)
    return result


def wait_for_a_turn(cluster: RedisCluster, partition: Partition) -> None:
    """Wait until the keeper has removed a silent producer from a log."""
    client = cluster.node_of(partition.stream).client
    set_producer(client, partition.state, 1, SILENT)
    until(lambda: not producers_of(client, partition.state))


def test_a_node_that_is_away_costs_a_round_its_own_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with started_cluster(masters=3) as cluster, view_of(cluster) as here:
        gone = spare(cluster)
        now_ms = int(time.time() * 1000)
        for index in range(12):
            here.append("orders", Record(b"old", b"k", now_ms - 8 * DAY_MS), partition=index)
            here.append("orders", Record(b"new", b"k", now_ms), partition=index)
            state = KEYS.state("orders", index)
            set_producer(cluster.node_of(state).client, state, 1, SILENT)
        kept, _ = logs_of(here, cluster, gone)
        keeper = keeper_of(cluster, tmp_path)
        cluster.move_slot(0, gone)  # where commands without a key go
        gone.kill()
        assert keeper.lease.renew()
        keeper.round()
        for partition in kept:
            client = cluster.node_of(partition.stream).client
            assert not producers_of(client, partition.state)
            assert log_of(client, partition.state).start > 0
        published = read(tmp_path / LogStatsSnapshot.FILE, LogStatsSnapshot)
        assert published is not None
        assert {log.partition for log in published.logs} == {partition.index for partition in kept}
        # One line for each task on the node, none for each of its logs.
        lines = [line.__dict__["korvet_fields"] for line in caplog.records]
        # What pipelines report is in one key, which may be there too.
        lines = [item for item in lines if item.get("task") != "pipelines"]
        assert {item["node"] for item in lines} == {gone.address}
        tasks = sorted(str(item.get("task")) for item in lines)
        assert tasks == ["None", "expire_producers", "reindex", "retention", "take_in"]


def test_a_node_that_hangs_does_not_hold_up_the_others(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    gone = spare(redis_cluster)
    with view_of(redis_cluster) as here:
        kept, [hung, *_] = logs_of(here, redis_cluster, gone)
    keeper = keeper_of(redis_cluster, tmp_path, redis_timeout_ms=60_000, log_retention_check_interval_ms=50)
    stop = Event()
    running = gevent.spawn(keeper.run, stop)

    wait_for_a_turn(redis_cluster, hung)
    gone.freeze()
    for partition in kept * 2:  # more than one turn
        wait_for_a_turn(redis_cluster, partition)
    gone.thaw()
    wait_for_a_turn(redis_cluster, hung)
    stop.set()
    running.get()


def test_a_node_that_hangs_does_not_hold_up_the_groups_of_others(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    gone, listing = spare(redis_cluster), redis_cluster.node_of(KEYS.groups)
    redis = Redis(redis_cluster.url, timeout_ms=60_000, connect_timeout_ms=5000)
    names = [f"group-{number}" for number in range(300)]  # more than a step has
    nodes = {name: redis_cluster.node_of(KEYS.group_state(name)) for name in names}
    groups = {name: Group(redis, node.client, name) for name, node in nodes.items()}
    kept = [group for name, group in groups.items() if nodes[name] is not gone]
    hung = [group for name, group in groups.items() if nodes[name] is gone]
    assert hung
    assert len(set(nodes.values())) == 3
    for group in groups.values():
        group.stable("a")
        group.store.schedule.flush()

    def have_ended(some: list[Group]) -> bool:
        """Whether these groups have no members; else end the sessions, which the keeper's first turn begins again."""
        left = [group for group in some if group.ids()]
        for group in left:
            group.raw.zadd(group.deadlines, {"a": 1}, xx=True)
            listing.client.zadd(KEYS.groups, {group.name: 1})
        return not left

    keeper = keeper_of(redis_cluster, tmp_path, redis_timeout_ms=60_000)
    stop = Event()
    running = gevent.spawn(keeper.run, stop)
    until(lambda: have_ended([hung[0], kept[0]]))
    gone.freeze()
    listing.client.zadd(KEYS.groups, {group.name: 1 for group in hung})
    until(lambda: all(listing.client.zscore(KEYS.groups, group.name) > 1 for group in hung))
    until(lambda: have_ended(kept))
    gone.thaw()
    until(lambda: have_ended(hung))
    stop.set()
    running.get()
    redis.close()
