"""DescribeQuorum (key 55), versions 0-2: the brokers as the voters of Kafka's metadata log (KIP-595).

Metadata lies in Redis, where all brokers read it: each live one is a voter without lag, and the controller leads. The
log ends after the newest change of topics, settings, features, users and rights. Any broker answers.

Errors: UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.clock import CLOCK
from korvet.cluster.brokers import BrokerAddress
from korvet.errors import ErrorCode
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, on_cluster
from korvet.protocol.messages import describe_quorum as wire

METADATA_TOPIC = "__cluster_metadata"
NODES_VERSION_FIRST = 2  # KIP-853
_MESSAGE = "This server does not host this topic-partition."


def handle(
    request: wire.DescribeQuorumRequest, caller: Caller, services: Services
) -> wire.DescribeQuorumResponse:
    """Describe the quorum; a request for anything but its one partition fails for each partition, as in Kafka."""
    asked = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions])
        for topic in request.topics
    ]
    if asked != [(METADATA_TOPIC, [0])]:
        topics = [
            wire.TopicData(topic_name=name, partitions=[_unknown(index) for index in indexes])
            for name, indexes in asked
        ]
        return wire.DescribeQuorumResponse(error_message=None, topics=topics)
    live = services.cluster.refresh().on(caller.session.listener)
    services.topics.refresh()
    end_offset, now_ms = services.topics.epoch, int(CLOCK.time() * 1000)
    partition = wire.PartitionData(
        partition_index=0,
        error_message=None,
        leader_id=live.controller_id,
        leader_epoch=live.controller_epoch,
        high_watermark=end_offset,
        current_voters=[
            wire.ReplicaState(
                replica_id=broker.broker_id,
                log_end_offset=end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for broker in live.all
        ],
    )
    response = wire.DescribeQuorumResponse(
        error_message=None, topics=[wire.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
    if caller.version >= NODES_VERSION_FIRST:
        response.nodes = [_node(broker, caller.session.listener) for broker in live.all]
    return response


def _node(broker: BrokerAddress, listener: str) -> wire.Node:
    # Java's client takes names of listeners in capitals only.
    address = wire.Listener(name=listener.upper(), host=broker.host, port=broker.port)
    return wire.Node(node_id=broker.broker_id, listeners=[address])


def _unknown(index: int) -> wire.PartitionData:
    return wire.PartitionData(
        partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=_MESSAGE
    )


register(handle, refuse_whole(wire.DescribeQuorumResponse), rights=[on_cluster(DESCRIBE)])
