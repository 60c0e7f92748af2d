"""What requests that change something leave in the audit log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from korvet.handlers.registry import HANDLERS
from korvet.protocol.types import AclOperation
from korvet.telemetry import metrics
from tests.handlers import apis
from tests.handlers.rows import cluster, configs, offsets, records, security, topics, transactions
from tests.handlers.scene import CLUSTER, ROOT, TOPIC, Scene
from tests.handlers.table import Fields

ACL = "ALLOW User:bob from * READ on TOPIC:LITERAL:orders"
SILENT = {apis.Metadata.api.key, apis.StreamsGroupHeartbeat.api.key}
"""APIs that create topics, whose lines are the handlers'."""


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

        def altered(kind: Any) -> Fields:
            return configs.altered(*configs.RESOURCES[kind])

        changes: list[tuple[Any, Fields, str | None, str | None]] = [
            (apis.CreatePartitions, topics.grown(2), "topic orders", None),
            (apis.IncrementalAlterConfigs, altered(TOPIC), "topic orders (retention.ms)", None),
            (apis.IncrementalAlterConfigs, altered(CLUSTER), "broker 0 (log.retention.ms)", None),
            (apis.DeleteRecords, records.deleted(-1), "orders:0", None),
            (apis.OffsetDelete, offsets.forgotten(), "group billing orders:0", None),
            (apis.DeleteGroups, {"groups_names": ["billing"]}, "group billing", None),
            (apis.AlterPartitionReassignments, topics.moved([0]), "orders:0", None),
            (apis.WriteTxnMarkers, transactions.markers(), "abort of producer 5 in orders:0", None),
            (apis.CreateAcls, {"creations": [security.CREATION]}, ACL, None),
            (apis.DeleteTopics, topics.gone(None, topic_id), "topic orders", None),
            (
                apis.DeleteTopics,
                topics.gone(None, topic_id),
                None,
                f"topic {topic_id.hex()} UNKNOWN_TOPIC_ID",
            ),
            (apis.DeleteAcls, {"filters": [security.EVERYTHING]}, ACL, None),
            (apis.Metadata, topics.described("new", allow_auto_topic_creation=True), "topic new", None),
        ]
        for kind, fields, _, _ in changes:
            scene.ask(kind, **fields)
    said = [(kind.__name__.removesuffix("Request"), done, failed) for kind, _, done, failed in changes]
    assert lines_of(caplog) == [("CreateTopics", "topic orders", None), *said]


def test_changes_of_quotas_users_leaders_and_features_are_in_the_audit_log_and_counted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    counted = metrics.ADMIN_CHANGES.labels("AlterClientQuotas", "done")._value
    before = counted.get()
    scene.create("orders")
    caplog.clear()

    ops = [{"key": "producer_byte_rate", "value": 1000.0}, {"key": "request_percentage", "remove": True}]
    entries = [
        {"entity": security.entity(("user", "bob"), ("client-id", None)), "ops": ops},
        {"entity": security.entity(("user", None), ("user", "bob")), "ops": [ops[0] | {"value": 1.0}]},
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        scene.ask(apis.AlterClientQuotas, entries=entries)
        for mechanism in (2, 9):
            scene.ask(apis.AlterUserScramCredentials, **security.deletion(mechanism))
        scene.ask(apis.ElectLeaders, **topics.elected(0))
        for level, only in ((2, False), (2, True), (3, False)):
            scene.ask(apis.UpdateFeatures, **cluster.changed(level), validate_only=only)
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
        for key, handler in HANDLERS.items()
        if any(operation not in no_changes for rule in handler.rights for operation, _ in rule.rights)
    }
    noted = {key for key, handler in HANDLERS.items() if handler.changes is not None}
    assert changing - SILENT == noted
