"""Topics at the height of handlers: what is created, found, deleted and placed, over two workers."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from korvet.clock import Clock
from korvet.errors import ErrorCode
from korvet.handlers.common import work_until
from korvet.handlers.metadata import TOPICS_CREATED_MAX
from korvet.topics.registry import PARTITIONS_MAX
from tests.handlers import apis
from tests.handlers.rows.topics import created, described, gone, moved
from tests.handlers.scene import Scene

UNKNOWN, INVALID, AVAILABLE_LATER = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.LEADER_NOT_AVAILABLE,
)
LARGE = 130
"""Partitions of a topic that is deleted in steps."""


class LateClock(Clock):
    """A clock by which each request has used up its time."""

    def monotonic(self) -> float:
        return inf


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Create the topic `orders`."""
    scene.orders()
    return scene


def codes_of(answer: Any) -> list[ErrorCode]:
    return [ErrorCode(topic.error_code) for topic in answer.topics]


def placed(scene: Scene, name: str = "orders") -> list[tuple[int, list[int]]]:
    """Return leader and replicas of each partition."""
    [topic] = scene.do(apis.Metadata, **described(name)).topics
    return [(partition.leader_id, partition.replica_nodes) for partition in topic.partitions]


@pytest.mark.parametrize("request_", [created(count=0), created(validate_only=True)])
def test_what_is_refused_or_only_asked_about_is_not_created(scene: Scene, request_: dict[str, Any]) -> None:
    scene.ask(apis.CreateTopics, **request_)
    assert codes_of(scene.ask(apis.Metadata, **described("new"))) == [UNKNOWN]


def test_a_topic_named_twice_and_names_that_collide_are_refused_beside_the_others(scene: Scene) -> None:
    names = ("new", "other", "new", "other_a", "other.a", "x" * 32_767, "x" * 32_767)
    request: dict[str, Any] = {"topics": [created(name)["topics"][0] for name in names], "timeout_ms": 10_000}
    results = scene.ask(apis.CreateTopics, **request).topics
    assert {result.name: result.error_code for result in results} == {
        "new": INVALID,
        "other": ErrorCode.NONE,
        "other_a": ErrorCode.NONE,
        "other.a": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "x" * 32_767: INVALID,
    }


def test_that_a_topic_exists_is_said_before_anything_else_that_is_wrong(scene: Scene) -> None:
    wrong: list[dict[str, Any]] = [{"factor": 0}, {"configs": [("no.such", "1")]}, {"brokers": [[77]]}]
    for fields in wrong:
        answer = scene.ask(apis.CreateTopics, **created("orders", **fields))
        assert codes_of(answer) == [ErrorCode.TOPIC_ALREADY_EXISTS]


@pytest.mark.parametrize("version", [2, 7])
def test_more_partitions_than_one_topic_may_have_are_made_by_no_request(scene: Scene, version: int) -> None:
    def asked(*topics: dict[str, Any]) -> list[ErrorCode]:
        request: dict[str, Any] = {"topics": [topic["topics"][0] for topic in topics], "validate_only": True}
        return codes_of(scene.ask(apis.CreateTopics, version, **request))

    by_default = created("b", -1, -1)
    assigned = created("c", -1, -1, brokers=[[0], [0]])
    assert asked(created("a", 9_998), by_default, assigned) == [ErrorCode.POLICY_VIOLATION] * 3
    # What is refused by itself counts for nothing.
    assert asked(created("a", -2), created("d", 10_001), by_default, assigned) == [
        *[ErrorCode.INVALID_PARTITIONS] * 2,
        *[ErrorCode.NONE] * 2,
    ]


def test_asking_creates_so_many_topics_at_once(scene: Scene) -> None:
    names = [f"new-{number}" for number in range(TOPICS_CREATED_MAX + 20)]
    request = described(*names, allow_auto_topic_creation=True)
    assert codes_of(scene.ask(apis.Metadata, **request)) == [0] * TOPICS_CREATED_MAX + [AVAILABLE_LATER] * 20
    assert set(codes_of(scene.ask(apis.Metadata, **request))) == {ErrorCode.NONE}


@pytest.mark.parametrize("version", [1, 12])
def test_a_name_is_given_again_once_the_deleted_topic_is_cleared_away_and_who_asks_does_not_wait(
    scene: Scene, other: Scene, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = scene.create("large", LARGE)
    scene.append(b"old", topic="large", partition=LARGE - 1)
    monkeypatch.setattr(scene.services.topics, "_clock", LateClock())
    [deleted] = scene.do(apis.DeleteTopics, **gone("large")).responses
    assert deleted.topic_id == former
    [again] = other.ask(apis.DeleteTopics, **gone("large")).responses
    assert again.error_code == UNKNOWN
    asked = other.ask(apis.Metadata, version, **described("large", allow_auto_topic_creation=True))
    assert codes_of(asked) == [AVAILABLE_LATER]
    assert codes_of(other.ask(apis.CreateTopics, **created("large", validate_only=True))) == [ErrorCode.NONE]
    with monkeypatch.context() as late:
        late.setattr(other.services.topics, "_clock", LateClock())
        assert codes_of(other.ask(apis.CreateTopics, **created("large"))) == [ErrorCode.REQUEST_TIMED_OUT]
    assert other.create("large") != former
    assert len(placed(scene, "large")) == 1
    assert not other.raw.exists(f"korvet:large:{LARGE - 1}", f"{{korvet:large:{LARGE - 1}}}:state")


def test_what_another_worker_has_created_again_is_deleted_and_not_by_its_old_id(
    scene: Scene, other: Scene
) -> None:
    old_id = scene.ids["orders"]
    other.do(apis.DeleteTopics, **gone())
    new_id = other.create("orders")
    [by_id] = scene.ask(apis.DeleteTopics, **gone(None, old_id)).responses
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    known, unknown = (
        scene.ask(apis.Metadata, **described(None, ids=item)).topics[0] for item in (new_id, old_id)
    )
    assert (known.name, len(known.partitions)) == ("orders", 1)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    [by_name] = scene.do(apis.DeleteTopics, **gone()).responses
    assert by_name.topic_id == new_id


def test_the_most_partitions_are_made_moved_elected_and_deleted_by_one_request(scene: Scene) -> None:
    """Names repeat: a worker that looked at every partition each time would take minutes."""
    last = PARTITIONS_MAX - 1
    scene.create("large", PARTITIONS_MAX)
    twice = [moved([77], "large", last)["topics"][0], moved([0], "large", last)["topics"][0]] * 1500
    answer = scene.ask(apis.AlterPartitionReassignments, topics=twice)
    result = [topic.partitions[0].error_code for topic in answer.responses]
    assert result == [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE] * 1500
    often = [{"topic": "large", "partitions": [last]}] * 10_000
    answer = scene.ask(apis.ElectLeaders, topic_partitions=often)
    outcomes = {topic.partition_result[0].error_code for topic in answer.replica_election_results}
    assert (len(answer.replica_election_results), outcomes) == (10_000, {ErrorCode.ELECTION_NOT_NEEDED})
    scene.do(apis.DeleteTopics, **gone("large") | {"timeout_ms": 120_000})
    assert list(scene.raw.scan_iter("*korvet:large:*", count=50_000)) == []


def test_a_move_is_in_the_metadata_of_every_worker_when_it_is_answered(scene: Scene, other: Scene) -> None:
    scene.other_broker(7)
    request = moved([7, 0])
    request["topics"] += moved([0], partition=1)["topics"] + moved([0], "missing")["topics"]
    answer = scene.ask(apis.AlterPartitionReassignments, **request)
    result = [
        (topic.name, [partition.error_code for partition in topic.partitions]) for topic in answer.responses
    ]
    assert result == [("orders", [0]), ("orders", [0]), ("missing", [UNKNOWN])]
    assert placed(scene) == placed(other) == [(7, [7, 0]), (0, [0])]
    # Of two moves of one partition the later one stays.
    scene.do(apis.AlterPartitionReassignments, topics=[*moved([7])["topics"], *moved([0])["topics"]])
    assert placed(other)[0] == (0, [0])
    for topics, allowed in (([], True), (moved([0])["topics"], False)):
        answer = scene.ask(
            apis.AlterPartitionReassignments, topics=topics, allow_replication_factor_change=False
        )
        assert answer.allow_replication_factor_change is allowed, "without topics it is Kafka's default"


def test_leaders_logs_and_coordinators_are_spread_over_the_brokers(scene: Scene) -> None:
    scene.other_broker(1)
    scene.create("spread", 40)
    leaders = [leader for leader, _ in placed(scene, "spread")]
    assert set(leaders) == {0, 1}
    asked = [{"topic": "spread", "partitions": list(range(40))}]
    topics = [item for one in scene.do(apis.DescribeLogDirs, topics=asked).results for item in one.topics]
    led = {partition.partition_index for topic in topics for partition in topic.partitions}
    assert led == {index for index, leader in enumerate(leaders) if leader == 0}
    names = [f"group-{number}" for number in range(30)]
    coordinators = scene.do(apis.FindCoordinator, coordinator_keys=names).coordinators
    assert {coordinator.node_id for coordinator in coordinators} == {0, 1}


def test_half_of_the_time_is_left_for_the_answer() -> None:
    assert work_until(60_000, now=1000.0) == 1030.0
