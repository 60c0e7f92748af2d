"""StreamsGroupHeartbeat (key 88), version 0: a member of a streams group joins, stays, or leaves (KIP-1071).

The topics of its topology must be ones that it may describe. Internal topics that are missing are created, if the
caller has the right to; the status says so, and the members get their tasks by a later heartbeat.

Errors: FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY,
UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from korvet.errors import ErrorCode, KafkaError, refuse_first
from korvet.groups.streams.types import (
    GroupStatus,
    InternalTopic,
    MemberTasks,
    StreamsAnswer,
    StreamsReport,
    StreamsTopology,
    Subtopology,
    Tasks,
)
from korvet.handlers.common import refuse_whole
from korvet.handlers.groups import (
    joins_or_leaves,
    require_streams_groups,
    require_visible,
    take_heartbeat,
    task_ids,
)
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import CLUSTER, CREATE, DESCRIBE, READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import streams_group_heartbeat as wire
from korvet.security import audit
from korvet.topics.registry import PARTITIONS_MAX, TopicSpec, check_name
from korvet.topics.types import KAFKA_TOPICS

UNCHANGED = -1

TOPICS_CREATED_MAX = 100
"""Topics that one request creates: each takes some round trips to Redis."""

FAILURES_MAX = 3
"""Topics that could not be created of which the status says why."""


def handle(
    request: wire.StreamsGroupHeartbeatRequest, caller: Caller, services: Services
) -> wire.StreamsGroupHeartbeatResponse:
    require_streams_groups(services.features)
    if request.topology is not None:
        _check_topics(request.topology, caller)
    _check_supported(request)
    topology = None if request.topology is None else _topology(request.topology)
    endpoint, tags = request.user_endpoint, request.client_tags
    unchanged = request.rebalance_timeout_ms == UNCHANGED
    report = StreamsReport(
        group=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=caller.client_id or "",
        client_host=caller.client_host,
        endpoints=request.endpoint_information_epoch,
        rack=request.rack_id,
        rebalance_ms=None if unchanged else request.rebalance_timeout_ms,
        topology=topology,
        tasks=_reported(request),
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags=None if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
        asks_to_end=request.shutdown_application,
    )
    groups = services.groups.streams
    answer = take_heartbeat(
        request, partial(groups.renew, report), partial(groups.heartbeat, report), services.replicas
    )
    return _response(answer, _create_missing(answer, caller, services))


def _check_supported(request: wire.StreamsGroupHeartbeatRequest) -> None:
    """Raise KafkaError INVALID_REQUEST for what Kafka 4.2 does not support either, and tasks of which some are null."""
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    subtopologies = request.topology.subtopologies if request.topology else ()
    has_regex = any(subtopology.source_topic_regex for subtopology in subtopologies)
    refuse_first(
        ErrorCode.INVALID_REQUEST,
        (request.instance_id is not None, "Static membership is not yet supported."),
        (request.task_offsets is not None, "TaskOffsets are not supported yet."),
        (request.task_end_offsets is not None, "TaskEndOffsets are not supported yet."),
        (bool(request.warmup_tasks), "WarmupTasks are not supported yet."),
        (has_regex, "Regular expressions for source topics are not supported yet."),
        (len({kind is None for kind in tasks}) > 1, "If one task-type is non-null, all must be non-null."),
    )


def _check_topics(topology: wire.Topology, caller: Caller) -> None:
    """Raise KafkaError STREAMS_INVALID_TOPOLOGY for names that no topics may have, TOPIC_AUTHORIZATION_FAILED."""
    topics = set[str]()
    for part in topology.subtopologies:
        topics.update(part.source_topics, part.repartition_sink_topics)
        topics.update(topic.name for topic in (*part.repartition_source_topics, *part.state_changelog_topics))
    names = sorted(topics)
    if prohibited := [name for name in names if name in KAFKA_TOPICS]:
        message = (
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited."
        )
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
    if invalid := [name for name in names if not _is_valid(name)]:
        message = f"Topic names {','.join(invalid)} are not valid topic names."
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
    require_visible(names, caller)


def _is_valid(name: str) -> bool:
    try:
        check_name(name)
    except KafkaError:
        return False
    return True


def _topology(topology: wire.Topology) -> StreamsTopology:
    ids = {subtopology.subtopology_id for subtopology in topology.subtopologies}
    if len(ids) < len(topology.subtopologies):
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, "Two subtopologies have the same id.")
    by_id = sorted(topology.subtopologies, key=lambda subtopology: subtopology.subtopology_id)
    return StreamsTopology(topology.epoch, tuple(map(_subtopology, by_id)))


def _subtopology(subtopology: wire.Subtopology) -> Subtopology:
    return Subtopology(
        id=subtopology.subtopology_id,
        sources=tuple(subtopology.source_topics),
        repartition_sinks=tuple(subtopology.repartition_sink_topics),
        repartition_sources=tuple(map(_internal_topic, subtopology.repartition_source_topics)),
        changelogs=tuple(map(_internal_topic, subtopology.state_changelog_topics)),
        copartitioned=tuple(_copartitioned(group, subtopology) for group in subtopology.copartition_groups),
    )


def _internal_topic(topic: wire.TopicInfo) -> InternalTopic:
    configs = tuple((config.key, config.value) for config in topic.topic_configs)
    return InternalTopic(topic.name, topic.partitions, topic.replication_factor, configs)


def _copartitioned(group: wire.CopartitionGroup, subtopology: wire.Subtopology) -> tuple[str, ...]:
    repartition = [topic.name for topic in subtopology.repartition_source_topics]
    topics = [(subtopology.source_topics, index) for index in group.source_topics]
    topics += [(repartition, index) for index in group.repartition_source_topics]
    if not all(0 <= index < len(names) for names, index in topics):
        message = (
            f"A copartition group of subtopology {subtopology.subtopology_id} names topics that it has not."
        )
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
    return tuple(names[index] for names, index in topics)


def _reported(request: wire.StreamsGroupHeartbeatRequest) -> MemberTasks | None:
    if request.active_tasks is None or request.standby_tasks is None:
        return None
    return MemberTasks(_tasks(request.active_tasks), _tasks(request.standby_tasks))


def _tasks(tasks: list[wire.TaskIds]) -> Tasks:
    return frozenset((task.subtopology_id, partition) for task in tasks for partition in task.partitions)


def _create_missing(answer: StreamsAnswer, caller: Caller, services: Services) -> str:
    """Create the missing internal topics; returns the status of the response."""
    names = [topic.name for topic in answer.missing]
    if not caller.rights.allows_cluster(CREATE, log=False):
        refused = [name for name in names if not caller.may(CREATE, name)]
        if refused:
            return f"; Unauthorized to CREATE on topics {', '.join(refused)}."
    done, failed = [], {}
    for topic in _at_once(answer.missing):
        try:
            services.topics.create(
                TopicSpec(
                    name=topic.name,
                    partitions=topic.partitions,
                    replication_factor=topic.replication_factor or -1,
                    configs=dict(topic.configs),
                )
            )
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                failed[topic.name] = error
        else:
            done.append(f"topic {topic.name}")
    if done or failed:
        codes = {f"topic {name}": error.code.name for name, error in failed.items()}
        audit.requested(caller.session, "StreamsGroupHeartbeat", done, codes)
    if not failed:
        return ""
    details = [f"{name} ({error.message or error.code.name})" for name, error in failed.items()]
    more = f" and {len(details) - FAILURES_MAX} more" if len(details) > FAILURES_MAX else ""
    return f"; Creation failed: {', '.join(details[:FAILURES_MAX])}{more}."


def _at_once(missing: Sequence[InternalTopic]) -> Iterator[InternalTopic]:
    """Yield topics to create now: with the next heartbeat there are more."""
    partitions = 0
    for topic in missing[:TOPICS_CREATED_MAX]:
        partitions += topic.partitions
        if partitions > PARTITIONS_MAX and topic is not missing[0]:
            return
        yield topic


def _response(answer: StreamsAnswer, on_missing: str) -> wire.StreamsGroupHeartbeatResponse:
    response = wire.StreamsGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_ms,
        endpoint_information_epoch=answer.endpoints,
    )
    response.status = []
    for status, detail in answer.statuses:
        more = on_missing if status is GroupStatus.MISSING_INTERNAL_TOPICS else ""
        response.status.append(wire.Status(status_code=status, status_detail=detail + more))
    if answer.tasks is not None:
        response.active_tasks = task_ids(answer.tasks.active)
        response.standby_tasks = task_ids(answer.tasks.standby)
        response.warmup_tasks = []
    if answer.by_endpoint is not None:
        response.partitions_by_user_endpoint = [
            wire.EndpointToPartitions(
                user_endpoint=wire.Endpoint(host=owned.endpoint[0], port=owned.endpoint[1]),
                active_partitions=_partitions(owned.active),
                standby_partitions=_partitions(owned.standby),
            )
            for owned in answer.by_endpoint
        ]
    return response


def _partitions(by_topic: dict[str, list[int]]) -> list[wire.TopicPartition]:
    return [wire.TopicPartition(topic=name, partitions=indexes) for name, indexes in sorted(by_topic.items())]


register(
    handle,
    refuse_whole(wire.StreamsGroupHeartbeatResponse, of_group=True),
    rights=[on_group(READ), by_handler((DESCRIBE, TOPIC), (CREATE, TOPIC), (CREATE, CLUSTER))],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    confirms=joins_or_leaves,
)
