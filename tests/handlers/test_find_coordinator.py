"""DescribeCluster and FindCoordinator by bytes: the brokers, and which of them clients of groups use."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_cluster import ENDPOINT_CONTROLLERS, DescribeClusterRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.metadata import MetadataRequest
from tests.support.broker import Broker
from tests.support.topic_client import Client


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_this_broker_and_the_same_as_in_metadata(
    client: Client, broker: Broker, version: int
) -> None:
    answer = client.call(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
    assert answer.error_code == ErrorCode.NONE
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [(0, *broker.address)]
    assert answer.controller_id in [each.broker_id for each in answer.brokers]
    metadata = client.call(MetadataRequest(topics=[]), 13)
    assert answer.cluster_id == metadata.cluster_id != ""
    assert answer.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize("version", range(3))
def test_every_operation_on_the_cluster_is_allowed_to_who_asks(client: Client, version: int) -> None:
    answer = client.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    create, alter, describe, cluster_action, describe_configs, alter_configs, write = 5, 7, 8, 9, 10, 11, 12
    allowed = (create, alter, describe, cluster_action, describe_configs, alter_configs, write)
    assert answer.cluster_authorized_operations == sum(1 << each for each in allowed)


@pytest.mark.parametrize(
    ("endpoint_type", "code", "message"),
    [
        (ENDPOINT_CONTROLLERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, not a controller"),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "endpoint type 3 is unknown"),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "endpoint type 0 is unknown"),
    ],
)
def test_other_endpoints_than_brokers_are_refused(
    client: Client, endpoint_type: int, code: ErrorCode, message: str
) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=endpoint_type)
    answer = client.call(request, 1)
    assert (answer.error_code, answer.error_message, answer.brokers) == (code, message, [])


GROUP, TRANSACTION, SHARE = range(3)


@pytest.mark.parametrize(
    ("key_type", "version"),
    [*((GROUP, version) for version in range(4)), *((TRANSACTION, version) for version in range(1, 4))],
)
def test_one_key_is_kept_by_this_broker(client: Client, broker: Broker, key_type: int, version: int) -> None:
    answer = client.call(FindCoordinatorRequest(key="key", key_type=key_type), version)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 0, *broker.address)


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
@pytest.mark.parametrize("version", [4, 5, 6])
def test_many_keys_are_answered_each_by_itself(
    client: Client, broker: Broker, version: int, key_type: int
) -> None:
    asked = FindCoordinatorRequest(coordinator_keys=["a", "b", "a"], key_type=key_type)
    answer = client.call(asked, version)
    found = [(each.key, each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators]
    assert found == [(key, 0, 0, *broker.address) for key in ("a", "b", "a")]
    assert client.call(FindCoordinatorRequest(), version).coordinators == []


@pytest.mark.parametrize(
    "key_type",
    [SHARE, 3, -1],
)
def test_what_is_not_supported_is_refused_with_the_reason(client: Client, key_type: int) -> None:
    code = ErrorCode.INVALID_REQUEST
    answer = client.call(FindCoordinatorRequest(key="key", key_type=key_type), 1)
    assert (answer.error_code, answer.node_id) == (code, -1)
    assert answer.error_message
    answer = client.call(FindCoordinatorRequest(coordinator_keys=["key"], key_type=key_type), 6)
    [one] = answer.coordinators
    assert (one.key, one.error_code, one.node_id) == ("key", code, -1)
