"""The lake over a Redis Cluster: tasks are of one node each, and a node that is away costs its partitions alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import KafkaError
from korvet.lake import archiver
from korvet.lake.expiry import Expiry
from korvet.lake.scan import PartReader, check_same_past
from korvet.lake.source import SourceTopic
from korvet.lake.tasks import ArchiveTask, TaskOutcome, alternating, archive_ranges
from korvet.spark.source import COLUMNS, KorvetDataSource
from korvet.topics.types import Partition
from tests.lake.rows import records_of
from tests.support import redis_cluster as clusters
from tests.support.archives import FORMATS, Format, Topics, topics_in
from tests.support.processes import wait_until
from tests.support.redis_cluster import ClusterNode, RedisCluster

PARTITIONS = 8


@pytest.fixture
def topics(redis_cluster: RedisCluster, tmp_path: Path) -> Iterator[Topics]:
    with topics_in(redis_cluster.url, tmp_path / "lake") as result:
        yield result


@pytest.fixture
def own_cluster() -> Iterator[RedisCluster]:
    """Give a cluster whose nodes may be killed: they have all that was acknowledged when they come back."""
    with clusters.redis_cluster(3, 0, "--appendfsync", "always", append_only=True) as running:
        yield running


def filled(topics: Topics, storage_format: Format, placement: str = "name") -> SourceTopic:
    topic = topics.make("orders", storage_format, partitions=PARTITIONS, redis_placement=placement)
    fill(topics, topic)
    return topic


def fill(topics: Topics, topic: SourceTopic, but: Sequence[int] = ()) -> None:
    for partition in topic.partitions:
        if partition.index not in but:
            topics.produce(partition, b"%d" % partition.index, b"more")


def nodes_of(cluster: RedisCluster, topic: SourceTopic) -> dict[int, ClusterNode]:
    return {partition.index: cluster.node_of(partition.stream) for partition in topic.partitions}


def victim_of(cluster: RedisCluster, topic: SourceTopic) -> tuple[ClusterNode, list[int]]:
    """Return a node without the registry of topics, and the partitions that it has."""
    registry = cluster.node_of("korvet:topics")
    victim = next(node for node in cluster.nodes if node is not registry)
    return victim, sorted(index for index, node in nodes_of(cluster, topic).items() if node is victim)


def connections(node: ClusterNode) -> int:
    return int(node.client.info("stats")["total_connections_received"])


@pytest.mark.parametrize("storage_format", FORMATS)
def test_tasks_of_a_node_connect_to_no_other(
    topics: Topics, redis_cluster: RedisCluster, storage_format: Format
) -> None:
    topic = filled(topics, storage_format)
    of, sizes = nodes_of(redis_cluster, topic), []

    def by_node(tasks: Sequence[ArchiveTask]) -> Iterator[TaskOutcome]:
        for some in topics.stores.by_node(tasks):
            [node] = {of[task.partition.index] for task in some}
            before = {other: connections(other) for other in redis_cluster.nodes}
            yield from archive_ranges(topics.source, some)
            made = {other: connections(other) - before[other] for other in redis_cluster.nodes}
            sizes.append(len(some))
            # The slots are asked of any node, by a connection that is closed again.
            made[node] -= 1
            assert sorted(made.values()) == [0, 0, 1]

    done = topics.archiver(cores=4).round(by_node)
    assert (done.partitions, done.failures) == (PARTITIONS, [])
    assert sorted(sizes) == sorted(Counter(of.values()).values())
    assert len(sizes) == len(redis_cluster.nodes)
    topics.check(topic)


def test_those_that_run_at_once_are_of_different_nodes() -> None:
    assert alternating([["a1", "a2", "a3"], ["b1"], ["c1", "c2"]]) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert alternating([[1, 2, 3]]) == [1, 2, 3]
    assert alternating([]) == []


@pytest.mark.parametrize("storage_format", FORMATS)
@pytest.mark.parametrize("tiers", ["Redis", "Redis and lake"])
@pytest.mark.parametrize("placement", ["name", "even"])
def test_the_source_reads_nodes_in_parallel(
    topics: Topics, redis_cluster: RedisCluster, storage_format: Format, tiers: str, placement: str
) -> None:
    topic = filled(topics, storage_format, placement)
    assert all(bool(partition.tag) is (placement == "even") for partition in topic.partitions)
    if tiers == "Redis and lake":
        assert topics.rounds(topics.archiver()).partitions == PARTITIONS
        topics.trim(topic.partitions[0], topics.bounds(topic.partitions[0]).high_watermark)
        fill(topics, topic)
    options = {"redis.url": redis_cluster.url, "lake": topics.lake, "topic": topic.name}
    reader = KorvetDataSource(options).reader(COLUMNS)
    tasks = list(reader.partitions())
    of = nodes_of(redis_cluster, topic)
    first = [of[task.value.partition.index] for task in tasks[: len(redis_cluster.nodes)]]
    assert len(set(first)) == len(redis_cluster.nodes)
    read: dict[int, list[object]] = {index: [] for index in of}
    for task in tasks:
        for rows in reader.read(task):
            read[task.value.partition.index] += records_of(rows)
    assert read == {index: topics.produced[topic.id, index] for index in of}


def killed(node: ClusterNode) -> Callable[[], None]:
    node.kill()
    return node.start


def frozen(node: ClusterNode) -> Callable[[], None]:
    node.freeze()
    return node.thaw


@pytest.mark.parametrize(("fault", "storage_format"), [(killed, "batch"), (frozen, "record")])
@pytest.mark.parametrize("when", ["before the plan", "before the tasks", "before the commit"])
def test_a_node_that_is_away_costs_its_partitions_alone(
    own_cluster: RedisCluster,
    tmp_path: Path,
    fault: Callable[[ClusterNode], Callable[[], None]],
    storage_format: Format,
    when: str,
) -> None:
    with topics_in(own_cluster.url, tmp_path / "lake") as topics:
        topic = filled(topics, storage_format)
        victim, away = victim_of(own_cluster, topic)
        mend: list[Callable[[], None]] = []

        def run(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
            if when == "before the tasks":
                mend.append(fault(victim))
            outcomes = [
                outcome
                for some in topics.stores.by_node(tasks)
                for outcome in archive_ranges(topics.source, some)
            ]
            if when == "before the commit":
                mend.append(fault(victim))
            return outcomes

        if when == "before the plan":
            mend.append(fault(victim))
        done = topics.archiver(cores=4).round(run)
        assert sorted({failure.partition for failure in done.failures}) == away
        committed = PARTITIONS - (0 if when == "before the commit" else len(away))
        assert done.partitions == committed
        for partition in topic.partitions:
            if partition.index not in away:
                assert topics.archived(topic, partition.index) == topics.produced[topic.id, partition.index]
        mend[0]()
        own_cluster.wait_ok()
        # The next round has the rest, and reports to Redis what this one could not.
        wait_until(lambda: topics.archiver().round(topics.run).failures == [], "all is archived")
        topics.check(topic)


def test_a_node_that_dies_while_a_round_is_planned_costs_its_partitions_alone(
    own_cluster: RedisCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topics_in(own_cluster.url, tmp_path / "lake") as topics:
        topic = filled(topics, "batch")
        assert topics.rounds(topics.archiver()).failures == []
        victim, away = victim_of(own_cluster, topic)
        for partition in topic.partitions:
            # As if the commits had not been reported to Redis: then records in both are compared.
            own_cluster.node_of(partition.state).client.hdel(partition.state, "archived")
        fill(topics, topic)

        def dying(reader: PartReader, of: SourceTopic, partition: Partition, *known: Any) -> None:
            if partition.index in away and victim.answers:
                victim.kill()
            check_same_past(reader, of, partition, *known)

        monkeypatch.setattr(archiver, "check_same_past", dying)
        done = topics.archiver().round(topics.run)
        assert sorted({failure.partition for failure in done.failures}) == away
        assert done.partitions == PARTITIONS - len(away)


def test_a_query_fails_while_a_node_of_its_topic_is_away_and_upkeep_goes_on(
    own_cluster: RedisCluster, tmp_path: Path
) -> None:
    with topics_in(own_cluster.url, tmp_path / "lake") as topics:
        topic = filled(topics, "batch")
        assert topics.rounds(topics.archiver()).failures == []
        victim, away = victim_of(own_cluster, topic)
        victim.kill()
        options = {"redis.url": own_cluster.url, "lake": topics.lake, "topic": topic.name}
        with pytest.raises(KafkaError, match=f"{victim.address} cannot be reached"):
            KorvetDataSource(options).reader(COLUMNS).partitions()
        done = Expiry(topics.source).round((), 168, 0)
        assert sorted(result.partition for result in done.expired if result.error is not None) == away
        assert [item.error for item in done.vacuumed] == [None]
