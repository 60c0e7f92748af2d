"""Topics at the height of handlers: what is created, found, deleted and placed, over two workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.metadata import TOPICS_CREATED_MAX
from korvet.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest
from korvet.protocol.messages.create_topics import CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.types import ElectionType
from korvet.topics.registry import PARTITIONS_MAX
from tests.handlers.rows.topics import created, described, gone, moved, of_two_brokers
from tests.handlers.scene import Scene

UNKNOWN, INVALID, AVAILABLE_LATER = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.LEADER_NOT_AVAILABLE,
)
LARGE = 130
"""Partitions of a topic that is deleted in steps."""
NO_TIME = {"timeout_ms": -1}


@pytest.fixture
def here(redis_url: str) -> Iterator[Scene]:
    """Give a worker's handlers, with the topic `orders`."""
    with closing(Scene(redis_url)) as made:
        made.orders()
        yield made


@pytest.fixture
def there(here: Scene) -> Iterator[Scene]:
    """Give another worker's handlers."""
    with closing(Scene(here.settings.redis_url)) as made:
        yield made


def codes_of(answer: Any) -> list[ErrorCode]:
    return [ErrorCode(topic.error_code) for topic in answer.topics]


def placed(scene: Scene, name: str = "orders") -> list[tuple[int, list[int]]]:
    """Return leader and replicas of each partition."""
    [topic] = scene.do(MetadataRequest, **described(name)).topics
    return [(partition.leader_id, partition.replica_nodes) for partition in topic.partitions]


REFUSED: list[tuple[dict[str, Any], ErrorCode, str]] = [
    ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "'.', '_' and '-'"),
    ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION, "'..'"),
    ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION, "250"),
    ({"name": "__x"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "reserved"),
    ({"count": -2}, ErrorCode.INVALID_PARTITIONS, "not -2"),
    ({"count": 10_001}, ErrorCode.INVALID_PARTITIONS, "10000"),
    ({"factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR, "not -2"),
    ({"configs": {"retention.ms": None}}, ErrorCode.INVALID_CONFIG, "retention.ms"),
    ({"configs": {"remote.storage.enable": "true"}}, ErrorCode.INVALID_CONFIG, "archive"),
    ({"brokers": [[]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "-0 is assigned to no broker"),
    ({"brokers": [[0, 0]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "-0 is assigned to a broker twice"),
    ({"brokers": [[0], [77]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "that are not there, [77]"),
    ({"brokers": [[0]], "count": 1}, INVALID, "must be -1"),
    ({"brokers": [[0]], "factor": 1}, INVALID, "must be -1"),
    ({"brokers": [list(range(100_000))]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "not there"),
    ({"configs": {"x" * 32_767: "x" * 32_767}}, ErrorCode.INVALID_CONFIG, "xxx..."),
]


@pytest.mark.parametrize(("fields", "code", "said"), REFUSED)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_refusal_says_what_is_wrong(
    here: Scene, fields: dict[str, Any], code: ErrorCode, said: str, *, validate_only: bool
) -> None:
    given = {"count": -1, "factor": -1} | fields if "brokers" in fields else fields
    [result] = here.ask(CreateTopicsRequest, **created(**given), validate_only=validate_only).topics
    assert (result.error_code, said in result.error_message) == (code, True)
    assert len(result.error_message) <= 1000
    assert codes_of(here.ask(MetadataRequest, **described("new"))) == [UNKNOWN]


@pytest.mark.parametrize(
    ("indexes", "said"),
    [
        ((0, 0), "multiple assignments for partition 0"),
        ((1, 3), "must be 0, 1, 2, ...: there are 1, 3"),
        ((0, 2), "must be 0, 1, 2, ...: there are 0, 2"),
    ],
)
def test_assignments_are_of_all_partitions_from_0_on(
    here: Scene, indexes: tuple[int, ...], said: str
) -> None:
    request = created(count=-1, factor=-1)
    request["topics"][0]["assignments"] = [{"partition_index": index, "broker_ids": [0]} for index in indexes]
    [result] = here.ask(CreateTopicsRequest, **request).topics
    assert (result.error_code, said in result.error_message) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, True)


def test_a_topic_named_twice_and_names_that_collide_are_refused_beside_the_others(here: Scene) -> None:
    names = ("new", "other", "new", "other_a", "other.a", "x" * 32_767, "x" * 32_767)
    request: dict[str, Any] = {"topics": [created(name)["topics"][0] for name in names], "timeout_ms": 10_000}
    results = here.ask(CreateTopicsRequest, **request).topics
    assert {result.name: result.error_code for result in results} == {
        "new": INVALID,
        "other": ErrorCode.NONE,
        "other_a": ErrorCode.NONE,
        "other.a": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "x" * 32_767: INVALID,
    }
    twice = created(configs={"retention.ms": "1"})
    twice["topics"][0]["configs"] *= 2
    [result] = here.ask(CreateTopicsRequest, **twice).topics
    assert result.error_code == ErrorCode.INVALID_CONFIG


def test_that_a_topic_exists_is_said_before_anything_else_that_is_wrong(here: Scene) -> None:
    wrong: list[dict[str, Any]] = [{"factor": 0}, {"configs": {"no.such": "1"}}, {"brokers": [[77]]}]
    for fields in wrong:
        answer = here.ask(CreateTopicsRequest, **created("orders", **fields))
        assert codes_of(answer) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_any_replication_factor_is_taken_and_reported_as_1(here: Scene) -> None:
    [result] = here.do(CreateTopicsRequest, **created(factor=32_767)).topics
    assert result.replication_factor == 1
    assert [config.name for config in result.configs] == sorted(config.name for config in result.configs)


@pytest.mark.parametrize("version", [2, 7])
def test_more_partitions_than_one_topic_may_have_are_made_by_no_request(here: Scene, version: int) -> None:
    def asked(*topics: dict[str, Any]) -> list[ErrorCode]:
        request: dict[str, Any] = {"topics": [topic["topics"][0] for topic in topics], "validate_only": True}
        return codes_of(here.ask(CreateTopicsRequest, version, **request))

    by_default = created("b", -1, -1)
    assigned = created("c", -1, -1, brokers=[[0], [0]])
    assert asked(created("a", 9_998), by_default, assigned) == [ErrorCode.POLICY_VIOLATION] * 3
    # What is refused by itself counts for nothing.
    assert asked(created("a", -2), created("d", 10_001), by_default, assigned) == [
        *[ErrorCode.INVALID_PARTITIONS] * 2,
        *[ErrorCode.NONE] * 2,
    ]


def test_of_many_topics_that_grow_each_is_answered(here: Scene, there: Scene) -> None:
    here.create("other")
    topics = [{"name": name, "count": 3} for name in ("orders", "missing", "other", "other")]
    results = there.ask(CreatePartitionsRequest, topics=topics).results
    assert {result.name: result.error_code for result in results} == {
        "orders": ErrorCode.NONE,
        "missing": UNKNOWN,
        "other": INVALID,
    }
    assert (len(placed(here)), len(placed(here, "other"))) == (3, 1)
    there.do(CreatePartitionsRequest, topics=[{"name": "orders", "count": 5}], validate_only=True)
    assert len(placed(here)) == 3


def test_asking_creates_so_many_topics_at_once(here: Scene) -> None:
    names = [f"new-{number}" for number in range(TOPICS_CREATED_MAX + 20)]
    request = described(*names, allow_auto_topic_creation=True)
    assert codes_of(here.ask(MetadataRequest, **request)) == [0] * TOPICS_CREATED_MAX + [AVAILABLE_LATER] * 20
    assert set(codes_of(here.ask(MetadataRequest, **request))) == {ErrorCode.NONE}


@pytest.mark.parametrize("version", [0, 12])
def test_the_broker_may_forbid_that_asking_creates(redis_url: str, version: int) -> None:
    settings: dict[str, Any] = {
        "auto_create_topics_enable": False,
        "topic_reserved_prefix": "",
        "broker_id": 7,
    }
    with closing(Scene(redis_url, **settings)) as scene:
        request = described("__new", allow_auto_topic_creation=True)
        assert codes_of(scene.ask(MetadataRequest, version, **request)) == [UNKNOWN]
        scene.create("__new")
        assert placed(scene, "__new") == [(7, [7])]


@pytest.mark.parametrize("version", [1, 12])
def test_a_name_is_given_again_once_the_deleted_topic_is_cleared_away_and_who_asks_does_not_wait(
    here: Scene, there: Scene, version: int
) -> None:
    former = here.create("large", LARGE)
    here.append(b"old", topic="large", partition=LARGE - 1)
    [deleted] = here.do(DeleteTopicsRequest, **gone("large") | NO_TIME).responses
    assert deleted.topic_id == former
    [again] = there.ask(DeleteTopicsRequest, **gone("large")).responses
    assert again.error_code == UNKNOWN
    asked = there.ask(MetadataRequest, version, **described("large", allow_auto_topic_creation=True))
    assert codes_of(asked) == [AVAILABLE_LATER]
    assert codes_of(there.ask(CreateTopicsRequest, **created("large") | NO_TIME)) == [
        ErrorCode.REQUEST_TIMED_OUT
    ]
    assert there.create("large") != former
    assert len(placed(here, "large")) == 1
    assert not there.raw.exists(f"korvet:large:{LARGE - 1}", f"{{korvet:large:{LARGE - 1}}}:state")


def test_what_another_worker_has_created_again_is_deleted_and_not_by_its_old_id(
    here: Scene, there: Scene
) -> None:
    old_id = here.ids["orders"]
    there.do(DeleteTopicsRequest, **gone())
    new_id = there.create("orders")
    [by_id] = here.ask(DeleteTopicsRequest, **gone(None, old_id)).responses
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    known, unknown = (
        here.ask(MetadataRequest, **described(None, ids=each)).topics[0] for each in (new_id, old_id)
    )
    assert (known.name, len(known.partitions), unknown.error_code) == (
        "orders",
        1,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
    [by_name] = here.do(DeleteTopicsRequest, **gone()).responses
    assert by_name.topic_id == new_id


def test_a_topic_given_by_its_name_and_by_its_id_is_deleted_in_no_way(here: Scene) -> None:
    here.create("other")
    states = [*gone()["topics"], *gone("other")["topics"], *gone(None, here.ids["orders"])["topics"] * 2]
    results = here.ask(DeleteTopicsRequest, topics=states, timeout_ms=10_000).responses
    assert [(result.name, result.error_code) for result in results] == [
        ("orders", INVALID),
        ("other", ErrorCode.NONE),
        (None, INVALID),
    ]
    assert len(placed(here)) == 2


def test_the_most_partitions_are_made_moved_elected_and_deleted_by_one_request(here: Scene) -> None:
    """Names repeat: a worker that looked at every partition each time would take minutes."""
    last = PARTITIONS_MAX - 1
    here.create("large", PARTITIONS_MAX)
    twice = [moved([77], "large", last)["topics"][0], moved([0], "large", last)["topics"][0]] * 1500
    answer = here.ask(AlterPartitionReassignmentsRequest, topics=twice)
    found = [topic.partitions[0].error_code for topic in answer.responses]
    assert found == [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE] * 1500
    often = [{"topic": "large", "partitions": [last]}] * 10_000
    answer = here.ask(ElectLeadersRequest, topic_partitions=often)
    outcomes = {topic.partition_result[0].error_code for topic in answer.replica_election_results}
    assert (len(answer.replica_election_results), outcomes) == (10_000, {ErrorCode.ELECTION_NOT_NEEDED})
    here.do(DeleteTopicsRequest, **gone("large") | {"timeout_ms": 120_000})
    assert list(here.raw.scan_iter("*korvet:large:*", count=50_000)) == []


def test_a_move_is_in_the_metadata_of_every_worker_when_it_is_answered(here: Scene, there: Scene) -> None:
    here.other_broker(7)
    request = moved([7, 0])
    request["topics"] += moved([0], partition=1)["topics"] + moved([0], "missing")["topics"]
    answer = here.ask(AlterPartitionReassignmentsRequest, **request)
    found = [
        (topic.name, [partition.error_code for partition in topic.partitions]) for topic in answer.responses
    ]
    assert found == [("orders", [0]), ("orders", [0]), ("missing", [UNKNOWN])]
    assert placed(here) == placed(there) == [(7, [7, 0]), (0, [0])]
    # Of two moves of one partition the later one stays.
    here.do(AlterPartitionReassignmentsRequest, topics=[*moved([7])["topics"], *moved([0])["topics"]])
    assert placed(there)[0] == (0, [0])
    for allowed in (True, False):
        answer = here.ask(
            AlterPartitionReassignmentsRequest, topics=[], allow_replication_factor_change=allowed
        )
        assert answer.allow_replication_factor_change is allowed


@pytest.mark.parametrize("version", range(14))
def test_while_the_preferred_leader_is_away_another_leads_and_that_is_reported(
    here: Scene, version: int
) -> None:
    here.other_broker(9)
    of_two_brokers(here)
    [topic] = here.do(MetadataRequest, version, **described("orders")).topics
    first = topic.partitions[0]
    assert first.leader_id in (0, 9)
    assert (first.replica_nodes, first.isr_nodes) == ([7, first.leader_id], [first.leader_id])
    assert first.offline_replicas == ([7] if version >= 5 else [])
    answer = here.do(MetadataRequest, version, **described("orders"))
    assert [broker.node_id for broker in answer.brokers] == [0, 9]


def test_of_all_partitions_only_those_are_reported_that_would_need_an_election(here: Scene) -> None:
    here.create("other")
    of_two_brokers(here)
    answer = here.ask(ElectLeadersRequest, topic_partitions=None)
    [topic] = answer.replica_election_results
    [partition] = topic.partition_result
    assert (topic.topic, partition.partition_id) == ("orders", 0)
    assert partition.error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    unclean = here.do(ElectLeadersRequest, election_type=ElectionType.UNCLEAN, topic_partitions=None)
    assert unclean.replica_election_results == []


def test_leaders_logs_and_coordinators_are_spread_over_the_brokers(here: Scene) -> None:
    here.other_broker(1)
    here.create("spread", 40)
    leaders = [leader for leader, _ in placed(here, "spread")]
    assert set(leaders) == {0, 1}
    asked = [{"topic": "spread", "partitions": list(range(40))}]
    topics = [each for one in here.do(DescribeLogDirsRequest, topics=asked).results for each in one.topics]
    led = {partition.partition_index for topic in topics for partition in topic.partitions}
    assert led == {index for index, leader in enumerate(leaders) if leader == 0}
    names = [f"group-{number}" for number in range(30)]
    coordinators = here.do(FindCoordinatorRequest, coordinator_keys=names).coordinators
    assert {coordinator.node_id for coordinator in coordinators} == {0, 1}


@pytest.mark.embedded
def test_the_room_of_a_log_directory_is_that_of_redis_from_version_4_on(here: Scene) -> None:
    limit = 1 << 30
    here.raw.config_set("maxmemory", limit)
    try:
        [directory] = here.do(DescribeLogDirsRequest, topics=[]).results
        assert (directory.total_bytes, 0 < directory.usable_bytes < limit) == (limit, True)
        [directory] = here.do(DescribeLogDirsRequest, 3, topics=[]).results
        assert directory.total_bytes == -1
    finally:
        here.raw.config_set("maxmemory", 0)
