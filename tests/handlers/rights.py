"""Requests with the rights that they need, and a worker's handlers that serve them in the test's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from korvet.config.listeners import DEFAULT_LISTENER
from korvet.config.settings import Settings
from korvet.config.values import Address
from korvet.errors import ErrorCode
from korvet.handlers.authorization import TABLE, Whole
from korvet.handlers.registry import HANDLERS
from korvet.protocol import schema
from korvet.protocol.messages import (
    alter_configs,
    alter_partition_reassignments,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from korvet.protocol.schema import ListOf, Message, Part, PartOf
from korvet.protocol.types import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
    ResourceType,
)
from korvet.protocol.wire import ZERO_UUID, Fixed, Sized
from korvet.security.acls import Acl, AclFilter, ResourcePattern, Rule
from korvet.security.session import Principal, Session
from korvet.security.usage import UsageTable
from korvet.server.net.dispatch import Dispatcher
from korvet.server.serving_lease import ServingLease
from korvet.server.supervisor.ports import Bound
from korvet.server.worker import Storage, build_apis
from tests.handlers.cases import (
    ALTER,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Case,
    always,
)
from tests.handlers.consumer_group_rights import CONSUMER_GROUP_CASES
from tests.handlers.streams_group_rights import STREAMS_GROUP_CASES
from tests.handlers.transaction_rights import TRANSACTION_CASES
from tests.support.batches import batch
from tests.support.dispatching import TIMEOUT_MS, received
from tests.support.wire_client import RESPONSES, decode_response, request_frame

ROOT = Session("10.0.0.1:1", principal=Principal("User", "root"))
ALICE = Session("10.0.0.2:2", principal=Principal("User", "alice"))
FAILED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
P = TypeVar("P", bound=Part)
ANY_FAILED = set(FAILED.values())


class Served:
    """A worker's handlers, and its ACLs."""

    def __init__(self, redis_url: str) -> None:
        settings = Settings(
            redis_url=redis_url,
            cluster_id="c",
            authorizer_class_name="StandardAuthorizer",
            super_users=str(ROOT.principal),
            group_initial_rebalance_delay_ms=0,
        )
        self.storage = Storage.of(settings, None)
        address = Address("127.0.0.1", 9092)
        bound = [Bound(DEFAULT_LISTENER, address, address)]
        self.apis = build_apis(
            settings, self.storage, bound, None, UsageTable.of(settings, workers=1).worker(0)
        )
        assert self.apis.security.authorizer is not None
        self.acls = self.apis.security.authorizer
        self.acls.refresh()
        lease = ServingLease(self.storage.redis, TIMEOUT_MS)
        self.dispatcher = Dispatcher(
            HANDLERS, self.apis, self.apis.log.replicas, lease, self.apis.security.quotas, self.acls
        )

    def call(self, request: Message, version: int | None = None, session: Session = ALICE) -> Any:
        """Serve a request, in its newest version by default; returns the response, None if there is none."""
        version = request.api.versions[1] if version is None else version
        with received(request_frame(request, version)) as frame:
            chunks = self.dispatcher.begin(frame, session).result().chunks
        return decode_response(RESPONSES[request.api.key], version, b"".join(chunks)[4:]) if chunks else None

    def allow(self, operation: AclOperation, resource: AclResourceType, name: str) -> None:
        """Give alice a right."""
        pattern = ResourcePattern(resource, PatternType.LITERAL, name)
        rule = Rule("User:alice", "10.0.0.2", operation, AclPermissionType.ALLOW)
        assert self.acls.add([Acl(pattern, rule)]) == [None]

    def revoke_all(self) -> None:
        """Take all rights away."""
        self.acls.remove(AclFilter())

    def create(self, name: str) -> bytes:
        """Create a topic; returns its id."""
        created = self.call(
            create_topics.CreateTopicsRequest(
                topics=[create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
            ),
            session=ROOT,
        )
        assert created.topics[0].error_code == 0
        topic_id: bytes = created.topics[0].topic_id
        return topic_id


def produced(version: int, acks: int = -1, transactional_id: str | None = None) -> Callable[[bytes], Message]:
    def request(topic_id: bytes) -> Message:
        by_id = version >= 13
        return produce.ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    name="" if by_id else "orders",
                    topic_id=topic_id if by_id else ZERO_UUID,
                    partition_data=[produce.PartitionProduceData(index=0, records=batch(b"a"))],
                )
            ],
        )

    return request


def fetched(version: int) -> Callable[[bytes], Message]:
    def request(topic_id: bytes) -> Message:
        by_id = version >= 13
        return fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_epoch=-1,
            topics=[
                fetch.FetchTopic(
                    topic="" if by_id else "orders",
                    topic_id=topic_id if by_id else ZERO_UUID,
                    partitions=[
                        fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                    ],
                )
            ],
        )

    return request


def committed(topic_id: bytes) -> Message:
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    topic = offset_commit.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
    return offset_commit.OffsetCommitRequest(group_id="billing", topics=[topic])


def config(kind: type[Message], resource_type: int, name: str) -> Callable[[bytes], Message]:
    def request(_id: bytes) -> Message:
        if kind is describe_configs.DescribeConfigsRequest:
            described = describe_configs.DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=None
            )
            return describe_configs.DescribeConfigsRequest(resources=[described])
        if kind is alter_configs.AlterConfigsRequest:
            altered = alter_configs.AlterConfigsResource(
                resource_type=resource_type, resource_name=name, configs=[]
            )
            return alter_configs.AlterConfigsRequest(resources=[altered], validate_only=False)
        change = incremental_alter_configs.AlterableConfig(
            name="retention.ms" if resource_type == ResourceType.TOPIC else "log.retention.ms",
            config_operation=0,
            value="60000",
        )
        changed = incremental_alter_configs.AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=[change]
        )
        return incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[changed], validate_only=False
        )

    return request


def config_cases(kind: type[Message], operation: AclOperation) -> list[Case]:
    return [
        Case(config(kind, ResourceType.TOPIC, "orders"), [(operation, TOPIC)]),
        Case(config(kind, ResourceType.BROKER, "0"), [(operation, CLUSTER)]),
    ]


ACL: dict[str, Any] = {"principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3}
ACL_FILTER: dict[str, Any] = {
    "resource_type_filter": 2,
    "resource_name_filter": "nothing",
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}

CASES: dict[int, list[Case]] = {
    0: [
        Case(produced(13), [(WRITE, TOPIC)]),
        Case(produced(9), [(WRITE, TOPIC)], version=9),
    ],
    1: [Case(fetched(18), [(READ, TOPIC)]), Case(fetched(4), [(READ, TOPIC)], version=4)],
    2: [
        Case(
            always(
                list_offsets.ListOffsetsRequest(
                    replica_id=-1,
                    topics=[
                        list_offsets.ListOffsetsTopic(
                            name="orders",
                            partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                        )
                    ],
                )
            ),
            [(DESCRIBE, TOPIC)],
        )
    ],
    3: [
        Case(
            always(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="orders")])),
            [(DESCRIBE, TOPIC)],
        ),
        Case(
            lambda topic_id: metadata.MetadataRequest(
                topics=[metadata.MetadataRequestTopic(topic_id=topic_id, name=None)]
            ),
            [(DESCRIBE, TOPIC)],
        ),
    ],
    8: [Case(committed, [(READ, GROUP), (READ, TOPIC)])],
    9: [
        Case(
            lambda topic_id: offset_fetch.OffsetFetchRequest(
                groups=[
                    offset_fetch.OffsetFetchRequestGroup(
                        group_id="billing",
                        topics=[
                            offset_fetch.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
                        ],
                    )
                ]
            ),
            [(DESCRIBE, GROUP), (DESCRIBE, TOPIC)],
        ),
    ],
    10: [
        Case(
            always(find_coordinator.FindCoordinatorRequest(coordinator_keys=["billing"])),
            [(DESCRIBE, GROUP)],
        ),
        Case(
            always(find_coordinator.FindCoordinatorRequest(key="billing")),
            [(DESCRIBE, GROUP)],
            version=2,
        ),
    ],
    11: [
        Case(
            always(
                join_group.JoinGroupRequest(
                    group_id="billing",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
                )
            ),
            [(READ, GROUP)],
            version=3,
        )
    ],
    12: [
        Case(
            always(heartbeat.HeartbeatRequest(group_id="billing", generation_id=1, member_id="m")),
            [(READ, GROUP)],
        )
    ],
    13: [Case(always(leave_group.LeaveGroupRequest(group_id="billing")), [(READ, GROUP)])],
    14: [
        Case(
            always(
                sync_group.SyncGroupRequest(
                    group_id="billing",
                    generation_id=1,
                    member_id="m",
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=[],
                )
            ),
            [(READ, GROUP)],
        )
    ],
    15: [Case(always(describe_groups.DescribeGroupsRequest(groups=["billing"])), [(DESCRIBE, GROUP)])],
    16: [Case(always(list_groups.ListGroupsRequest()), [(DESCRIBE, GROUP)], refused=())],
    19: [
        Case(
            always(
                create_topics.CreateTopicsRequest(
                    topics=[create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
                )
            ),
            [(CREATE, kind)],
        )
        for name, kind in (("orders", TOPIC), ("new", CLUSTER))
    ],
    20: [
        Case(
            lambda topic_id: delete_topics.DeleteTopicsRequest(
                topics=[delete_topics.DeleteTopicState(topic_id=topic_id)], timeout_ms=1000
            ),
            [(DELETE, kind)],
            refused=(ErrorCode.TOPIC_AUTHORIZATION_FAILED,),
        )
        for kind in (TOPIC, CLUSTER)
    ]
    + [
        Case(
            always(delete_topics.DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000)),
            [(DELETE, TOPIC)],
            version=5,
        )
    ],
    21: [
        Case(
            always(
                delete_records.DeleteRecordsRequest(
                    timeout_ms=1000,
                    topics=[
                        delete_records.DeleteRecordsTopic(
                            name="orders",
                            partitions=[delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)],
                        )
                    ],
                )
            ),
            [(DELETE, TOPIC)],
        )
    ],
    22: [
        Case(
            always(init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)),
            [right],
            refused=(ErrorCode.CLUSTER_AUTHORIZATION_FAILED,),
        )
        for right in ((WRITE, TOPIC), (AclOperation.IDEMPOTENT_WRITE, CLUSTER))
    ],
    23: [
        Case(
            always(
                offset_for_leader_epoch.OffsetForLeaderEpochRequest(
                    topics=[
                        offset_for_leader_epoch.OffsetForLeaderTopic(
                            topic="orders",
                            partitions=[
                                offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
                            ],
                        )
                    ],
                )
            ),
            [right],
            refused=(ErrorCode.TOPIC_AUTHORIZATION_FAILED,),
        )
        for right in ((DESCRIBE, TOPIC), (AclOperation.CLUSTER_ACTION, CLUSTER))
    ],
    29: [Case(always(describe_acls.DescribeAclsRequest(**ACL_FILTER)), [(DESCRIBE, CLUSTER)])],
    30: [
        Case(
            always(
                create_acls.CreateAclsRequest(
                    creations=[create_acls.AclCreation(resource_type=2, resource_name="orders", **ACL)]
                )
            ),
            [(ALTER, CLUSTER)],
        )
    ],
    31: [
        Case(
            always(delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter(**ACL_FILTER)])),
            [(ALTER, CLUSTER)],
        )
    ],
    32: config_cases(describe_configs.DescribeConfigsRequest, AclOperation.DESCRIBE_CONFIGS),
    33: config_cases(alter_configs.AlterConfigsRequest, AclOperation.ALTER_CONFIGS),
    35: [Case(always(describe_log_dirs.DescribeLogDirsRequest(topics=None)), [(DESCRIBE, CLUSTER)])],
    37: [
        Case(
            always(
                create_partitions.CreatePartitionsRequest(
                    topics=[
                        create_partitions.CreatePartitionsTopic(name="orders", count=2, assignments=None)
                    ],
                    timeout_ms=1000,
                    validate_only=False,
                )
            ),
            [(ALTER, TOPIC)],
        )
    ],
    42: [Case(always(delete_groups.DeleteGroupsRequest(groups_names=["billing"])), [(DELETE, GROUP)])],
    43: [
        Case(
            always(elect_leaders.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1)),
            [(ALTER, CLUSTER)],
        )
    ],
    44: config_cases(incremental_alter_configs.IncrementalAlterConfigsRequest, AclOperation.ALTER_CONFIGS),
    45: [
        Case(
            always(
                alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                    topics=[
                        alter_partition_reassignments.ReassignableTopic(
                            name="orders",
                            partitions=[
                                alter_partition_reassignments.ReassignablePartition(
                                    partition_index=0, replicas=[0]
                                )
                            ],
                        )
                    ]
                )
            ),
            [(ALTER, CLUSTER)],
        )
    ],
    46: [
        Case(
            always(list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None)),
            [(DESCRIBE, CLUSTER)],
        )
    ],
    47: [
        Case(
            always(
                offset_delete.OffsetDeleteRequest(
                    group_id="billing",
                    topics=[
                        offset_delete.OffsetDeleteRequestTopic(
                            name="orders",
                            partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)],
                        )
                    ],
                )
            ),
            [(DELETE, GROUP), (READ, TOPIC)],
        )
    ],
    60: [
        Case(
            always(describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)),
            [],
            refused=(),
        )
    ],
    61: [
        Case(
            always(
                describe_producers.DescribeProducersRequest(
                    topics=[describe_producers.TopicRequest(name="orders", partition_indexes=[0])]
                )
            ),
            [(READ, TOPIC)],
        )
    ],
    74: [
        Case(
            always(list_config_resources.ListConfigResourcesRequest()),
            [(AclOperation.DESCRIBE_CONFIGS, CLUSTER)],
        )
    ],
    75: [
        Case(
            always(
                describe_topic_partitions.DescribeTopicPartitionsRequest(
                    topics=[describe_topic_partitions.TopicRequest(name="orders")], cursor=None
                )
            ),
            [(DESCRIBE, TOPIC)],
        )
    ],
}
"""At least one request for each API that needs rights, but those whose one rule is about the cluster."""


def minimal(kind: type[P]) -> P:
    """Return a request, or a part of one, with one item in each list."""

    def value(wire: object) -> Any:
        match wire:
            case ListOf(element):
                return [value(element)]
            case PartOf(part):
                return minimal(part)
            case Sized("string"):
                return "x"
            case Sized() | Fixed("16s"):
                return bytes(16)
        return 0

    return kind(**{each.name: value(each.kind) for each in schema.fields(kind) if each.required})


for _key, _cases in (TRANSACTION_CASES | CONSUMER_GROUP_CASES | STREAMS_GROUP_CASES).items():
    CASES[_key] = [*CASES.get(_key, ()), *_cases]
for _key in HANDLERS.keys() - CASES.keys():
    for _rule in TABLE.get(_key, ()):
        if isinstance(_rule, Whole) and _rule.types == (CLUSTER,):
            CASES[_key] = [Case(always(minimal(HANDLERS[_key].request)), _rule.rights)]

NO_RIGHTS_NEEDED = {17, 18, 36, 38, 39, 40, 41}


_CODES = ("error_code", "partition_error_code")


def codes(message: Any) -> set[int]:
    """Return all error codes in a response, at any depth."""
    if isinstance(message, msgspec.Struct):
        fields = msgspec.structs.asdict(message)
        found = {value for name, value in fields.items() if name in _CODES and value}
        return found.union(*map(codes, fields.values()))
    return set[int]().union(*map(codes, message)) if isinstance(message, list) else set()


def stored(raw_redis: Any) -> dict[bytes, bytes]:
    """Return all that is in Redis, but what a broker writes about itself."""
    return {
        key: raw_redis.dump(key)
        for key in raw_redis.scan_iter()
        if not key.endswith((b":epoch", b":brokers"))
    }
