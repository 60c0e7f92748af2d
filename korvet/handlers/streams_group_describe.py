"""StreamsGroupDescribe (key 89), version 0: the state of streams groups, and their members (KIP-1071).

If the caller may not describe all topics of the topology, the group is refused, as in Kafka.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.types import ConsumerMember, Owned, text_of
from korvet.groups.streams.coordinator import DescribedStreamsGroup, streams_of
from korvet.groups.streams.types import InternalTopic, Subtopology, Tasks, tasks_of
from korvet.handlers.common import authorized, error_message, group_error_code, require_streams_groups
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler, on_names
from korvet.protocol.messages import streams_group_describe as wire
from korvet.security.authorizer import refusal


def handle(
    request: wire.StreamsGroupDescribeRequest, caller: Caller, api: GroupApi
) -> wire.StreamsGroupDescribeResponse:
    """Describe each group once."""
    require_streams_groups(api.features)
    groups = []
    names = list(dict.fromkeys(request.group_ids))
    for group, outcome in zip(names, api.streams_groups.describe(names), strict=True):
        error = outcome if isinstance(outcome, KafkaError) else _hidden_topics(outcome, caller)
        if error is not None or isinstance(outcome, KafkaError):
            groups.append(_refused(group, error))
            continue
        operations = authorized(caller, GROUP, group, requested=request.include_authorized_operations)
        groups.append(_described(group, outcome, operations))
    return wire.StreamsGroupDescribeResponse(groups=groups)


def refuse(
    request: wire.StreamsGroupDescribeRequest, _caller: Caller, error: KafkaError
) -> wire.StreamsGroupDescribeResponse:
    """Answer every group with the error."""
    return wire.StreamsGroupDescribeResponse(groups=[_refused(each, error) for each in request.group_ids])


def _hidden_topics(found: DescribedStreamsGroup, caller: Caller) -> KafkaError | None:
    sinks = {name for each in found.topology.subtopologies for name in each.repartition_sinks}
    names = found.topology.topics | sinks
    if all(caller.rights.allows(DESCRIBE, TOPIC, name) for name in names):
        return None
    message = "The described group uses topics that the client is not authorized to describe."
    return KafkaError(refusal(TOPIC).code, message)


def _described(group: str, found: DescribedStreamsGroup, operations: int) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group,
        group_state=found.fields.state,
        group_epoch=found.fields.epoch,
        assignment_epoch=found.fields.assignment_epoch,
        topology=wire.Topology(
            epoch=found.topology.epoch,
            subtopologies=[_subtopology(each, found.internal) for each in found.topology.subtopologies],
        ),
        members=[_member(each) for each in found.members],
        authorized_operations=operations,
    )


def _subtopology(subtopology: Subtopology, internal: dict[str, InternalTopic]) -> wire.Subtopology:
    def topics(wanted: tuple[InternalTopic, ...]) -> list[wire.TopicInfo]:
        configured = sorted((internal.get(each.name, each) for each in wanted), key=lambda each: each.name)
        return [
            wire.TopicInfo(
                name=each.name,
                partitions=each.partitions,
                replication_factor=each.replication_factor,
                topic_configs=[wire.KeyValue(key=key, value=value) for key, value in each.configs],
            )
            for each in configured
        ]

    return wire.Subtopology(
        subtopology_id=subtopology.id,
        source_topics=sorted(subtopology.sources),
        repartition_sink_topics=sorted(subtopology.repartition_sinks),
        state_changelog_topics=topics(subtopology.changelogs),
        repartition_source_topics=topics(subtopology.repartition_sources),
    )


def _member(member: ConsumerMember) -> wire.Member:
    streams = streams_of(member)
    endpoint = streams.endpoint
    return wire.Member(
        member_id=member.member_id,
        member_epoch=member.progress.epoch,
        rack_id=member.row.rack or None,
        client_id=member.row.client_id,
        client_host=member.row.client_host,
        topology_epoch=streams.topology_epoch,
        process_id=streams.process_id,
        user_endpoint=None if endpoint is None else wire.Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[wire.KeyValue(key=key, value=value) for key, value in streams.tags],
        task_offsets=[],
        task_end_offsets=[],
        assignment=_assignment(member.progress.assigned),
        target_assignment=_assignment(member.target),
        is_classic=False,
    )


def _assignment(owned: Owned) -> wire.Assignment:
    tasks = tasks_of(owned)
    return wire.Assignment(
        active_tasks=_task_ids(tasks.active), standby_tasks=_task_ids(tasks.standby), warmup_tasks=[]
    )


def _task_ids(tasks: Tasks) -> list[wire.TaskIds]:
    return [
        wire.TaskIds(subtopology_id=subtopology, partitions=partitions)
        for subtopology, partitions in text_of(tasks).items()
    ]


def _refused(group: str, error: KafkaError | None) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group,
        error_code=ErrorCode.NONE if error is None else group_error_code(error),
        error_message=error_message(error),
    )


register(
    handle,
    refuse,
    rights=[on_names(GROUP, DESCRIBE, "group_ids", "groups"), by_handler((DESCRIBE, TOPIC))],
)
