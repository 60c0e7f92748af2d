"""Rows of ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, FeatureUpgradeType
from tests.handlers import apis
from tests.handlers.rows.groups import sharing, stable
from tests.handlers.scene import GROUP, TOPIC, Scene, topic_id
from tests.handlers.table import Fields, Row, Rows, Where

READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
NO_GROUP, UNKNOWN, FENCED, INVALID = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.INVALID_REQUEST,
)


def joining(**fields: Any) -> Fields:
    return {
        "group_id": "billing",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    } | fields


def beating(epoch: int = 1, **fields: Any) -> Fields:
    return {
        "group_id": "billing",
        "member_id": "m",
        "member_epoch": epoch,
        "rebalance_timeout_ms": -1,
    } | fields


def joined(scene: Scene, **fields: Any) -> None:
    scene.do(apis.ConsumerGroupHeartbeat, **joining(**fields))


def static(scene: Scene) -> None:
    joined(scene, instance_id="i")


def refused(code: ErrorCode, request: Fields, before: Any = lambda _scene: None, **fields: Any) -> Row:
    return Row(request, {"error_message": Where(bool), "assignment": None}, code, before=before, **fields)


def lowered(feature: str) -> Any:
    """Return what sets a feature of the cluster to 0."""
    update = {"feature": feature, "upgrade_type": FeatureUpgradeType.SAFE_DOWNGRADE}
    return lambda scene: scene.do(apis.UpdateFeatures, feature_updates=[update])


HEARTBEAT = (
    Row(
        joining(),
        {
            "error_message": None,
            "member_id": "m",
            "member_epoch": 1,
            "heartbeat_interval_ms": 5000,
            "assignment.topic_partitions": {"topic_id": topic_id(), "partitions": [0, 1]},
        },
        rights=[(READ, GROUP), (DESCRIBE, TOPIC)],
    ),
    Row(joining(member_id=""), {"member_id": Where(bool)}, versions=(0, 0)),
    Row(beating(), {"member_epoch": 1, "assignment": None}, before=joined),
    Row(beating(-1), {"member_epoch": -1}, before=joined),
    Row(
        joining(subscribed_topic_names=None, subscribed_topic_regex="ord.*"),
        {"assignment.topic_partitions.partitions": [0, 1]},
        versions=(1, 1),
    ),
    refused(INVALID, joining(member_id=""), versions=(1, 1)),
    refused(INVALID, joining(group_id="")),
    refused(NO_GROUP, beating(5)),
    refused(NO_GROUP, joining(), lambda scene: stable(scene, protocol_type="connect")),
    refused(NO_GROUP, joining(), sharing),
    refused(UNKNOWN, beating(member_id="other"), joined),
    refused(FENCED, beating(9), joined),
    refused(ErrorCode.UNSUPPORTED_ASSIGNOR, joining(server_assignor="own")),
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, joining(subscribed_topic_regex="("), versions=(1, 1)),
    refused(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        joining(member_id="other"),
        joined,
        settings={"group_consumer_max_size": 1},
    ),
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, joining(member_id="other", instance_id="i"), static),
    refused(ErrorCode.FENCED_INSTANCE_ID, beating(member_id="other", instance_id="i"), static),
    refused(ErrorCode.UNSUPPORTED_VERSION, joining(), lowered("group.version")),
)


def described(**fields: Any) -> Fields:
    return {"groups": [{"group_id": "billing"} | fields]}


OWNED = {"topic_partitions": [{"topic_id": topic_id(), "topic_name": "orders", "partitions": [0, 1]}]}
ASKED = {"group_ids": ["billing", "billing"]}


def describing(before: Callable[[Scene], object]) -> list[Row]:
    """Return the rows of every API that describes groups of a kind, to which `before` makes `billing` belong."""
    at, rights = "groups.error_code", [(DESCRIBE, TOPIC), (DESCRIBE, GROUP)]
    reported = described(authorized_operations=Where(lambda given: given > 0))
    refused = described(error_message=Where(bool), members=[])
    return [
        Row(ASKED, before=before, rights=rights, refused=[ErrorCode.GROUP_AUTHORIZATION_FAILED]),
        Row(ASKED | {"include_authorized_operations": True}, reported, before=before),
        *(Row(ASKED, refused, NO_GROUP, at, before=other) for other in (lambda _scene: None, stable)),
        Row({"group_ids": [""]}, error=ErrorCode.INVALID_GROUP_ID, at=at),
    ]


CONSUMER_GROUP_ROWS: Rows = {
    apis.ConsumerGroupHeartbeat: HEARTBEAT,
    apis.ConsumerGroupDescribe: (
        Row(
            ASKED,
            described(
                error_message=None,
                group_state="Stable",
                group_epoch=1,
                assignment_epoch=1,
                assignor_name="uniform",
                members=[
                    {
                        "member_id": "m",
                        "instance_id": "i",
                        "rack_id": None,
                        "member_epoch": 1,
                        "client_id": "wire",
                        "client_host": "/10.0.0.1",
                        "subscribed_topic_names": ["orders"],
                        "subscribed_topic_regex": "",
                        "assignment": OWNED,
                        "target_assignment": OWNED,
                        "member_type": 1,
                    }
                ],
                authorized_operations=-(2**31),
            ),
            before=static,
        ),
        *describing(joined),
        Row(ASKED, described(members=[]), NO_GROUP, "groups.error_code", before=sharing),
    ),
}
