"""The errors of group requests while Redis is away: find the coordinator again, not the loss of the group."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers import (
    delete_groups,
    describe_groups,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from korvet.handlers.context import Caller
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_delete import OffsetDeleteRequest
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
def test_every_partition_of_a_commit_has_the_error(error: KafkaError, code: ErrorCode) -> None:
    partition = OffsetCommitRequestPartition(partition_index=3, committed_offset=1, committed_metadata=None)
    topics = [OffsetCommitRequestTopic(name="orders", partitions=[partition])]
    answer = offset_commit.refuse(OffsetCommitRequest(group_id="g", topics=topics), caller(8), error)
    [topic] = answer.topics
    assert (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions]) == (
        "orders",
        [(3, code)],
    )


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


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_administrators_get_the_error(error: KafkaError, code: ErrorCode) -> None:
    described = describe_groups.refuse(DescribeGroupsRequest(groups=["g"]), caller(5), error)
    assert [(each.group_id, each.error_code) for each in described.groups] == [("g", code)]
    deleted = delete_groups.refuse(DeleteGroupsRequest(groups_names=["g", "h"]), caller(2), error)
    assert [(each.group_id, each.error_code) for each in deleted.results] == [("g", code), ("h", code)]
    assert list_groups.refuse(ListGroupsRequest(), caller(5), error).error_code == code
    forgotten = offset_delete.refuse(OffsetDeleteRequest(group_id="g", topics=[]), caller(0), error)
    assert (forgotten.error_code, forgotten.topics) == (code, [])
