"""What requests about groups of the consumer protocol and share groups need: a heartbeat, and a description."""

from __future__ import annotations

from korvet.protocol.messages import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    describe_share_group_offsets,
    share_fetch,
)
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from korvet.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from korvet.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from korvet.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.handlers.cases import DELETE, DESCRIBE, GROUP, READ, TOPIC, Case, always

JOINING = ConsumerGroupHeartbeatRequest(
    group_id="billing",
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1,
    subscribed_topic_names=["orders"],
    topic_partitions=[],
)

SHARING = ShareGroupHeartbeatRequest(
    group_id="billing", member_id="m", member_epoch=0, subscribed_topic_names=["orders"]
)

ACKNOWLEDGING = ShareAcknowledgeRequest(group_id="billing", member_id="m", share_session_epoch=1, topics=[])
DESCRIBING = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
    groups=[
        describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(
            group_id="billing",
            topics=[
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(
                    topic_name="orders", partitions=[0]
                )
            ],
        )
    ]
)
MOVING = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
    group_id="billing",
    topics=[
        alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
            topic_name="orders",
            partitions=[
                alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(
                    partition_index=0, start_offset=0
                )
            ],
        )
    ],
)
FORGETTING = delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
    group_id="billing",
    topics=[delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name="orders")],
)


def share_fetched(topic_id: bytes) -> share_fetch.ShareFetchRequest:
    partition = share_fetch.FetchPartition(partition_index=0, acknowledgement_batches=[])
    return share_fetch.ShareFetchRequest(
        group_id="billing",
        member_id="m",
        share_session_epoch=0,
        max_wait_ms=0,
        min_bytes=1,
        max_records=1,
        batch_size=1,
        topics=[share_fetch.FetchTopic(topic_id=topic_id, partitions=[partition])],
        forgotten_topics_data=[],
    )


CONSUMER_GROUP_CASES: dict[int, list[Case]] = {
    68: [Case(always(JOINING), [(READ, GROUP), (DESCRIBE, TOPIC)])],
    69: [Case(always(ConsumerGroupDescribeRequest(group_ids=["billing"])), [(DESCRIBE, GROUP)])],
    76: [Case(always(SHARING), [(READ, GROUP), (DESCRIBE, TOPIC)])],
    77: [Case(always(ShareGroupDescribeRequest(group_ids=["billing"])), [(DESCRIBE, GROUP)])],
    78: [Case(share_fetched, [(READ, GROUP), (READ, TOPIC)])],
    79: [Case(always(ACKNOWLEDGING), [(READ, GROUP)])],  # without a session no topic is looked at
    90: [Case(always(DESCRIBING), [(DESCRIBE, GROUP), (DESCRIBE, TOPIC)])],
    91: [Case(always(MOVING), [(READ, GROUP), (READ, TOPIC)])],
    92: [Case(always(FORGETTING), [(DELETE, GROUP), (READ, TOPIC)])],
}
