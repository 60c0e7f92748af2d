"""What clients see of a Redis Cluster with a dead master: its topics are refused at once, all else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.schema import Message
from korvet.redis.keys import Keys
from korvet.security.session import Session
from tests.handlers import apis
from tests.handlers.rows import groups, offsets, records, topics
from tests.handlers.scene import ROOT, Scene
from tests.support.broker import korvet_broker
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

KEYS = Keys("korvet")
LOGS = range(12)
GROUPS = [f"group-{number}" for number in range(12)]
NONE, MOVED, AWAY = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_NOT_AVAILABLE


class OverWire(Scene):
    """The handlers of a broker's process, which keeps looking for the nodes of its cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.ids = {}

    def call(self, request: Message, version: int | None = None, _session: Session = ROOT) -> Any:
        """Send a request, and return its response."""
        return self.client.call(request, request.api.versions[1] if version is None else version)


class Broken:
    """A worker's handlers, with a topic and groups on all nodes of a cluster, of which the one that has a key dies."""

    def __init__(self, scene: Scene, cluster: RedisCluster, wanted: str, *but: str) -> None:
        gone = cluster.node_of(wanted)
        if but:
            needed = [cluster.node_of(key) for key in but]
            gone = next(node for node in cluster.nodes if node not in needed)
        self.scene = scene
        scene.create("orders", len(LOGS))
        for index in LOGS:
            scene.append(b"a", b"b", partition=index)
        self.logs = [cluster.node_of(KEYS.stream("orders", index)) is not gone for index in LOGS]
        self.groups = [cluster.node_of(KEYS.group_offsets(group)) is not gone for group in GROUPS]
        self.members = []
        for group in GROUPS:
            scene.do(apis.OffsetCommit, **offsets.committed(group_id=group))
            groups.joined(scene, group_id=f"members-of-{group}")
            self.members.append(scene.member)
        self.members_live = [
            cluster.node_of(KEYS.group_members(f"members-of-{group}")) is not gone for group in GROUPS
        ]
        scene.do(apis.Metadata, **topics.described("orders"))  # and the worker keeps the answer
        gone.kill()

    def of_logs(self, gone: ErrorCode = MOVED) -> list[ErrorCode]:
        return [NONE if lives else gone for lives in self.logs]

    def codes(self, kind: type[Message], topic: dict[str, Any], **fields: Any) -> list[ErrorCode]:
        [answer] = self.scene.ask(kind, topics=[{"name": "orders"} | topic], **fields).topics
        return [ErrorCode(partition.error_code) for partition in answer.partitions]


def broken(directory: Path, wanted: str, *but: str) -> Iterator[Broken]:
    with redis_cluster(masters=3) as cluster:
        flags = ("--redis-url", cluster.url, "--set", "group.initial.rebalance.delay.ms=0")
        with korvet_broker(directory, *flags, workers=1) as broker, Client(broker.address) as client:
            yield Broken(OverWire(client), cluster, wanted, *but)


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """Kill a node that has neither the registry nor the list of groups."""
    yield from broken(tmp_path_factory.mktemp("partly"), KEYS.topics, KEYS.topics, KEYS.groups)


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """Kill the node that has the registry."""
    yield from broken(tmp_path_factory.mktemp("headless"), KEYS.topics)


def test_what_is_asked_of_logs_is_answered_by_the_other_nodes(partly: Broken) -> None:
    for timestamp in (-1, -2, 0):
        asked = [
            {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": -1} for index in LOGS
        ]
        assert partly.codes(apis.ListOffsets, {"partitions": asked}, replica_id=-1) == partly.of_logs()
    deletions = [{"partition_index": index, "offset": 0} for index in LOGS]
    assert partly.codes(apis.DeleteRecords, {"partitions": deletions}) == partly.of_logs()
    assert partly.codes(apis.DescribeProducers, {"partition_indexes": list(LOGS)}) == partly.of_logs()


def test_groups_on_other_nodes_are_described_and_all_are_listed(partly: Broken) -> None:
    listed = {group.group_id: group.group_state for group in partly.scene.do(apis.ListGroups).groups}
    assert [listed[group] for group in GROUPS] == ["Empty" if lives else "Unknown" for lives in partly.groups]
    described = partly.scene.ask(apis.DescribeGroups, groups=GROUPS).groups
    assert [group.error_code for group in described] == [NONE if lives else AWAY for lives in partly.groups]


@pytest.mark.parametrize("name", ["partly", "headless"])
def test_logs_and_groups_on_other_nodes_go_on(request: pytest.FixtureRequest, name: str) -> None:
    result: Broken = request.getfixturevalue(name)
    scene = result.scene
    for index, expected in zip(LOGS, result.of_logs(), strict=True):
        for kind, asked in ((apis.Produce, records.produced), (apis.Fetch, records.fetched)):
            [topic] = scene.ask(kind, **asked(partition=index)).responses
            [partition] = topic.partition_responses if kind is apis.Produce else topic.partitions
            assert partition.error_code == expected
    for group, lives in zip(GROUPS, result.groups, strict=True):
        [topic] = scene.ask(apis.OffsetCommit, **offsets.committed(group_id=group)).topics
        assert topic.partitions[0].error_code == (NONE if lives else AWAY)
        asked_for = offsets.fetched()["groups"][0] | {"group_id": group}
        [fetched] = scene.ask(apis.OffsetFetch, groups=[asked_for]).groups
        assert fetched.error_code == (NONE if lives else AWAY)
    [topic] = scene.ask(apis.Metadata, **topics.described("orders")).topics
    codes = [partition.error_code for partition in topic.partitions]
    assert (topic.error_code, codes) == (NONE, result.of_logs(ErrorCode.LEADER_NOT_AVAILABLE))
    for group, member, lives in zip(GROUPS, result.members, result.members_live, strict=True):
        by: dict[str, Any] = {"group_id": f"members-of-{group}", "member_id": member, "generation_id": 1}
        assert scene.ask(apis.Heartbeat, **by).error_code == (NONE if lives else AWAY)
    for lives_of in (result.logs, result.groups, result.members_live):
        assert set(lives_of) == {True, False}


def test_topics_are_not_created_without_the_registry(headless: Broken) -> None:
    """Not with the error of a partition, which would send clients after another leader."""
    [topic] = headless.scene.ask(apis.CreateTopics, **topics.created()).topics
    assert topic.error_code == ErrorCode.KAFKA_STORAGE_ERROR
