"""What requests that change something leave in the audit log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from korvet.handlers.audit import CHANGES
from korvet.handlers.authorization import TABLE
from korvet.handlers.registry import HANDLERS
from korvet.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from korvet.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from korvet.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from korvet.protocol.messages.create_acls import CreateAclsRequest
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest
from korvet.protocol.messages.delete_acls import DeleteAclsRequest
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.delete_records import DeleteRecordsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest
from korvet.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.offset_delete import OffsetDeleteRequest
from korvet.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from korvet.protocol.messages.update_features import UpdateFeaturesRequest
from korvet.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from korvet.protocol.types import AclOperation
from korvet.telemetry import metrics
from tests.handlers.rows import cluster, configs, offsets, records, security, topics, transactions
from tests.handlers.scene import CLUSTER, ROOT, TOPIC, Scene

ACL = "ALLOW User:bob from * READ on TOPIC:LITERAL:orders"
SILENT = {MetadataRequest.api.key, StreamsGroupHeartbeatRequest.api.key}
"""APIs that create topics, whose lines are the handlers'."""


@pytest.fixture
def scene(redis_url: str) -> Iterator[Scene]:
    """Give the handlers of a worker on an empty Redis."""
    with closing(Scene(redis_url)) as made:
        yield made


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None, str | None]]:
    """Return API, what was done and what failed of each line."""
    lines = [vars(record)["korvet_fields"] for record in caplog.records if record.name == "korvet.audit"]
    assert {(line["principal"], line["peer"]) for line in lines} == {(ROOT.principal, ROOT.peer)}
    return [(line["api"], line.get("done"), line.get("failed")) for line in lines]


def test_administrative_changes_are_in_the_audit_log(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        topic_id = scene.create("orders")
        offsets.commit(scene)
        requests: list[tuple[Any, dict[str, Any]]] = [
            (CreatePartitionsRequest, topics.grown(2)),
            (IncrementalAlterConfigsRequest, configs.altered(*configs.RESOURCES[TOPIC])),
            (IncrementalAlterConfigsRequest, configs.altered(*configs.RESOURCES[CLUSTER])),
            (DeleteRecordsRequest, records.deleted(-1)),
            (OffsetDeleteRequest, offsets.forgotten()),
            (DeleteGroupsRequest, {"groups_names": ["billing"]}),
            (AlterPartitionReassignmentsRequest, topics.moved([0])),
            (WriteTxnMarkersRequest, transactions.markers()),
            (CreateAclsRequest, {"creations": [security.CREATION]}),
            (DeleteTopicsRequest, topics.gone(None, topic_id)),
            (DeleteTopicsRequest, topics.gone(None, topic_id)),
            (DeleteAclsRequest, {"filters": [security.EVERYTHING]}),
            (MetadataRequest, topics.described("made-by-asking", allow_auto_topic_creation=True)),
        ]
        for kind, fields in requests:
            scene.ask(kind, **fields)
    assert lines_of(caplog) == [
        ("CreateTopics", "topic orders", None),
        ("CreatePartitions", "topic orders", None),
        ("IncrementalAlterConfigs", "topic orders (retention.ms)", None),
        ("IncrementalAlterConfigs", "broker 0 (log.retention.ms)", None),
        ("DeleteRecords", "orders:0", None),
        ("OffsetDelete", "group billing orders:0", None),
        ("DeleteGroups", "group billing", None),
        ("AlterPartitionReassignments", "orders:0", None),
        ("WriteTxnMarkers", "abort of producer 5 in orders:0", None),
        ("CreateAcls", ACL, None),
        ("DeleteTopics", "topic orders", None),
        ("DeleteTopics", None, f"topic {topic_id.hex()} UNKNOWN_TOPIC_ID"),
        ("DeleteAcls", ACL, None),
        ("Metadata", "topic made-by-asking", None),
    ]


def test_changes_of_quotas_users_leaders_and_features_are_in_the_audit_log_and_counted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    counted = metrics.ADMIN_CHANGES.labels("AlterClientQuotas", "done")._value
    before = counted.get()
    scene.create("orders")
    caplog.clear()

    def entity(*pairs: tuple[str, str | None]) -> list[dict[str, Any]]:
        return [{"entity_type": kind, "entity_name": name} for kind, name in pairs]

    ops = [{"key": "producer_byte_rate", "value": 1000.0}, {"key": "request_percentage", "remove": True}]
    entries = [
        {"entity": entity(("user", "bob"), ("client-id", None)), "ops": ops},
        {"entity": entity(("user", None), ("user", "bob")), "ops": [ops[0] | {"value": 1.0}]},
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        scene.ask(AlterClientQuotasRequest, entries=entries)
        for mechanism in (2, 9):
            scene.ask(AlterUserScramCredentialsRequest, **security.deletion(mechanism))
        scene.ask(ElectLeadersRequest, **topics.elected(0))
        for level, only in ((2, False), (2, True), (3, False)):
            scene.ask(UpdateFeaturesRequest, **cluster.changed(level), validate_only=only)
    assert lines_of(caplog) == [
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
    """What a right is needed for that neither reads nor writes records."""
    no_changes = {
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.CLUSTER_ACTION,
    }
    changing = {
        key
        for key, rules in TABLE.items()
        if any(operation not in no_changes for rule in rules for operation, _ in rule.rights)
    }
    assert changing - SILENT == CHANGES.keys()
    assert changing <= HANDLERS.keys()
