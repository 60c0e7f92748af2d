"""What requests about groups of the consumer protocol need: a heartbeat that joins, and a description."""

from __future__ import annotations

from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.handlers.cases import DESCRIBE, GROUP, READ, TOPIC, Case, always

JOINING = ConsumerGroupHeartbeatRequest(
    group_id="billing",
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1,
    subscribed_topic_names=["orders"],
    topic_partitions=[],
)

CONSUMER_GROUP_CASES: dict[int, list[Case]] = {
    68: [Case(always(JOINING), [(READ, GROUP), (DESCRIBE, TOPIC)])],
    69: [Case(always(ConsumerGroupDescribeRequest(group_ids=["billing"])), [(DESCRIBE, GROUP)])],
}
