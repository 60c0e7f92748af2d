"""The errors of group requests while Redis is away: find the coordinator again, not the loss of the group."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers import offset_fetch
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

ERRORS = [
    (StorageUnavailableError("Redis is away"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a row is malformed"), ErrorCode.KAFKA_STORAGE_ERROR),
    (KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), ErrorCode.UNKNOWN_MEMBER_ID),
]


def caller(version: int) -> Caller:
    return Caller("client", "127.0.0.1:1", version)


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_only_a_redis_that_is_away_is_another_code_for_groups(error: KafkaError, code: ErrorCode) -> None:
    assert group_error_code(error) == code


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_offset_fetch_carries_its_error_where_its_version_can(error: KafkaError, code: ErrorCode) -> None:
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[3])]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    first = offset_fetch.refuse(request, caller(1), error)
    assert [each.error_code for each in first.topics[0].partitions] == [code]
    later = offset_fetch.refuse(request, caller(2), error)
    assert (later.error_code, later.topics) == (code, [])
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "h")]
    newest = offset_fetch.refuse(OffsetFetchRequest(groups=groups), caller(10), error)
    assert [(each.group_id, each.error_code) for each in newest.groups] == [("g", code), ("h", code)]
