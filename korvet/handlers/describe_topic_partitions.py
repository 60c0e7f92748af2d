"""DescribeTopicPartitions (key 75), version 0: topics by name, a page of partitions at a time (KIP-966).

A response ends with the partition that reaches the limit, and its cursor says where the next one begins. No topic is
created by asking. A partition has no leader (-1) only for clients of a listener that its leader does not have.

Errors: INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.cluster.brokers import NOBODY, ReachableBrokers
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, TOPIC, by_handler
from korvet.log.epochs import NO_EPOCH, EpochsNow
from korvet.protocol.messages import describe_topic_partitions as wire
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.topics.registry import Topic, check_name

PARTITIONS_MAX = 2000
"""Partitions of one response at most: Kafka's max.request.partition.size.limit."""


def handle(
    request: wire.DescribeTopicPartitionsRequest, caller: Caller, services: Services
) -> wire.DescribeTopicPartitionsResponse:
    """Describe the topics asked for, or all, from the cursor on."""
    live = services.cluster.refresh().on(caller.session.listener)
    unknown = _refresh(services)
    cursor = request.cursor or wire.Cursor(topic_name="", partition_index=0)
    if request.topics:
        names = sorted({topic.name for topic in request.topics if topic.name >= cursor.topic_name})
    else:
        names = [
            topic.name
            for topic in services.topics.list_cached()
            if topic.name >= cursor.topic_name and caller.may(DESCRIBE, topic.name, log=False)
        ]
    _check_cursor(request, names)
    # At least one: else following the cursor would never end.
    left = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
    described: list[wire.DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    epochs = services.epochs.now()
    for name in names:
        if left == 0:
            next_cursor = wire.Cursor(topic_name=name, partition_index=0)
            break
        if not caller.may(DESCRIBE, name):
            described.append(_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        topic = services.topics.get_cached(name)
        operations = caller.rights.operations(TOPIC, name)
        if topic is None:
            # One that was asked for: this worker knows each of all topics.
            described.append(_failed(name, _why_unknown(name, unknown), operations))
            continue
        first = cursor.partition_index if name == cursor.topic_name else 0
        end = min(first + left, len(topic.partitions))
        described.append(_described(topic, live, first, end, epochs, operations))
        if end < len(topic.partitions):
            next_cursor = wire.Cursor(topic_name=name, partition_index=end)
            break
        left -= max(end - first, 0)
    return wire.DescribeTopicPartitionsResponse(topics=described, next_cursor=next_cursor)


def _refuse(
    request: wire.DescribeTopicPartitionsRequest, _caller: Caller, error: KafkaError
) -> wire.DescribeTopicPartitionsResponse:
    """Answer every topic asked for with the error; if all were asked for, that of the cursor."""
    names = [topic.name for topic in request.topics]
    if not names and request.cursor is not None:
        names = [request.cursor.topic_name]
    return wire.DescribeTopicPartitionsResponse(
        topics=[_failed(name, error.code) for name in names], next_cursor=None
    )


def _refresh(services: Services) -> ErrorCode:
    """Refresh; returns the error of a topic that this worker does not know then."""
    try:
        services.topics.refresh()
    except StorageUnavailableError:
        # As in Metadata: what this worker knows is better than nothing, and for the rest clients retry.
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _check_cursor(request: wire.DescribeTopicPartitionsRequest, names: list[str]) -> None:
    cursor = request.cursor
    if cursor is None:
        return
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor's partition is {cursor.partition_index}")
    if request.topics and cursor.topic_name not in names:
        message = f"the cursor's topic {cursor.topic_name!r} is none of those asked for"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _why_unknown(name: str, unknown: ErrorCode) -> ErrorCode:
    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return unknown


def _described(
    topic: Topic, live: ReachableBrokers, first: int, end: int, epochs: EpochsNow, operations: int
) -> wire.DescribeTopicPartitionsResponseTopic:
    placements = live.placed(topic.name, len(topic.partitions), topic.assignment)[first:end]
    leaders = epochs.of(topic.partitions[first:end])
    return wire.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        partitions=[
            wire.DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if epoch is None else ErrorCode.NONE,
                partition_index=index,
                leader_id=NOBODY if epoch is None else placed.leader,
                leader_epoch=NO_EPOCH if epoch is None else epoch,
                replica_nodes=placed.replicas,
                isr_nodes=placed.live,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=placed.offline,
            )
            for index, (placed, epoch) in enumerate(zip(placements, leaders, strict=True), first)
        ],
        topic_authorized_operations=operations,
    )


def _failed(
    name: str, code: ErrorCode, operations: int = UNKNOWN_OPERATIONS
) -> wire.DescribeTopicPartitionsResponseTopic:
    return wire.DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_authorized_operations=operations
    )


register(handle, _refuse, rights=[by_handler((DESCRIBE, TOPIC))])
