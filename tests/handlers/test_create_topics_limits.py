"""CreateTopics by bytes: how many partitions a topic may have, and the topics of a request together."""

from __future__ import annotations

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_topics import CreatableTopic
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from tests.handlers.test_create_topics import code, create, partitions_of, spec
from tests.support.topic_client import Client


@pytest.mark.parametrize("partitions", [0, -2, 2**31 - 1])
def test_a_count_of_partitions_that_cannot_be_is_refused(client: Client, topic: str, partitions: int) -> None:
    assert code(client, topic, partitions) == ErrorCode.INVALID_PARTITIONS


def test_the_most_partitions_are_made_and_deleted_by_one_request(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    assert code(client, topic, 10_000) == ErrorCode.NONE
    assert partitions_of(client, topic) == 10_000
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=60_000)
    [deleted] = client.call(request, 5).responses
    assert deleted.error_code == ErrorCode.NONE
    assert list(stored.scan_iter(f"*korvet:{topic}:*", count=50_000)) == []
    assert code(client, topic, 10_001) == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", [2, 7])
def test_more_partitions_than_one_topic_may_have_are_made_by_no_request(
    client: Client, topic: str, stored: redis.Redis, version: int, *, validate_only: bool
) -> None:
    def codes(*specs: CreatableTopic) -> list[ErrorCode]:
        found = create(client, *specs, version=version, validate_only=validate_only)
        assert all(bool(each.error_message) == bool(each.error_code) for each in found)
        return [ErrorCode(each.error_code) for each in found]

    large, by_default = spec(f"{topic}-0", 9_998), spec(f"{topic}-1", -1, -1)
    assigned = spec(f"{topic}-2", -1, -1, assignments=[(0, [0]), (1, [0])])
    assert codes(large, by_default, assigned) == [ErrorCode.POLICY_VIOLATION] * 3
    assert not any(stored.hexists("korvet:topics", f"{topic}-{n}") for n in range(3))
    # What is refused by itself counts for nothing.
    none, too_large = spec(f"{topic}-3", -2), spec(f"{topic}-4", 10_001)
    assert codes(none, too_large, by_default, assigned) == [
        *[ErrorCode.INVALID_PARTITIONS] * 2,
        *[ErrorCode.NONE] * 2,
    ]
