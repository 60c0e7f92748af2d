"""Rights beyond the table: the rules are Kafka's, and who has some of the rights is served in part."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from korvet.errors import ErrorCode
from korvet.groups.streams.types import GroupStatus
from korvet.handlers.registry import HANDLERS
from korvet.protocol import messages as wire_messages
from korvet.protocol.schema import Message
from korvet.protocol.types import UNKNOWN_OPERATIONS, AclOperation, AclResourceType
from korvet.protocol.wire import ZERO_UUID
from korvet.server.decisions import ProduceDecisions
from korvet.share.types import ACCEPT
from korvet.topics.registry import Topic
from korvet.topics.types import TopicRef
from tests.handlers import apis
from tests.handlers.kafka_operations import BEYOND, DOCUMENTED, NOT_ASKED
from tests.handlers.rows import (
    consumer_groups,
    groups,
    offsets,
    records,
    share,
    streams,
    topics,
    transactions,
)
from tests.handlers.rows.records import DESCRIBE, READ, WRITE
from tests.handlers.scene import ALICE, CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, Scene
from tests.handlers.table import codes
from tests.support.dispatching import connected
from tests.support.refusals import refusal

CREATE = AclOperation.CREATE
FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Create the topics `orders` and `secret`."""
    scene.orders()
    scene.create("secret")
    return scene


def asked(scene: Scene, kind: type[Message], version: int | None = None, **fields: Any) -> Any:
    """Serve a request of alice."""
    return scene.ask(kind, version, ALICE, **fields)


def refused(answer: Any) -> set[ErrorCode]:
    return set[ErrorCode]().union(*codes(answer).values())


def test_the_rules_are_those_of_kafka() -> None:
    for key, handler in HANDLERS.items():
        rights = {
            f"{operation.name} {resource.name}".replace("_", "").lower()
            for rule in handler.rights
            for operation, resource in rule.rights
        }
        wanted = DOCUMENTED[key] - NOT_ASKED.get(key, set()) | BEYOND.get(key, set())
        assert rights == {right.lower() for right in wanted}, key


def test_all_of_kafkas_apis_are_in_the_transcription() -> None:
    assert {kind.api.key for kind in wire_messages.all_messages()} <= DOCUMENTED.keys()
    # 80 to 82 are of controllers, and Kafka's table has no line for them.
    assert set(range(93)) - DOCUMENTED.keys() == {80, 81, 82}


def test_an_empty_name_needs_the_right_too(scene: Scene) -> None:
    scene.allow(READ, GROUP)
    assert refused(asked(scene, apis.Produce, 12, **records.produced(topic=""))) == {FAILED}
    assert refused(asked(scene, apis.OffsetCommit, 9, **offsets.committed(topic=""))) == {FAILED}
    assert refused(asked(scene, apis.DeleteTopics, 6, **topics.gone(""))) == {FAILED}


@pytest.mark.parametrize(
    ("kind", "request_of", "results"),
    [
        (apis.Metadata, topics.described, "topics"),
        (apis.DescribeTopicPartitions, topics.pages, "topics"),
        (
            apis.DescribeConfigs,
            lambda name: {"resources": [{"resource_type": 2, "resource_name": name}]},
            "results",
        ),
        (apis.DeleteTopics, topics.gone, "responses"),
    ],
)
def test_what_may_not_be_described_looks_like_what_is_not_there(
    scene: Scene, kind: type[Message], request_of: Any, results: str
) -> None:
    """But by an id, which is not sensitive (KIP-516): as in Kafka."""
    there, absent = (
        msgspec.json.encode(getattr(asked(scene, kind, **request_of(name)), results))
        for name in ("orders", "absent")
    )
    assert b"orders" in there
    assert there.replace(b"orders", b"absent") == absent
    [by_id] = asked(scene, apis.Metadata, **topics.described(None, ids=scene.ids["orders"])).topics
    assert (by_id.error_code, by_id.name, by_id.topic_id) == (FAILED, None, scene.ids["orders"])
    [deleted] = asked(scene, apis.DeleteTopics, **topics.gone(None, scene.ids["orders"])).responses
    assert deleted.name is None


@pytest.mark.parametrize(
    ("join", "describe", "joining"),
    [
        (apis.ConsumerGroupHeartbeat, apis.ConsumerGroupDescribe, consumer_groups.joining),
        (apis.ShareGroupHeartbeat, apis.ShareGroupDescribe, share.beating),
    ],
)
def test_members_of_a_group_are_described_by_the_topics_that_they_have(
    scene: Scene, join: type[Message], describe: type[Message], joining: Any
) -> None:
    """As in Kafka: not by those that they only name."""
    scene.do(join, **joining(subscribed_topic_names=["orders", "not-there"]))
    scene.allow(DESCRIBE, GROUP)
    scene.allow(DESCRIBE, TOPIC)
    [result] = asked(scene, describe, group_ids=["billing"]).groups
    assert (result.error_code, result.members[0].subscribed_topic_names) == (0, ["not-there", "orders"])


def test_a_streams_group_is_described_to_those_who_may_describe_its_sinks(scene: Scene) -> None:
    sinking = streams.subtopology(repartition_sink_topics=["secret"])
    scene.do(apis.StreamsGroupHeartbeat, **streams.joining(sinking))
    scene.allow(DESCRIBE, TOPIC)
    scene.allow(DESCRIBE, GROUP)
    [result] = asked(scene, apis.StreamsGroupDescribe, group_ids=["billing"]).groups
    assert (result.error_code, result.topology, result.members) == (FAILED, None, [])
    scene.allow(DESCRIBE, TOPIC, "secret")
    [result] = asked(scene, apis.StreamsGroupDescribe, group_ids=["billing"]).groups
    assert len(result.members) == 1


@pytest.mark.parametrize(("resource", "name"), [(TOPIC, "store"), (CLUSTER, "")])
def test_internal_topics_are_created_for_those_who_may_create_them(
    scene: Scene, caplog: pytest.LogCaptureFixture, resource: AclResourceType, name: str
) -> None:
    scene.allow(READ, GROUP)
    for topic in ("orders", "store"):
        scene.allow(DESCRIBE, TOPIC, topic)

    def missing() -> list[str]:
        answer = asked(scene, apis.StreamsGroupHeartbeat, **streams.storing())
        code = GroupStatus.MISSING_INTERNAL_TOPICS
        return [status.status_detail for status in answer.status if status.status_code == code]

    message = "Internal topics are missing: store; Unauthorized to CREATE on topics store."
    assert missing() == missing() == [message]
    scene.allow(CREATE, resource, name)
    caplog.clear()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        assert missing() == ["Internal topics are missing: store"]
    [line] = [vars(record)["korvet_fields"] for record in caplog.records if record.name == "korvet.audit"]
    assert (line["api"], line["done"]) == ("StreamsGroupHeartbeat", "topic store")
    assert missing() == []


def test_lists_of_everything_have_what_may_be_described(scene: Scene) -> None:
    for name in ("orders", "secret"):
        scene.do(apis.JoinGroup, 3, **groups.joining(group_id=f"g-{name}"))
        scene.do(apis.OffsetCommit, **offsets.committed(topic=name, group_id="all"))

    def seen() -> list[set[str]]:
        whole = [{"group_id": "all", "topics": None, "member_epoch": -1}]
        pages = asked(scene, apis.DescribeTopicPartitions, **topics.pages()).topics
        return [
            {topic.name for topic in asked(scene, apis.Metadata, topics=None).topics},
            {topic.name for topic in asked(scene, apis.Metadata, 0, topics=[]).topics},
            {topic.name for topic in pages},
            {topic.name for topic in asked(scene, apis.OffsetFetch, 9, groups=whole).groups[0].topics},
            {group.group_id for group in asked(scene, apis.ListGroups).groups},
        ]

    assert seen() == [set(), set(), set(), set(), set()]
    scene.allow(DESCRIBE, GROUP, "all")
    scene.allow(READ, GROUP, "g-orders")
    scene.allow(READ, TOPIC)
    assert seen() == [{"orders"}] * 4 + [{"all", "g-orders"}]
    scene.allow(DESCRIBE, CLUSTER)
    assert seen()[-1] == {"all", "g-orders", "g-secret"}


def test_who_creates_a_topic_sees_its_configs_with_the_right_to(scene: Scene) -> None:
    scene.allow(CREATE, CLUSTER)
    [hidden] = asked(scene, apis.CreateTopics, **topics.created("a")).topics
    assert (hidden.error_code, hidden.topic_config_error_code) == (0, FAILED)
    assert (hidden.num_partitions, hidden.replication_factor, hidden.configs) == (-1, -1, [])
    assert hidden.topic_id != ZERO_UUID
    scene.allow(AclOperation.DESCRIBE_CONFIGS, TOPIC, "b")
    [shown] = asked(scene, apis.CreateTopics, **topics.created("b")).topics
    assert (shown.topic_config_error_code, shown.num_partitions, bool(shown.configs)) == (0, 3, True)


def test_authorized_operations_are_those_of_the_caller(scene: Scene) -> None:
    groups.stable(scene)
    scene.allow(READ, TOPIC)
    scene.allow(READ, GROUP)
    read_and_describe = 1 << READ | 1 << DESCRIBE

    def operations(*, requested: bool = True) -> list[int]:
        on_topic = topics.described("orders", include_topic_authorized_operations=requested)
        on_cluster = {"include_cluster_authorized_operations": requested}
        on_group = {"groups": ["billing"], "include_authorized_operations": requested}
        return [
            asked(scene, apis.Metadata, **on_topic).topics[0].topic_authorized_operations,
            asked(scene, apis.DescribeGroups, None, **on_group).groups[0].authorized_operations,
            asked(scene, apis.Metadata, 10, topics=[], **on_cluster).cluster_authorized_operations,
            asked(scene, apis.DescribeCluster, endpoint_type=1, **on_cluster).cluster_authorized_operations,
        ]

    assert operations() == [read_and_describe, read_and_describe, 0, 0]
    assert operations(requested=False) == [UNKNOWN_OPERATIONS] * 4
    [topic] = asked(scene, apis.DescribeTopicPartitions, **topics.pages()).topics
    assert topic.topic_authorized_operations == read_and_describe
    scene.allow(DESCRIBE, CLUSTER)
    assert operations()[2:] == [1 << DESCRIBE] * 2


def test_rights_that_are_not_known_any_more_refuse_with_an_error_to_retry(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.allow(AclOperation.ALL, TOPIC, "*")
    monkeypatch.setattr(scene.acls, "_fresh_until", 0.0)
    assert refused(asked(scene, apis.Produce, **records.produced())) == {ErrorCode.KAFKA_STORAGE_ERROR}
    unknown = refused(asked(scene, apis.Metadata, **topics.described("orders")))
    assert unknown >= {ErrorCode.LEADER_NOT_AVAILABLE}
    scene.do(apis.Produce, **records.produced())
    assert not codes(asked(scene, apis.ApiVersions, 0))


def test_a_member_of_a_share_group_gets_nothing_of_a_topic_that_it_may_not_read(scene: Scene) -> None:
    scene.do(apis.ShareGroupHeartbeat, **share.beating())
    scene.allow(READ, GROUP)
    scene.allow(READ, TOPIC)
    acks = [(3, 3, ACCEPT)]
    both = [share.place()[0], share.place(topic="secret")[0]]
    acknowledged = [share.place(acks=acks)[0], share.place(topic="secret", acks=acks)[0]]
    answer = asked(scene, apis.ShareFetch, **share.fetching(topics=both))
    assert {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses} == {
        scene.ids["orders"]: ErrorCode.NONE,
        scene.ids["secret"]: FAILED,
    }
    answer = asked(scene, apis.ShareAcknowledge, **share.acknowledging() | {"topics": acknowledged})
    assert {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses} == {
        scene.ids["orders"]: ErrorCode.INVALID_RECORD_STATE,
        scene.ids["secret"]: FAILED,
    }


def test_where_a_share_group_is_shows_for_topics_that_may_be_described(scene: Scene) -> None:
    scene.do(apis.ShareGroupHeartbeat, **share.beating())
    both = [share.place()[0], share.place(topic="secret")[0]]
    scene.do(apis.ShareFetch, **share.fetching(topics=both))
    scene.allow(DESCRIBE, GROUP)
    scene.allow(DESCRIBE, TOPIC)
    whole = [{"group_id": "billing", "topics": None}]
    [group] = asked(scene, apis.DescribeShareGroupOffsets, groups=whole).groups
    assert [topic.topic_name for topic in group.topics] == ["orders"]
    [group] = asked(scene, apis.DescribeShareGroupOffsets, **share.offsets(topic="secret")).groups
    [hidden] = group.topics[0].partitions
    assert (hidden.error_code, hidden.start_offset) == (FAILED, -1)


def test_none_joins_a_transaction_if_a_topic_may_not_be_written_whether_it_exists_or_not(
    scene: Scene,
) -> None:
    scene.allow(WRITE, TRANSACTIONAL_ID)
    scene.allow(WRITE, TOPIC)
    scene.init_producer()
    joining = transactions.joins(transactions.BY)
    names = ("orders", "secret", "missing")
    joining["v3_and_below_topics"] = [{"name": name, "partitions": [0]} for name in names]
    results = asked(scene, apis.AddPartitionsToTxn, 3, **joining).results_by_topic_v3_and_below
    result = [partition.partition_error_code for topic in results for partition in topic.results_by_partition]
    assert result == [ErrorCode.OPERATION_NOT_ATTEMPTED, FAILED, FAILED]
    [state] = scene.do(apis.DescribeTransactions, transactional_ids=["tx"]).transaction_states
    assert (state.transaction_state, state.topics) == ("Empty", [])


def test_transactions_and_their_topics_are_shown_to_those_who_may_describe_them(scene: Scene) -> None:
    scene.init_producer("other")
    scene.init_producer()
    for name in ("orders", "secret"):
        scene.do(apis.AddPartitionsToTxn, 3, **transactions.joins(transactions.BY, topic=name))
    scene.allow(DESCRIBE, TRANSACTIONAL_ID)
    scene.allow(DESCRIBE, TOPIC)
    names = ["tx", "other"]
    states = asked(scene, apis.DescribeTransactions, transactional_ids=names).transaction_states
    result = {state.transactional_id: state for state in states}
    assert [topic.topic for topic in result["tx"].topics] == ["orders"]
    assert result["other"].error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    listed = asked(scene, apis.ListTransactions).transaction_states
    assert [state.transactional_id for state in listed] == ["tx"]
    assert len(scene.do(apis.ListTransactions).transaction_states) == len(names)


def test_a_right_that_is_revoked_while_its_topic_is_looked_up_is_none(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = scene.ids["orders"]
    scene.allow(WRITE, TOPIC)
    decisions, registry = scene.services.appends.clients, scene.services.topics
    assert isinstance(decisions, ProduceDecisions)
    resolve = registry.resolve
    with connected(scene.dispatcher, scene.sockets, session=ALICE) as (client, _):
        assert decisions.decide(client, ("right", "topic", "orders")) is None

        def slowly(ref: TopicRef) -> Topic:
            scene.revoke_all()
            return resolve(ref)

        monkeypatch.setattr(registry, "resolve", slowly)
        assert refusal(decisions.decide, client, ("right", "topic id", topic_id)) == FAILED
