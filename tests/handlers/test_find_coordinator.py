"""FindCoordinator by bytes: this broker keeps every group."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.support.broker import Broker
from tests.support.topic_client import Client

TRANSACTION, SHARE = 1, 2


@pytest.mark.parametrize("version", range(4))
def test_one_group_is_kept_by_this_broker(client: Client, broker: Broker, version: int) -> None:
    answer = client.call(FindCoordinatorRequest(key="group"), version)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 0, *broker.address)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_many_groups_are_answered_each_under_its_key(client: Client, broker: Broker, version: int) -> None:
    answer = client.call(FindCoordinatorRequest(coordinator_keys=["a", "b", "a"]), version)
    found = [(each.key, each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators]
    assert found == [(key, 0, 0, *broker.address) for key in ("a", "b", "a")]
    assert client.call(FindCoordinatorRequest(), version).coordinators == []


@pytest.mark.parametrize("key_type", [TRANSACTION, SHARE, 3, -1])
def test_what_is_not_supported_is_an_invalid_request_and_never_a_node(client: Client, key_type: int) -> None:
    answer = client.call(FindCoordinatorRequest(key="key", key_type=key_type), 1)
    assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert answer.error_message
    answer = client.call(FindCoordinatorRequest(coordinator_keys=["key"], key_type=key_type), 6)
    [one] = answer.coordinators
    assert (one.key, one.error_code, one.node_id) == ("key", ErrorCode.INVALID_REQUEST, -1)
