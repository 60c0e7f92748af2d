"""AlterPartitionReassignments (key 45), versions 0-1: an administrator moves partitions to other brokers (KIP-455).

A move is a new order of preference and copies nothing: it is done when it is answered. So of the timeout it counts only
that there is one, and there is never a move to cancel (NO_REASSIGNMENT_IN_PROGRESS). A request
without topics has Kafka's default answer: the replication factor may change.

Errors: INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, REQUEST_TIMED_OUT,
UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

from korvet.cluster.brokers import LiveBrokers
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers.audit import partitions_changed
from korvet.handlers.common import error_fields, require_time
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER, on_cluster
from korvet.protocol.messages import alter_partition_reassignments as wire
from korvet.topics.placement import Target, reassign


def handle(
    request: wire.AlterPartitionReassignmentsRequest, _caller: Caller, services: Services
) -> wire.AlterPartitionReassignmentsResponse:
    """Move the partitions, those of a topic in one step; the failure of one leaves the others unaffected."""
    if not request.topics:
        return wire.AlterPartitionReassignmentsResponse(error_message=None, responses=[])
    require_time(request.timeout_ms)
    live = services.cluster.refresh()
    services.topics.refresh()
    factor_may_change = request.allow_replication_factor_change
    targets: dict[str, list[Target]] = {}
    for topic in request.topics:
        wanted = [Target(partition.partition_index, partition.replicas) for partition in topic.partitions]
        targets.setdefault(topic.name, []).extend(wanted)
    outcomes = {
        name: iter(_move(name, moves, live, services, factor_may_change=factor_may_change))
        for name, moves in targets.items()
    }
    return wire.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=factor_may_change,
        error_message=None,
        responses=[_answer(topic, outcomes[topic.name]) for topic in request.topics],
    )


def _move(
    name: str, targets: Sequence[Target], live: LiveBrokers, services: Services, *, factor_may_change: bool
) -> Sequence[KafkaError | None]:
    topic = services.topics.get_cached(name)
    if topic is None:
        error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return [error] * len(targets)
    try:
        return reassign(services.topics, topic, targets, live, factor_may_change=factor_may_change)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        return [error.without_frames()] * len(targets)


def _answer(
    topic: wire.ReassignableTopic, outcomes: Iterator[KafkaError | None]
) -> wire.ReassignableTopicResponse:
    """Answer for these partitions with the next of the outcomes, which are those of all of the topic in the request."""
    answers = [
        wire.ReassignablePartitionResponse(partition_index=partition.partition_index, **error_fields(outcome))
        for partition, outcome in zip(topic.partitions, outcomes, strict=False)
    ]
    return wire.ReassignableTopicResponse(name=topic.name, partitions=answers)


register(
    handle,
    lambda request, _caller, error: wire.AlterPartitionReassignmentsResponse(
        **error_fields(error),
        responses=[_answer(topic, repeat(error)) for topic in request.topics],
    ),
    rights=[on_cluster(ALTER)],
    changes=lambda _request, response: partitions_changed(response.responses),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
