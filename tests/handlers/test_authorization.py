"""Rights, for every API by its bytes: without any nothing is done, and with the right alone the request is served.

Requests are served in the test's process, by the handlers of a worker on a real Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, ProtocolError
from korvet.groups.streams.types import GroupStatus
from korvet.handlers.audit import CHANGES
from korvet.handlers.authorization import TABLE
from korvet.handlers.registry import HANDLERS
from korvet.protocol import messages as wire_messages
from korvet.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    api_versions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_topic_partitions,
    elect_leaders,
    find_coordinator,
    init_producer_id,
    list_groups,
    metadata,
    offset_commit,
    offset_fetch,
    update_features,
)
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from korvet.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from korvet.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from korvet.protocol.schema import Message
from korvet.protocol.types import (
    UNKNOWN_OPERATIONS,
    AclOperation,
    AclResourceType,
)
from korvet.protocol.wire import ZERO_UUID
from korvet.security.acls import CLUSTER_NAME
from korvet.security.usage import UsageTable
from korvet.server.worker import Storage, build_apis
from korvet.telemetry import metrics
from tests.handlers.cases import (
    CLUSTER,
    CREATE,
    DESCRIBE,
    GROUP,
    NAMES,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Case,
)
from tests.handlers.consumer_group_rights import JOINING, SHARING
from tests.handlers.kafka_operations import BEYOND, DOCUMENTED, NOT_ASKED
from tests.handlers.quotas import entry
from tests.handlers.rights import (
    ACL_FILTER,
    ANY_FAILED,
    CASES,
    FAILED,
    NO_RIGHTS_NEEDED,
    ROOT,
    Served,
    codes,
    committed,
    fetched,
    produced,
    stored,
)
from tests.handlers.streams_group_rights import joining
from tests.support.dispatching import answer, dispatcher


@pytest.fixture
def served(redis_url: str) -> Iterator[Served]:
    """Give the handlers of a worker on an empty Redis."""
    made = Served(redis_url)
    yield made
    made.storage.close()


def every_case() -> list[Any]:
    return [
        pytest.param(case, id=f"{HANDLERS[key].request.__name__}-{n}")
        for key, cases in CASES.items()
        for n, case in enumerate(cases)
    ]


def test_every_api_has_its_rules_and_a_request_here() -> None:
    assert HANDLERS.keys() <= TABLE.keys()
    with_rules = {key for key in HANDLERS if TABLE[key]}
    assert HANDLERS.keys() - with_rules <= NO_RIGHTS_NEEDED
    assert with_rules <= CASES.keys()


def test_the_rules_are_those_of_kafka() -> None:
    for key, rules in TABLE.items():
        rights = {
            f"{operation.name} {resource.name}".replace("_", "").lower()
            for rule in rules
            for operation, resource in rule.rights
        }
        wanted = DOCUMENTED[key] - NOT_ASKED.get(key, set()) | BEYOND.get(key, set())
        assert rights == {each.lower() for each in wanted}, key


def test_all_of_kafkas_apis_are_in_the_transcription() -> None:
    assert {each.api.key for each in wire_messages.all_messages()} <= DOCUMENTED.keys()
    # 80 to 82 are of controllers, and Kafka's table has no line for them.
    assert set(range(93)) - DOCUMENTED.keys() == {80, 81, 82}


@pytest.mark.parametrize("case", every_case())
def test_without_the_right_nothing_is_done_and_with_it_alone_the_request_is_served(
    served: Served, raw_redis: Any, case: Case
) -> None:
    topic_id = served.create("orders")
    assert not codes(served.call(committed(topic_id), session=ROOT))
    request = case.request(topic_id)
    new_topic = isinstance(request, create_topics.CreateTopicsRequest)
    if new_topic:
        # Of all that is there the topic is what is to be created.
        deletion = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(topic_id=topic_id)], timeout_ms=10_000
        )
        assert not codes(served.call(deletion, session=ROOT))
    refused = case.refused
    if refused is None:
        refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED,) if new_topic else (FAILED[case.rights[0][1]],)
    before = stored(raw_redis)
    assert codes(served.call(request, case.version)) == set(refused)
    assert stored(raw_redis) == before
    for number, (operation, resource) in enumerate(case.rights, start=1):
        served.allow(operation, resource, NAMES[resource])
        left = [FAILED[resource] for _, resource in case.rights[number:]]
        before = stored(raw_redis)
        found = codes(served.call(request, case.version))
        # What all of the request needs is asked for before what its items need.
        assert found & ANY_FAILED in (set(left), set(left[:1]))
        if left:
            assert found <= set(left)
            assert stored(raw_redis) == before


@pytest.mark.parametrize("case", every_case())
def test_a_right_on_something_else_is_none(served: Served, case: Case) -> None:
    topic_id = served.create("orders")
    request = case.request(topic_id)
    without = codes(served.call(request, case.version))
    for _, resource in case.rights:
        if resource is not CLUSTER and not isinstance(request, init_producer_id.InitProducerIdRequest):
            served.allow(AclOperation.ALL, resource, "other")
    assert codes(served.call(request, case.version)) == without


def named(*topics: str) -> Message:
    """Ask for the metadata of topics."""
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=each) for each in topics], allow_auto_topic_creation=True
    )


def test_a_request_is_served_in_part(served: Served) -> None:
    """What is refused is answered beside the rest, which waits for nothing and is not refused as a whole."""
    topic_id, secret_id = served.create("orders"), served.create("secret")
    unknown_id = bytes(15) + b"\1"
    served.allow(READ, TOPIC, "orders")
    served.allow(WRITE, TOPIC, "orders")
    writing: Any = produced(13)(topic_id)
    writing.topic_data += [
        msgspec.structs.replace(writing.topic_data[0], topic_id=each) for each in (secret_id, unknown_id)
    ]
    answered = {each.topic_id: each.partition_responses[0] for each in served.call(writing).responses}
    assert {key: each.error_code for key, each in answered.items()} == {
        topic_id: ErrorCode.NONE,
        secret_id: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        unknown_id: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    reading: Any = fetched(18)(topic_id)
    reading.topics += [
        msgspec.structs.replace(reading.topics[0], topic_id=each) for each in (secret_id, unknown_id)
    ]
    response = served.call(reading)
    assert response.error_code == 0
    found = {each.topic_id: each.partitions[0] for each in response.responses}
    assert found[topic_id].records
    assert found[secret_id].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not found[secret_id].records
    assert found[unknown_id].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_all_partitions_refused_is_no_error_of_the_whole_fetch(served: Served) -> None:
    """Java's consumer takes an error at the top for one to retry, and would never report the missing right."""
    response = served.call(fetched(18)(served.create("orders")))
    assert response.error_code == 0
    assert codes(response.responses) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_a_refused_produce_request_with_acks_0_closes_the_connection(served: Served) -> None:
    topic_id = served.create("orders")
    with pytest.raises(ProtocolError, match="acks 0"):
        served.call(produced(13, acks=0)(topic_id))
    served.allow(WRITE, TOPIC, "orders")
    assert served.call(produced(13, acks=0)(topic_id)) is None


def test_a_transactional_id_needs_a_right_of_its_own(served: Served) -> None:
    topic_id = served.create("orders")
    served.allow(WRITE, TOPIC, "orders")
    begun = init_producer_id.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1)
    searched = find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
    for request in (produced(13, transactional_id="tx")(topic_id), begun, searched):
        assert codes(served.call(request)) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    served.allow(WRITE, TRANSACTIONAL_ID, "tx")
    for request in (produced(13, transactional_id="tx")(topic_id), begun, searched):
        assert ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED not in codes(served.call(request))


def test_what_may_not_be_described_looks_like_what_is_not_there(served: Served) -> None:
    """But by an id, which is not sensitive (KIP-516): as in Kafka."""
    topic_id = served.create("orders")
    for request in (
        named("orders", "nothing"),
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(name=each) for each in ("orders", "nothing")],
            cursor=None,
        ),
        describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=2, resource_name=each, configuration_keys=None
                )
                for each in ("orders", "nothing")
            ]
        ),
        delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=each) for each in ("orders", "nothing")], timeout_ms=1
        ),
    ):
        response = served.call(request)
        results = next(
            each for each in msgspec.structs.astuple(response) if isinstance(each, list) and codes(each)
        )
        there, absent = (
            msgspec.json.encode(each).replace(b"orders", b"nothing")
            for each in sorted(
                (each for each in results if codes(each)),
                key=lambda each: b"orders" in msgspec.json.encode(each),
            )
        )
        assert there == absent
    by_id = served.call(
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(topic_id=topic_id, name=None)])
    ).topics[0]
    assert (by_id.error_code, by_id.name, by_id.topic_id, by_id.partitions) == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        None,
        topic_id,
        [],
    )
    deleted = delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(topic_id=topic_id)], timeout_ms=1
    )
    assert served.call(deleted).responses[0].name is None


@pytest.mark.parametrize(
    ("join", "describe"),
    [(JOINING, ConsumerGroupDescribeRequest), (SHARING, ShareGroupDescribeRequest)],
)
def test_members_of_a_group_are_described_by_the_topics_that_they_have(
    served: Served, join: Any, describe: Any
) -> None:
    """As in Kafka: not by those that they only name."""
    for name in ("orders", "secret"):
        served.create(name)
    joining = msgspec.structs.replace(join, subscribed_topic_names=["orders", "not-there"])
    assert served.call(joining, session=ROOT).error_code == 0
    served.allow(DESCRIBE, GROUP, "billing")
    asked = describe(group_ids=["billing"])
    assert served.call(asked).groups[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    served.allow(DESCRIBE, TOPIC, "orders")
    [found] = served.call(asked).groups
    assert found.error_code == 0
    assert found.members[0].subscribed_topic_names == ["not-there", "orders"]


def test_a_streams_group_is_described_to_those_who_may_describe_its_topics(served: Served) -> None:
    served.create("orders")
    assert served.call(joining("store", sinks=("secret",)), session=ROOT).error_code == 0
    for name in ("orders", "store"):
        served.allow(DESCRIBE, TOPIC, name)
    served.allow(DESCRIBE, GROUP, "billing")
    asked = StreamsGroupDescribeRequest(group_ids=["billing"])
    [found] = served.call(asked).groups
    assert (found.error_code, found.topology, found.members) == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        None,
        [],
    )
    served.allow(DESCRIBE, TOPIC, "secret")
    assert [len(each.members) for each in served.call(asked).groups] == [1]


@pytest.mark.parametrize(("resource", "name"), [(TOPIC, "store"), (CLUSTER, CLUSTER_NAME)])
def test_internal_topics_are_created_for_those_who_may_create_them(
    served: Served, caplog: pytest.LogCaptureFixture, resource: AclResourceType, name: str
) -> None:
    served.create("orders")
    served.allow(READ, GROUP, "billing")
    for topic in ("orders", "store"):
        served.allow(DESCRIBE, TOPIC, topic)

    def missing() -> list[str]:
        answer = served.call(joining("store"))
        code = GroupStatus.MISSING_INTERNAL_TOPICS
        return [each.status_detail for each in answer.status if each.status_code == code]

    refused = "Internal topics are missing: store; Unauthorized to CREATE on topics store."
    assert missing() == missing() == [refused]
    served.allow(CREATE, resource, name)
    with caplog.at_level(logging.INFO, "korvet.audit"):
        assert missing() == ["Internal topics are missing: store"]
    [line] = [vars(each)["korvet_fields"] for each in caplog.records if each.name == "korvet.audit"]
    assert (line["api"], line["done"]) == ("StreamsGroupHeartbeat", "topic store")
    assert missing() == []


def test_lists_of_everything_have_what_may_be_described(served: Served) -> None:
    for name in ("orders", "secret"):
        served.create(name)
        join = msgspec.structs.replace(CASES[11][0].request(b""), group_id=f"g-{name}")
        assert not codes(served.call(join, 3, session=ROOT))
        commit = offset_commit.OffsetCommitRequest(
            group_id="all",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=0, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        assert not codes(served.call(commit, 9, session=ROOT))

    def seen() -> list[set[str]]:
        everything = metadata.MetadataRequest(topics=None)
        pages = describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[], cursor=None)
        offsets = offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id="all", topics=None)]
        )
        [committed_group] = served.call(offsets, 9).groups
        return [
            {each.name for each in served.call(everything).topics},
            {each.name for each in served.call(metadata.MetadataRequest(topics=[]), 0).topics},
            {each.name for each in served.call(pages).topics},
            {each.name for each in committed_group.topics},
            {each.group_id for each in served.call(list_groups.ListGroupsRequest()).groups},
        ]

    assert seen() == [set(), set(), set(), set(), set()]
    served.allow(DESCRIBE, GROUP, "all")
    served.allow(READ, GROUP, "g-orders")
    served.allow(READ, TOPIC, "orders")
    assert seen() == [{"orders"}] * 4 + [{"all", "g-orders"}]
    served.allow(DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert seen()[-1] == {"all", "g-orders", "g-secret"}


def test_metadata_creates_topics_for_those_who_may(served: Served) -> None:
    served.allow(DESCRIBE, TOPIC, "*")
    assert codes(served.call(named("new"))) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert served.apis.log.topics.list_all() == []
    served.allow(CREATE, TOPIC, "new")
    assert not codes(served.call(named("new")))
    assert codes(served.call(named("other"))) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    served.allow(CREATE, CLUSTER, CLUSTER_NAME)
    assert not codes(served.call(named("other")))


def test_who_creates_a_topic_sees_its_configs_with_the_right_to(served: Served) -> None:
    served.allow(CREATE, CLUSTER, CLUSTER_NAME)

    def created(name: str) -> Any:
        topic = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        return served.call(create_topics.CreateTopicsRequest(topics=[topic])).topics[0]

    hidden = created("a")
    assert (hidden.error_code, hidden.topic_config_error_code) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (hidden.num_partitions, hidden.replication_factor, hidden.configs) == (-1, -1, [])
    assert hidden.topic_id != ZERO_UUID
    served.allow(AclOperation.DESCRIBE_CONFIGS, TOPIC, "b")
    shown = created("b")
    assert (shown.topic_config_error_code, shown.num_partitions) == (0, 1)
    assert shown.configs


def test_authorized_operations_are_those_of_the_caller(served: Served) -> None:
    served.create("orders")
    served.allow(READ, TOPIC, "orders")
    served.allow(READ, GROUP, "billing")
    assert not codes(served.call(CASES[11][0].request(b""), 3))
    read_and_describe = 1 << READ | 1 << DESCRIBE

    def operations(*, requested: bool = True) -> list[int]:
        asked = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name="orders")],
            include_topic_authorized_operations=requested,
        )
        clusters = metadata.MetadataRequest(topics=[], include_cluster_authorized_operations=requested)
        described = describe_groups.DescribeGroupsRequest(
            groups=["billing"], include_authorized_operations=requested
        )
        whole = describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=requested)
        return [
            served.call(asked).topics[0].topic_authorized_operations,
            served.call(described).groups[0].authorized_operations,
            served.call(clusters, 10).cluster_authorized_operations,
            served.call(whole).cluster_authorized_operations,
        ]

    assert operations() == [read_and_describe, read_and_describe, 0, 0]
    assert operations(requested=False) == [UNKNOWN_OPERATIONS] * 4
    pages = describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[], cursor=None)
    assert served.call(pages).topics[0].topic_authorized_operations == read_and_describe
    served.allow(DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert operations()[2:] == [1 << DESCRIBE] * 2


def test_rights_that_are_not_known_any_more_refuse_with_an_error_to_retry(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = served.create("orders")
    served.allow(AclOperation.ALL, TOPIC, "*")
    monkeypatch.setattr(served.acls, "_fresh_until", 0.0)
    assert codes(served.call(produced(13)(topic_id))) == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert codes(served.call(named("orders"))) >= {ErrorCode.LEADER_NOT_AVAILABLE}
    assert not codes(served.call(produced(13)(topic_id), session=ROOT))
    assert not codes(served.call(api_versions.ApiVersionsRequest(), 0))


def test_without_an_authorizer_there_are_no_acls(redis_url: str) -> None:
    with closing(Storage.of(Settings(redis_url=redis_url), None)) as storage:
        settings = Settings(redis_url=redis_url, cluster_id="c")
        apis = build_apis(settings, storage, [], None, UsageTable.of(settings, workers=1).worker(0))
        by = dispatcher(storage.redis, HANDLERS, apis)
        for key in (29, 30, 31):
            answered = answer(by, CASES[key][0].request(b""), 3)
            assert codes(answered) == {ErrorCode.SECURITY_DISABLED}


def test_administrative_changes_are_in_the_audit_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "korvet.audit"):
        topic_id = served.create("orders")
        for key in (8, 37, 44, 21, 47, 42, 45, 27, 30, 20):
            for case in CASES[key][:2]:
                served.call(case.request(topic_id), case.version, session=ROOT)
        removal = delete_acls.DeleteAclsFilter(**ACL_FILTER | {"resource_name_filter": None})
        served.call(delete_acls.DeleteAclsRequest(filters=[removal]), session=ROOT)
        served.call(named("made-by-asking"), session=ROOT)
    lines = [vars(each)["korvet_fields"] for each in caplog.records if each.name == "korvet.audit"]
    assert {(each["principal"], each["peer"]) for each in lines} == {(ROOT.principal, ROOT.peer)}
    assert [(each["api"], each.get("done"), each.get("failed")) for each in lines] == [
        ("CreateTopics", "topic orders", None),
        ("CreatePartitions", "topic orders", None),
        ("IncrementalAlterConfigs", "topic orders (retention.ms)", None),
        ("IncrementalAlterConfigs", "broker 0 (log.retention.ms)", None),
        ("DeleteRecords", "orders:0", None),
        ("OffsetDelete", "group billing orders:0", None),
        ("DeleteGroups", "group billing", None),
        ("AlterPartitionReassignments", "orders:0", None),
        *[("WriteTxnMarkers", "abort of producer 1 in orders:0", None)] * 2,
        ("CreateAcls", "ALLOW User:bob from * READ on TOPIC:LITERAL:orders", None),
        ("DeleteTopics", "topic orders", None),
        ("DeleteTopics", None, f"topic {topic_id.hex()} UNKNOWN_TOPIC_ID"),
        ("DeleteAcls", "ALLOW User:bob from * READ on TOPIC:LITERAL:orders", None),
        ("Metadata", "topic made-by-asking", None),
    ]


def test_changes_of_quotas_users_leaders_and_features_are_in_the_audit_log_and_counted(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    counted = metrics.ADMIN_CHANGES.labels("AlterClientQuotas", "done")._value
    before = counted.get()
    served.call(named("orders"), session=ROOT)
    with caplog.at_level(logging.INFO, "korvet.audit"):
        app = (("user", "bob"), ("client-id", None))
        served.call(
            alter_client_quotas.AlterClientQuotasRequest(
                entries=[
                    entry(app, ("producer_byte_rate", 1000.0), ("request_percentage", None)),
                    entry((("user", None), ("user", "bob")), ("producer_byte_rate", 1.0)),
                ],
                validate_only=False,
            ),
            session=ROOT,
        )
        deletions = [
            alter_user_scram_credentials.ScramCredentialDeletion(name="bob", mechanism=each)
            for each in (2, 9)
        ]
        for each in deletions:
            served.call(
                alter_user_scram_credentials.AlterUserScramCredentialsRequest(
                    deletions=[each], upsertions=[]
                ),
                session=ROOT,
            )
        wanted = elect_leaders.TopicPartitions(topic="orders", partitions=[0])
        served.call(
            elect_leaders.ElectLeadersRequest(election_type=0, topic_partitions=[wanted]), session=ROOT
        )
        for level, only in ((2, False), (2, True), (3, False)):
            feature = update_features.FeatureUpdateKey(feature="transaction.version", max_version_level=level)
            served.call(
                update_features.UpdateFeaturesRequest(feature_updates=[feature], validate_only=only),
                session=ROOT,
            )
    lines = [vars(each)["korvet_fields"] for each in caplog.records if each.name == "korvet.audit"]
    assert [(each["api"], each.get("done"), each.get("failed")) for each in lines] == [
        (
            "AlterClientQuotas",
            "default client-id, user bob (producer_byte_rate 1000.0, request_percentage removed)",
            "default user, user bob (producer_byte_rate 1.0) INVALID_REQUEST",
        ),
        ("AlterUserScramCredentials", None, "user bob (SCRAM-SHA-512 deleted) RESOURCE_NOT_FOUND"),
        ("AlterUserScramCredentials", None, "user bob (mechanism 9 deleted) UNSUPPORTED_SASL_MECHANISM"),
        ("ElectLeaders", None, "orders:0 ELECTION_NOT_NEEDED"),
        ("UpdateFeatures", "feature transaction.version (2)", None),
        ("UpdateFeatures", None, "feature transaction.version (3) INVALID_UPDATE_VERSION"),
    ]
    assert counted.get() - before == 1


def test_every_api_that_changes_something_is_in_the_audit_log() -> None:
    """What a right is needed for that neither reads nor writes records.

    Of Metadata and StreamsGroupHeartbeat, which create topics, the line is the handler's.
    """
    no_changes = {READ, WRITE, DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.IDEMPOTENT_WRITE}
    no_changes |= {AclOperation.CLUSTER_ACTION}
    changing = {
        key
        for key, rules in TABLE.items()
        if any(operation not in no_changes for rule in rules for operation, _ in rule.rights)
    }
    assert (
        changing - {metadata.MetadataRequest.api.key, StreamsGroupHeartbeatRequest.api.key} == CHANGES.keys()
    )
