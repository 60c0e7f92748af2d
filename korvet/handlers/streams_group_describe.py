"""StreamsGroupDescribe (key 89), version 0: the state of streams groups, and their members (KIP-1071).

If the caller may not describe all topics of the topology, the group is refused, as in Kafka.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from korvet.groups.consumer.types import ConsumerMember, Owned
from korvet.groups.streams.coordinator import DescribedStreamsGroup, streams_of
from korvet.groups.streams.types import InternalTopic, Subtopology, tasks_of
from korvet.handlers.groups import describe_each, refused, require_streams_groups, require_visible, task_ids
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler, on_names
from korvet.protocol.messages import streams_group_describe as wire
from korvet.protocol.messages.streams_group_heartbeat import Endpoint, KeyValue, TopicInfo


def handle(
    request: wire.StreamsGroupDescribeRequest, caller: Caller, services: Services
) -> wire.StreamsGroupDescribeResponse:
    require_streams_groups(services.features)

    def describe(group_id: str, group: DescribedStreamsGroup) -> wire.DescribedGroup:
        subtopologies = group.topology.subtopologies
        sinks = {name for subtopology in subtopologies for name in subtopology.repartition_sinks}
        message = "The described group uses topics that the client is not authorized to describe."
        require_visible(group.topology.topics | sinks, caller, message)
        return wire.DescribedGroup(
            group_id=group_id,
            group_state=group.fields.state,
            group_epoch=group.fields.epoch,
            assignment_epoch=group.fields.assignment_epoch,
            topology=wire.Topology(
                epoch=group.topology.epoch,
                subtopologies=[_subtopology(subtopology, group.internal) for subtopology in subtopologies],
            ),
            members=[_member(member) for member in group.members],
            authorized_operations=caller.operations(
                GROUP, group_id, requested=request.include_authorized_operations
            ),
        )

    groups = describe_each(wire.DescribedGroup, request.group_ids, services.groups.streams.describe, describe)
    return wire.StreamsGroupDescribeResponse(groups=groups)


def _subtopology(subtopology: Subtopology, internal: dict[str, InternalTopic]) -> wire.Subtopology:
    def topics(wanted: tuple[InternalTopic, ...]) -> list[TopicInfo]:
        configured = (internal.get(topic.name, topic) for topic in wanted)
        return [
            TopicInfo(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=[KeyValue(key=key, value=value) for key, value in topic.configs],
            )
            for topic in sorted(configured, key=lambda topic: topic.name)
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
        user_endpoint=None if endpoint is None else Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[KeyValue(key=key, value=value) for key, value in streams.tags],
        task_offsets=[],
        task_end_offsets=[],
        assignment=_assignment(member.progress.assigned),
        target_assignment=_assignment(member.target),
        is_classic=False,
    )


def _assignment(owned: Owned) -> wire.Assignment:
    tasks = tasks_of(owned)
    return wire.Assignment(
        active_tasks=task_ids(tasks.active), standby_tasks=task_ids(tasks.standby), warmup_tasks=[]
    )


register(
    handle,
    lambda request, _caller, error: wire.StreamsGroupDescribeResponse(
        groups=[refused(wire.DescribedGroup, group, error) for group in request.group_ids]
    ),
    rights=[on_names(GROUP, DESCRIBE, "group_ids", "groups"), by_handler((DESCRIBE, TOPIC))],
)
