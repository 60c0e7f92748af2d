"""What clients see of a Redis Cluster of which a master is dead: what it had is refused at once, all else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopics
from korvet.redis.keys import Keys
from tests.handlers.groups import Member
from tests.handlers.test_delete_records import delete
from tests.handlers.test_describe_producers import described
from tests.handlers.test_list_offsets import EARLIEST, LATEST, ask
from tests.handlers.test_offset_commit import commit, fetch
from tests.support.batches import batch
from tests.support.broker import korvet_broker
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster
from tests.support.topic_client import Client

KEYS = Keys("korvet")
LOGS = range(12)
GROUPS = [f"group-{number}" for number in range(12)]
NONE, MOVED, AWAY = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_NOT_AVAILABLE


class Scene:
    """A broker with a topic and groups on all nodes, of which `gone` was killed."""

    def __init__(self, cluster: RedisCluster, client: Client, gone: ClusterNode) -> None:
        self.client = client
        self.gone = gone
        self.logs = [cluster.node_of(KEYS.stream("orders", index)) is not gone for index in LOGS]
        self.groups = [cluster.node_of(KEYS.group_offsets(group)) is not gone for group in GROUPS]
        self.members: list[tuple[Member, bool]] = []
        client.create("orders", len(LOGS))
        for index in LOGS:
            client.append("orders", b"a", b"b", partition=index)
        for group in GROUPS:
            assert commit(client, group, "orders", *LOGS) == [NONE] * len(LOGS)
            member = Member(client, f"members-of-{group}")
            member.join()
            member.sync({member.id: b"all"})
            key = KEYS.group_members(member.group)
            self.members.append((member, cluster.node_of(key) is not gone))
        gone.kill()

    def of_logs(self, here: Any, gone: Any = MOVED) -> list[Any]:
        """Return what is expected of each log."""
        return [here if lives else gone for lives in self.logs]


def scene_of(directory: Path, wanted: str, *but: str) -> Iterator[Scene]:
    with redis_cluster(masters=3) as cluster:
        gone = cluster.node_of(wanted)
        if but:
            needed = [cluster.node_of(key) for key in but]
            gone = next(node for node in cluster.nodes if node not in needed)
        flags = ("--redis-url", cluster.url, "--set", "group.initial.rebalance.delay.ms=0")
        with korvet_broker(directory, *flags, workers=1) as broker, Client(broker.address) as client:
            yield Scene(cluster, client, gone)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Kill a node that has neither the registry nor the list of groups."""
    yield from scene_of(tmp_path_factory.mktemp("scene"), KEYS.topics, KEYS.topics, KEYS.groups)


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Kill the node that has the registry."""
    yield from scene_of(tmp_path_factory.mktemp("headless"), KEYS.topics)


@pytest.mark.parametrize("timestamp", [LATEST, EARLIEST, 0])
def test_offsets_of_logs_on_other_nodes_are_listed(scene: Scene, timestamp: int) -> None:
    codes = [ask(scene.client, "orders", timestamp, partition=index).error_code for index in LOGS]
    assert codes == scene.of_logs(NONE)


def test_records_of_logs_on_other_nodes_are_deleted(scene: Scene) -> None:
    found = delete(scene.client, *(("orders", index, 0) for index in LOGS))
    assert [code for code, _ in found] == scene.of_logs(NONE)


def test_producers_of_logs_on_other_nodes_are_described(scene: Scene) -> None:
    found = described(scene.client, {"orders": list(LOGS)})
    assert [each.error_code for each in found.values()] == scene.of_logs(NONE)


def test_groups_on_other_nodes_are_described_and_all_are_listed(scene: Scene) -> None:
    listed = {each.group_id: each for each in scene.client.call(ListGroupsRequest(), 5).groups}
    assert listed.keys() >= set(GROUPS)
    states = [listed[group].group_state for group in GROUPS]
    assert states == ["Empty" if lives else "Unknown" for lives in scene.groups]
    found = scene.client.call(DescribeGroupsRequest(groups=GROUPS), 5).groups
    assert [each.error_code for each in found] == [NONE if lives else AWAY for lives in scene.groups]


def test_offsets_of_groups_on_other_nodes_are_fetched_whatever_node_has_the_logs(scene: Scene) -> None:
    for group, lives in zip(GROUPS, scene.groups, strict=True):
        if lives:
            found = fetch(scene.client, group, "orders", partitions=len(LOGS))
            assert [(row[0], row[3]) for row in found] == [(index, NONE) for index in LOGS]
        else:
            asked = [OffsetFetchRequestTopics(name="orders", partition_indexes=list(LOGS))]
            request = OffsetFetchRequest(group_id=group, topics=asked)
            assert scene.client.call(request, 7).error_code == AWAY


@pytest.mark.parametrize("name", ["scene", "headless"])
def test_logs_and_groups_on_other_nodes_go_on(request: pytest.FixtureRequest, name: str) -> None:
    scene: Scene = request.getfixturevalue(name)
    for index, lives in enumerate(scene.logs):
        expected = NONE if lives else MOVED
        assert scene.client.produce("orders", batch(b"c"), partition=index).error_code == expected
        assert scene.client.fetch("orders", partition=index).error_code == expected
    for group, lives in zip(GROUPS, scene.groups, strict=True):
        assert set(commit(scene.client, group, "orders", *LOGS)) == {NONE if lives else AWAY}
    topic = scene.client.described("orders")
    codes = {each.partition_index: each.error_code for each in topic.partitions}
    assert topic.error_code == NONE
    assert [codes[index] for index in LOGS] == scene.of_logs(NONE, ErrorCode.LEADER_NOT_AVAILABLE)
    for member, lives in scene.members:
        assert member.heartbeat() == (NONE if lives else AWAY)
    for found in (scene.logs, scene.groups, [lives for _, lives in scene.members]):
        assert set(found) == {True, False}


def test_topics_are_not_created_without_the_registry(headless: Scene) -> None:
    """Not with the error of a partition, which would send clients after another leader."""
    topics = [CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    [topic] = headless.client.call(CreateTopicsRequest(topics=topics), 7).topics
    assert topic.error_code == ErrorCode.KAFKA_STORAGE_ERROR
