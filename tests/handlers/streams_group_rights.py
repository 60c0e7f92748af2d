"""What requests about streams groups need: a heartbeat that joins, and a description."""

from __future__ import annotations

from korvet.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from korvet.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TopicInfo,
    Topology,
)
from tests.handlers.cases import DESCRIBE, GROUP, READ, TOPIC, Case, always


def joining(*changelogs: str, sinks: tuple[str, ...] = ()) -> StreamsGroupHeartbeatRequest:
    """Return the request of a member that joins with a topology that reads topic `orders`."""
    whole = Subtopology(
        subtopology_id="0",
        source_topics=["orders"],
        source_topic_regex=[],
        state_changelog_topics=[
            TopicInfo(name=name, partitions=0, replication_factor=0, topic_configs=[]) for name in changelogs
        ],
        repartition_sink_topics=list(sinks),
        repartition_source_topics=[],
        copartition_groups=[],
    )
    return StreamsGroupHeartbeatRequest(
        group_id="billing",
        member_id="m",
        member_epoch=0,
        endpoint_information_epoch=-1,
        rebalance_timeout_ms=1,
        topology=Topology(epoch=0, subtopologies=[whole]),
        process_id="p",
    )


STREAMS_GROUP_CASES: dict[int, list[Case]] = {
    88: [Case(always(joining()), [(READ, GROUP), (DESCRIBE, TOPIC)])],
    89: [Case(always(StreamsGroupDescribeRequest(group_ids=["billing"])), [(DESCRIBE, GROUP)])],
}
