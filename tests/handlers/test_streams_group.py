"""StreamsGroupHeartbeat and StreamsGroupDescribe by bytes, over two workers (KIP-1071)."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.groups.streams.types import GroupStatus
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from korvet.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from korvet.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from korvet.protocol.types import FeatureUpgradeType, ResourceType
from tests.handlers.test_group_administration import listed
from tests.support.processes import wait_until
from tests.support.topic_client import Client

COMPACTED = [KeyValue(key="cleanup.policy", value="compact")]


def info(name: str, **fields: Any) -> TopicInfo:
    given: dict[str, Any] = {"partitions": 0, "replication_factor": 0, "topic_configs": []}
    return TopicInfo(name=name, **given | fields)


def subtopology(name: str, **fields: Any) -> Subtopology:
    given: dict[str, Any] = {
        "source_topics": [],
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return Subtopology(subtopology_id=name, **given | fields)


def word_count(topic: str, **fields: Any) -> Topology:
    """Return a topology that splits lines of a topic into words, and counts these, in the reverse order."""
    counting = subtopology(
        "1",
        repartition_source_topics=[info(f"{topic}-by-word")],
        state_changelog_topics=[info(f"{topic}-counts", topic_configs=COMPACTED)],
    )
    splitting: dict[str, Any] = {"source_topics": [topic], "repartition_sink_topics": [f"{topic}-by-word"]}
    return Topology(epoch=0, subtopologies=[counting, subtopology("0", **splitting | fields)])


def tasks(found: list[Any] | None) -> dict[str, list[int]] | None:
    return None if found is None else {each.subtopology_id: list(each.partitions) for each in found}


class Member:
    """A member on a connection of its own."""

    def __init__(self, client: Client, group: str, **fields: Any) -> None:
        self.client, self.group = client, group
        self.fields: dict[str, Any] = {
            "topology": word_count(group),
            "process_id": str(uuid.uuid4()),
        } | fields
        self.id, self.epoch, self.endpoints = str(uuid.uuid4()), 0, -1

    def send(self, **fields: Any) -> Any:
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "endpoint_information_epoch": self.endpoints,
        }
        answer = self.client.call(StreamsGroupHeartbeatRequest(**given | fields), 0)
        if answer.error_code == 0:
            assert answer.member_id == given["member_id"]
            self.epoch, self.endpoints = answer.member_epoch, answer.endpoint_information_epoch
        return answer

    def owns(self, active: dict[str, list[int]]) -> Any:
        """Report to own these active tasks."""
        owned = [TaskIds(subtopology_id=each, partitions=partitions) for each, partitions in active.items()]
        return self.send(active_tasks=owned, standby_tasks=[], warmup_tasks=[])

    def join(self, **fields: Any) -> Any:
        self.epoch = 0
        given = {"rebalance_timeout_ms": 60_000, "active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        return self.send(**given | self.fields | fields)

    def start(self) -> Any:
        """Join, and send heartbeats until the first assignment is there."""
        answer = self.join()
        assert answer.error_code == 0, answer
        answers = [answer]
        wait_until(lambda: _is_ready(answers, self), "the group is ready")
        return answers[-1]


def _is_ready(answers: list[Any], member: Member) -> bool:
    if answers[-1].status:
        answers.append(member.send())
    return not answers[-1].status


def described(client: Client, group: str, **fields: Any) -> Any:
    [found] = client.call(StreamsGroupDescribeRequest(group_ids=[group], **fields), 0).groups
    assert found.group_id == group
    return found


def problem(answer: Any) -> tuple[int, str | None]:
    return answer.error_code, answer.error_message


def test_two_members_on_two_workers_share_tasks_and_their_topics_are_created(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    at, other = two_clients
    at.create(topic, partitions=2)
    one = Member(at, topic, user_endpoint=Endpoint(host="here", port=65_535))
    answer = one.join()
    assert (answer.error_code, answer.heartbeat_interval_ms, answer.member_epoch) == (0, 5000, 1)
    delayed, missing = answer.status
    assert (delayed.status_code, missing.status_code) == (
        GroupStatus.ASSIGNMENT_DELAYED,
        GroupStatus.MISSING_INTERNAL_TOPICS,
    )
    assert missing.status_detail == f"Internal topics are missing: {topic}-by-word, {topic}-counts"
    asked = [MetadataRequestTopic(name=f"{topic}-{each}") for each in ("by-word", "counts")]
    created = at.call(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12).topics
    assert [len(each.partitions) for each in created] == [2, 2]
    resource = DescribeConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name=f"{topic}-counts",
        configuration_keys=["cleanup.policy"],
    )
    [configs] = at.call(DescribeConfigsRequest(resources=[resource]), 4).results
    assert [each.value for each in configs.configs] == ["compact"]
    answer = one.start()
    assert tasks(answer.active_tasks) == {"0": [0, 1], "1": [0, 1]}
    assert (answer.standby_tasks, answer.warmup_tasks) == ([], [])
    [endpoint] = answer.partitions_by_user_endpoint
    assert (endpoint.user_endpoint.host, endpoint.user_endpoint.port) == ("here", 65_535)
    found = {each.topic: list(each.partitions) for each in endpoint.active_partitions}
    assert found == {topic: [0, 1], f"{topic}-by-word": [0, 1]}
    plain = one.send()
    assert (plain.active_tasks, plain.status, plain.partitions_by_user_endpoint) == (None, [], None)

    two = Member(other, topic, client_tags=[KeyValue(key="zone", value="a")])
    assert tasks(two.join().active_tasks) == {}
    kept = tasks(one.send().active_tasks) or {}
    assert described(other, topic).group_state == "Reconciling"
    one.owns(kept)
    gained = tasks(two.send().active_tasks) or {}
    assert sorted((each, index) for own in (kept, gained) for each in own for index in own[each]) == [
        *(("0", 0), ("0", 1)),
        *(("1", 0), ("1", 1)),
    ]
    assert listed(at, topic, types_filter=["streams"]) == {topic: ("streams", "Stable", "streams")}
    members = {each.member_id: each for each in described(at, topic).members}
    member = members[two.id]
    assert (member.topology_epoch, member.process_id) == (0, two.fields["process_id"])
    assert [(each.key, each.value) for each in member.client_tags] == [("zone", "a")]
    for assignment in (member.assignment, member.target_assignment):
        assert tasks(assignment.active_tasks) == gained
        assert (assignment.standby_tasks, assignment.warmup_tasks) == ([], [])
    assert members[one.id].user_endpoint.host == "here"
    assert two.send(member_epoch=-1).member_epoch == -1
    assert one.send(member_epoch=-1).error_code == 0
    assert described(at, topic).group_state == "Empty"


def test_a_group_is_described_with_its_topology(client: Client, topic: str) -> None:
    client.create(topic, partitions=3)
    Member(client, topic).start()
    found = described(client, topic, include_authorized_operations=True)
    assert (found.error_code, found.group_state) == (0, "Stable")
    assert found.group_epoch == found.assignment_epoch
    assert found.authorized_operations > 0
    splitting, counting = found.topology.subtopologies
    assert (splitting.source_topics, splitting.repartition_sink_topics) == ([topic], [f"{topic}-by-word"])
    [repartition], [changelog] = counting.repartition_source_topics, counting.state_changelog_topics
    assert (repartition.name, repartition.partitions) == (f"{topic}-by-word", 3)
    assert (changelog.name, changelog.partitions) == (f"{topic}-counts", 3)
    assert [(each.key, each.value) for each in changelog.topic_configs] == [("cleanup.policy", "compact")]
    twice = client.call(StreamsGroupDescribeRequest(group_ids=[topic, topic]), 0).groups
    assert [each.authorized_operations for each in twice] == [-(2**31)]


def test_what_is_no_streams_group_is_not_described(client: Client, topic: str) -> None:
    assert problem(described(client, topic)) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Streams group {topic} not found.",
    )


def test_copartitioned_topics_are_named_by_their_places(client: Client, topic: str) -> None:
    for name, partitions in ((f"{topic}-a", 1), (f"{topic}-b", 2)):
        client.create(name, partitions=partitions)

    def join(*places: int) -> Any:
        group = CopartitionGroup(
            source_topics=list(places), source_topic_regex=[], repartition_source_topics=[]
        )
        both = subtopology("0", source_topics=[f"{topic}-a", f"{topic}-b"], copartition_groups=[group])
        return Member(client, topic, topology=Topology(epoch=0, subtopologies=[both])).join()

    assert problem(join(0, 2))[0] == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert problem(join(-1))[0] == ErrorCode.STREAMS_INVALID_TOPOLOGY
    statuses = {each.status_code: each.status_detail for each in join(0, 1).status}
    assert "do not have the same number of partitions" in statuses[GroupStatus.INCORRECTLY_PARTITIONED_TOPICS]


def test_a_topic_that_cannot_be_created_is_named_with_the_reason(client: Client, topic: str) -> None:
    client.create(topic)
    wrong = info(f"{topic}-counts", topic_configs=[KeyValue(key="cleanup.policy", value="burn")])
    whole = subtopology("0", source_topics=[topic], state_changelog_topics=[wrong])
    answer = Member(client, topic, topology=Topology(epoch=0, subtopologies=[whole])).join()
    details = {each.status_code: each.status_detail for each in answer.status}
    detail = details[GroupStatus.MISSING_INTERNAL_TOPICS]
    assert f"; Creation failed: {topic}-counts (" in detail
    assert "burn" in detail


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"task_offsets": []}, "TaskOffsets are not supported yet."),
        (
            {"task_end_offsets": [TaskOffset(subtopology_id="0", partition=0, offset=1)]},
            "TaskEndOffsets are not supported yet.",
        ),
        (
            {"warmup_tasks": [TaskIds(subtopology_id="0", partitions=[0])]},
            "WarmupTasks are not supported yet.",
        ),
        ({"standby_tasks": None}, "If one task-type is non-null, all must be non-null."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        (
            {"topology": word_count("t", source_topic_regex=["t.*"])},
            "Regular expressions for source topics are not supported yet.",
        ),
    ],
)
def test_what_kafka_refuses_too_is_refused_with_its_sentence(
    client: Client, topic: str, fields: dict[str, Any], message: str
) -> None:
    assert problem(Member(client, topic).join(**fields)) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            Topology(epoch=0, subtopologies=[subtopology("0", source_topics=["__consumer_offsets"])]),
            "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
        ),
        (
            Topology(epoch=0, subtopologies=[subtopology("0", source_topics=["a b", "c"])]),
            "Topic names a b are not valid topic names.",
        ),
        (
            Topology(epoch=0, subtopologies=[subtopology("0", source_topics=["a"])] * 2),
            "Two subtopologies have the same id.",
        ),
        (
            Topology(
                epoch=0,
                subtopologies=[
                    subtopology(
                        "0", source_topics=["a"], state_changelog_topics=[info("store", partitions=3)]
                    )
                ],
            ),
            "Changelog topic store must have an undefined partition count, but it is set to 3.",
        ),
    ],
)
def test_topologies_that_cannot_be_run_are_refused(
    client: Client, topic: str, wrong: Topology, message: str
) -> None:
    answer = Member(client, topic, topology=wrong).join()
    assert problem(answer) == (ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def test_an_unknown_member_is_refused_with_a_message(client: Client, topic: str) -> None:
    client.create(topic)
    member = Member(client, topic)
    member.epoch = 3
    assert problem(member.send()) == (ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {topic} not found.")
    Member(client, topic).join()
    assert problem(member.send()) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {member.id} is not a member of group {topic}.",
    )


def _is_refused(client: Client, group: str) -> bool:
    return bool(Member(client, group).join().error_code == ErrorCode.UNSUPPORTED_VERSION)


def test_without_the_feature_there_are_no_streams_groups(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    at, other = two_clients
    at.create(topic)

    def level(number: int, kind: FeatureUpgradeType) -> None:
        update = FeatureUpdateKey(feature="streams.version", max_version_level=number, upgrade_type=kind)
        assert at.call(UpdateFeaturesRequest(feature_updates=[update]), 2).error_code == 0

    level(0, FeatureUpgradeType.SAFE_DOWNGRADE)
    try:
        for client in (at, other):
            wait_until(partial(_is_refused, client, topic), "it is off")
            assert described(client, topic).error_code == ErrorCode.UNSUPPORTED_VERSION
    finally:
        level(1, FeatureUpgradeType.UPGRADE)
    assert Member(at, topic).join().error_code == 0
