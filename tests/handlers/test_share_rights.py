"""What of a request of a share group is served to those who have rights on some of the topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages import describe_share_group_offsets
from korvet.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from tests.handlers.cases import DESCRIBE, GROUP, READ, TOPIC
from tests.handlers.consumer_group_rights import SHARING, share_fetched
from tests.handlers.rights import ROOT, Served, codes


@pytest.fixture
def served(redis_url: str) -> Iterator[Served]:
    """Give the handlers of a worker on an empty Redis."""
    made = Served(redis_url)
    yield made
    made.storage.close()


def test_a_member_of_a_share_group_gets_nothing_of_a_topic_that_it_may_not_read(served: Served) -> None:
    ids = {name: served.create(name) for name in ("orders", "secret")}
    assert not codes(served.call(SHARING, session=ROOT))
    served.allow(READ, GROUP, "billing")
    served.allow(READ, TOPIC, "orders")
    fetching = share_fetched(ids["orders"])
    fetching.topics += share_fetched(ids["secret"]).topics
    found = served.call(fetching)
    assert {topic.topic_id: each.error_code for topic in found.responses for each in topic.partitions} == {
        ids["secret"]: ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }
    acknowledging = ShareAcknowledgeRequest(
        group_id="billing",
        member_id="m",
        share_session_epoch=1,
        topics=[
            AcknowledgeTopic(
                topic_id=each,
                partitions=[
                    AcknowledgePartition(
                        partition_index=0,
                        acknowledgement_batches=[
                            AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
                        ],
                    )
                ],
            )
            for each in ids.values()
        ],
    )
    found = served.call(acknowledging)
    assert {topic.topic_id: each.error_code for topic in found.responses for each in topic.partitions} == {
        ids["orders"]: ErrorCode.INVALID_RECORD_STATE,
        ids["secret"]: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


def test_where_a_share_group_is_shows_for_topics_that_may_be_described(served: Served) -> None:
    for name in ("orders", "secret"):
        topic_id = served.create(name)
        assert not codes(served.call(SHARING, session=ROOT))
        assert not codes(served.call(share_fetched(topic_id), session=ROOT))
    served.allow(DESCRIBE, GROUP, "billing")
    served.allow(DESCRIBE, TOPIC, "orders")
    asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
        group_id="billing", topics=None
    )
    everything = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(groups=[asked])
    [group] = served.call(everything).groups
    assert [topic.topic_name for topic in group.topics] == ["orders"]
    asked.topics = [
        describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0])
        for name in ("orders", "secret")
    ]
    [group] = served.call(everything).groups
    assert [(each.topic_name, each.partitions[0].error_code) for each in group.topics] == [
        ("orders", 0),
        ("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    assert [each.partitions[0].start_offset >= 0 for each in group.topics] == [True, False]
