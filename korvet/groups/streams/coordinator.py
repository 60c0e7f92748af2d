"""The members of streams groups (KIP-1071): what StreamsGroupHeartbeat does, as one worker serves it.

Epochs, steps, sessions and what is stored are those of a group of the consumer protocol
(groups/consumer/coordinator.py), with tasks in place of partitions (groups/streams/types.py). A group has a topology,
that of its first member. From the topics that there are a worker computes internal topics and tasks
(groups/streams/topology.py): if topics are missing, or have other numbers of partitions than they need, members have no
tasks, and a status says why. An epoch begins if a member joins, leaves or changes, if one of the topics changes, and if
the group is to have another number of standbys.

A process has a task once, active or standby, since its members share a directory for the state. So who is to have a
task waits until no other member of its process has it. That is read and not compared when it is written: two members
may both get a task of their process, if a target of more than 250 rows is written just then. One of them waits for the
lock of the directory.

Static members, warm-up tasks and patterns of source topics are refused, as Kafka 4.2 does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from korvet.errors import ErrorCode, KafkaError, or_raise, refuse_first
from korvet.groups.consumer.assignment import (
    ATTEMPTS_MAX,
    METADATA_BYTES_MAX,
    SEEN_MAX,
    BrokerAssignedGroups,
    GroupsContext,
    MemberStep,
    Written,
    fenced_member,
    keeps_changing,
    unknown_member,
)
from korvet.groups.consumer.reconcile import reconcile, wanted
from korvet.groups.consumer.store import GroupMembers, Targets
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    GroupFields,
    GroupView,
    MemberChange,
    Owned,
    Progress,
    StreamsRow,
    SubscriberRow,
)
from korvet.groups.streams import topology as topologies
from korvet.groups.streams.assignor import TaskMember, assign_tasks
from korvet.groups.streams.store import Common, StreamsStore
from korvet.groups.streams.types import (
    ConfiguredTopology,
    EndpointTasks,
    GroupStatus,
    InternalTopic,
    MemberTasks,
    StreamsAnswer,
    StreamsReport,
    StreamsTopology,
    Tasks,
    is_plain,
    tasks_of,
)
from korvet.groups.types import EMPTY, STREAMS
from korvet.topics.registry import Topic, id_text
from korvet.turns import in_turns

ASSIGNOR = "sticky"
"""The name that is stored with a target; none with that of a topology whose topics are missing."""


class _SeenAssignment(NamedTuple):
    """By which topics and number of standbys a worker has found that the assignment of a group is the right one."""

    version: int
    standbys: int


class DescribedStreamsGroup(NamedTuple):
    """A group, its topology with the partitions of internal topics as far as these are known, and its members."""

    fields: GroupFields
    topology: StreamsTopology
    internal: dict[str, InternalTopic]
    members: list[ConsumerMember]


class StreamsGroups(BrokerAssignedGroups):
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules."""

    def __init__(self, store: StreamsStore, context: GroupsContext) -> None:
        super().__init__(store, context)
        self._store = store
        self._seen: dict[str, _SeenAssignment] = {}

    def renew(self, request: StreamsReport) -> StreamsAnswer | None:
        """Take a heartbeat of a member that reports nothing and has all that it is to have; None: it is none."""
        _check(request)
        group = request.group
        seen = _SeenAssignment(self._topics.version, self._configs.standbys(group))
        if request.epoch <= JOIN_EPOCH or request.has_news or self._seen.get(group) != seen:
            return None
        who = (request.member_id, "", request.epoch, self.session_ms(group), str(request.endpoints))
        if not self._store.renew(group, *who):
            return None
        return StreamsAnswer(
            member_id=request.member_id,
            epoch=request.epoch,
            heartbeat_ms=self.heartbeat_ms(group),
            endpoints=request.endpoints,
        )

    def heartbeat(self, request: StreamsReport) -> StreamsAnswer:
        """Take any other heartbeat of a member that is in the group, joins or leaves."""
        _check(request)
        group = request.group
        if request.epoch < JOIN_EPOCH:
            return self._leave(request)
        written, member, fields = self._join(request)
        common = self._store.common(group)
        if request.asks_to_end and not common.ends_by:
            self._store.begin(group, ends_by=request.member_id)
            common = common._replace(ends_by=request.member_id)
        topology = _topology_of(group, common)
        self._topics.refresh()
        configured = self._configured(topology)
        owned = None if request.tasks is None else request.tasks.owned(streams_of(member).process_id)
        if request.tasks is not None and not configured.status:
            _check_tasks(request.tasks, configured)
        is_delayed = self._is_delayed(group, common, fields)
        if is_delayed:
            before, after = self.step(group, written, instead=Progress(max(1, fields.assignment_epoch)))
        else:
            self._assign(group, written.epoch, topology, configured)
            before, after = self.step(group, written, owned)
        is_new = request.epoch == JOIN_EPOCH or before.assigned != after.assigned
        # An answer may have been lost.
        is_new = is_new or (owned is not None and owned != after.assigned)
        endpoints = common.endpoints
        if is_new and streams_of(member).endpoint is not None:
            endpoints = self._store.raise_endpoints(group)
        by_endpoint: list[EndpointTasks] | None = None
        if endpoints != request.endpoints:
            by_endpoint = self._by_endpoint(group, topology, configured) if endpoints else []
        return StreamsAnswer(
            member_id=request.member_id,
            epoch=after.epoch,
            heartbeat_ms=self.heartbeat_ms(group),
            statuses=_statuses(member, topology, configured, common, is_delayed=is_delayed),
            tasks=tasks_of(after.assigned) if is_new else None,
            endpoints=endpoints,
            by_endpoint=by_endpoint,
            missing=tuple(configured.missing),
        )

    def describe(self, groups: Sequence[str]) -> list[DescribedStreamsGroup | KafkaError]:
        """Return each group as it is now, or its error: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID."""
        stored = dict(zip(groups, self._store.describe(groups), strict=True))
        names = [group for group, outcome in stored.items() if not isinstance(outcome, KafkaError)]
        commons = dict(zip(names, self._store.commons(names), strict=True))
        if names:
            self._topics.refresh()
        return [
            outcome if isinstance(outcome, KafkaError) else self._described(group, outcome, commons[group])
            for group, outcome in in_turns(stored.items())
        ]

    def _described(
        self, group: str, stored: GroupMembers, common: Common | KafkaError
    ) -> DescribedStreamsGroup | KafkaError:
        try:
            topology = _topology_of(group, or_raise(common))
        except KafkaError as error:
            return error.without_frames()
        internal = self._configured(topology).internal
        return DescribedStreamsGroup(stored.fields, topology, internal, stored.members)

    def _leave(self, request: StreamsReport) -> StreamsAnswer:
        self.remove(request.group, request.member_id)
        if request.asks_to_end:
            self._store.begin(request.group, ends_by=request.member_id)
        return StreamsAnswer(member_id=request.member_id, epoch=request.epoch)

    def _join(self, request: StreamsReport) -> tuple[Written, ConsumerMember, GroupFields]:
        group, member_id = request.group, request.member_id
        for _ in range(ATTEMPTS_MAX):
            view = self._store.read(group, member_id, "")
            common = self._store.common(group)
            member = _member(request, view)
            _check_topology(request, common)
            row = self._row(request, member)
            is_whole = common.topology is not None or request.topology is None
            # Else who created the group has ended before it could note the topology.
            if member is not None and row == member.row and is_whole:
                # Who has joined and got no assignment yet waits for one.
                waits = member.progress.epoch == JOIN_EPOCH
                return _written(member, view.group, waits=waits)
            change = MemberChange(
                member_id=member_id,
                instance="",
                before=member,
                progress=Progress() if member is None else member.progress,
                row=row,
                bumps=member is None or row != msgspec.structs.replace(member.row, session_ms=row.session_ms),
            )
            done = self._store.update(group, view.group, change, row.session_ms, self.size_max)
            if done is None:
                continue
            is_first = view.group.size == 0
            if is_first or common.topology is None:
                delay_ms = self._configs.initial_rebalance_delay_ms(group) if is_first else None
                self._store.begin(group, request.topology, delay_ms)
            view = self._store.read(group, member_id, "")
            if view.member is not None:
                _check_topology(request, self._store.common(group))
                waits = change.bumps or view.member.progress.epoch == JOIN_EPOCH
                return _written(view.member, view.group, waits=waits)
        raise keeps_changing(group)

    def _row(self, request: StreamsReport, member: ConsumerMember | None) -> SubscriberRow:
        before = StreamsRow(process_id="", topology_epoch=0, endpoint=None, tags=())
        if member is not None:
            before = streams_of(member)
        streams = StreamsRow(
            process_id=request.process_id or before.process_id,
            topology_epoch=request.topology.epoch if request.topology else before.topology_epoch,
            endpoint=request.endpoint or before.endpoint,
            tags=before.tags if request.tags is None else request.tags,
        )
        known = request.row(member, self.session_ms(request.group))
        return msgspec.structs.replace(known, streams=streams)

    def _is_delayed(self, group: str, common: Common, fields: GroupFields) -> bool:
        """Whether more members may join before the first assignment of a group that had none."""
        left_ms = common.delayed_until_ms - self.clock.time() * 1000
        # If more is left the clock of Redis is ahead.
        most_ms = self._configs.initial_rebalance_delay_ms(group)
        return fields.epoch != fields.assignment_epoch and 0 < left_ms <= most_ms

    def _assign(
        self, group: str, member_epoch: int, topology: StreamsTopology, configured: ConfiguredTopology
    ) -> None:
        """Have a target assignment for the group's epoch, and if need be wait until there is one for the member's."""
        fields = self._store.fields(group)
        seen = _SeenAssignment(self._topics.version, self._configs.standbys(group))
        if fields.epoch == fields.assignment_epoch:
            digest = self._digest(topology, seen.standbys)
            if digest == fields.digest:
                if len(self._seen) >= SEEN_MAX:
                    self._seen.clear()
                # Members of a group that has a status learn of it with each heartbeat.
                if not configured.status:
                    self._seen[group] = seen
                else:
                    self._seen.pop(group, None)
                return
            self._store.bump(group, fields, b"")
        self._seen.pop(group, None)
        self.wait(group, member_epoch, lambda token, epoch: self._compute(group, token, epoch))

    def _compute(self, group: str, token: str, epoch: int) -> bool:
        """Compute the target assignment for an epoch, and write what differs from the last one.

        Returns False if the right to do so has ended.
        """
        topology = _topology_of(group, self._store.common(group))
        members = self._store.all_members(group)
        self._topics.refresh()
        standbys = self._configs.standbys(group)
        digest = self._digest(topology, standbys)
        configured = self._configured(topology)
        stateful = {subtopology.id for subtopology in topology.subtopologies if subtopology.changelogs}
        runners = [
            TaskMember(member.member_id, streams_of(member).process_id, tasks_of(member.target))
            for member in members
        ]
        targets = assign_tasks(runners, configured.tasks, stateful, standbys)
        owned = {runner.member_id: targets[runner.member_id].owned(runner.process_id) for runner in runners}
        rows = {
            member.member_id: owned[member.member_id]
            for member in members
            if owned[member.member_id] != member.target
        }
        written = Targets(epoch, "" if configured.status else ASSIGNOR, b"", digest, rows)
        return self._store.assign(group, token, written)

    def _configured(self, topology: StreamsTopology) -> ConfiguredTopology:
        result = ((name, self._topics.get_cached(name)) for name in in_turns(topology.topics))
        return topologies.configure(
            topology, {name: len(topic.partitions) for name, topic in result if topic is not None}
        )

    def _digest(self, topology: StreamsTopology, standbys: int) -> str:
        """Return what differs if the tasks, or what is to be done with them, may differ."""
        summed = hashlib.sha1(f"{topology.epoch} {standbys}\n".encode(), usedforsecurity=False)
        for name in in_turns(sorted(topology.topics)):
            topic: Topic | None = self._topics.get_cached(name)
            if topic is not None:
                summed.update(f"{name} {id_text(topic.id)} {len(topic.partitions)}\n".encode())
        return summed.hexdigest()

    def next_progress(self, step: MemberStep) -> Progress:
        group, member = step.group, step.member
        missing = wanted(member.progress, member.target)
        owners = self._store.owners(group, member.member_id, missing)
        taken = owners.keys() | self._held_in_process(group, member, missing)
        return reconcile(member.progress, step.target_epoch, member.target, taken, step.owned, None)

    def _held_in_process(self, group: str, member: ConsumerMember, missing: Owned) -> set[tuple[str, int]]:
        """Return what the member cannot get yet, for another one of its process has the task in the other role."""
        process_id = streams_of(member).process_id
        tasks = tasks_of(missing)
        standby = MemberTasks(standby=tasks.active).owned(process_id)
        held = tasks_of(self._store.owners(group, member.member_id, standby)).standby
        active = MemberTasks(active=tasks.standby).owned(process_id)
        owners = self._store.owners(group, member.member_id, active)
        neighbours = {
            some_member.member_id
            for some_member in self._store.some_members(group, owners.values())
            if streams_of(some_member).process_id == process_id
        }
        there = tasks_of(item for item, owner in owners.items() if owner in neighbours).active
        return set(MemberTasks(active=held, standby=there).owned(process_id))

    def _by_endpoint(
        self, group: str, topology: StreamsTopology, configured: ConfiguredTopology
    ) -> list[EndpointTasks]:
        inputs = {item.id: item.inputs for item in topology.subtopologies}
        sizes: dict[str, int] = {}
        for name in {name for names in inputs.values() for name in names}:
            topic = self._topics.get_cached(name)
            sizes[name] = 0 if topic is None else len(topic.partitions)

        def partitions(tasks: Tasks) -> dict[str, list[int]]:
            result: dict[str, list[int]] = {}
            for subtopology, partition in sorted(tasks):
                for name in inputs.get(subtopology, ()):
                    if partition < sizes[name]:
                        result.setdefault(name, []).append(partition)
            return result

        by_endpoint = []
        for member in in_turns(self._store.all_members(group)) if not configured.status else ():
            endpoint = streams_of(member).endpoint
            if endpoint is not None:
                tasks = tasks_of(member.progress.assigned)
                by_endpoint.append(
                    EndpointTasks(endpoint, partitions(tasks.active), partitions(tasks.standby))
                )
        return by_endpoint


def _written(
    member: ConsumerMember, fields: GroupFields, *, waits: bool
) -> tuple[Written, ConsumerMember, GroupFields]:
    epoch = fields.epoch if waits else 0
    return Written(member.member_id, "", member.epoch_text, epoch, is_resubscribed=False), member, fields


def _statuses(
    member: ConsumerMember,
    topology: StreamsTopology,
    configured: ConfiguredTopology,
    common: Common,
    *,
    is_delayed: bool,
) -> tuple[tuple[GroupStatus, str], ...]:
    result = []
    epoch = streams_of(member).topology_epoch
    if epoch < topology.epoch:
        detail = f"The member's topology epoch {epoch} is behind the group's topology epoch {topology.epoch}."
        result.append((GroupStatus.STALE_TOPOLOGY, detail))
    if is_delayed:
        detail = "Assignment delayed due to the configured initial rebalance delay."
        result.append((GroupStatus.ASSIGNMENT_DELAYED, detail))
    if configured.status is not None:
        result.append((configured.status, configured.detail))
    if common.ends_by:
        detail = (
            f"Streams group member {common.ends_by} encountered a fatal error and requested a shutdown"
            " for the entire application."
        )
        result.append((GroupStatus.SHUTDOWN_APPLICATION, detail))
    return tuple(result)


def streams_of(member: ConsumerMember) -> StreamsRow:
    row = member.row.streams
    if isinstance(row, msgspec.UnsetType):
        message = f"member {member.member_id} is none of a streams group"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
    return row


def _topology_of(group: str, common: Common) -> StreamsTopology:
    if common.topology is None:
        # Its first member is about to bring it.
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"streams group {group} has no topology yet")
    return common.topology


def _check(request: StreamsReport) -> None:
    joins, tasks = request.epoch == JOIN_EPOCH, request.tasks or MemberTasks()
    process_id, topology = request.process_id or "", request.topology
    refuse_first(
        ErrorCode.INVALID_REQUEST,
        (not request.member_id, "MemberId can't be empty."),
        (not request.group, "GroupId can't be empty."),
        (request.rack == "", "RackId can't be empty."),
        (joins and request.rebalance_ms is None, "RebalanceTimeoutMs must be provided in first request."),
        (joins and tasks != MemberTasks(), "Tasks must be empty when (re-)joining."),
        (joins and topology is None, "Topology must be non-null when (re-)joining."),
        (
            joins and ("/" in process_id or not is_plain(process_id)),
            "ProcessId must have no slash, quote, backslash or control character.",
        ),
        (
            joins and len(msgspec.json.encode(topology)) > METADATA_BYTES_MAX,
            f"A topology may have {METADATA_BYTES_MAX} bytes.",
        ),
        (request.epoch == STATIC_LEAVE_EPOCH, "InstanceId can't be null."),
        (
            request.epoch < STATIC_LEAVE_EPOCH,
            f"MemberEpoch is {request.epoch}, but must be greater than or equal to -2.",
        ),
        (not joins and topology is not None, "Topology can only be provided when (re-)joining."),
    )
    if topology is not None:
        topologies.check(topology)


def _check_topology(request: StreamsReport, common: Common) -> None:
    """Raise KafkaError INVALID_REQUEST for a member with another topology than its group has, unless that is later."""
    given, known = request.topology, common.topology
    if given is not None and known is not None and given.epoch >= known.epoch and given != known:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")


def _check_tasks(tasks: MemberTasks, configured: ConfiguredTopology) -> None:
    """Raise KafkaError INVALID_REQUEST for tasks that there are not."""
    every: Collection[tuple[str, int]] = tasks.active | tasks.standby
    for subtopology, partition in in_turns(every):
        if subtopology not in configured.tasks:
            message = f"Subtopology {subtopology} does not exist in the topology."
        elif not 0 <= partition < configured.tasks[subtopology]:
            message = (
                f"Task {partition} for subtopology {subtopology} is invalid."
                f" Number of tasks for this subtopology: {configured.tasks[subtopology]}"
            )
        else:
            continue
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _member(request: StreamsReport, view: GroupView) -> ConsumerMember | None:
    """Return the member that sends a request, None if it is a new one.

    Raises KafkaError by Kafka's rules for a member that may not send it.
    """
    group, member, joins = request.group, view.member, request.epoch == JOIN_EPOCH
    if view.group.kind != STREAMS:
        is_free = not view.group.state or (not view.group.kind and view.group.state == EMPTY)
        if not joins or not is_free:
            what = (
                f"Group {group} is not a streams group."
                if view.group.state
                else f"Streams group {group} not found."
            )
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, what)
        return None
    if joins:
        return member
    if member is None:
        raise unknown_member(group, request.member_id)
    progress = member.progress
    is_retried = request.epoch == progress.previous < progress.epoch and (
        request.tasks is not None and request.tasks.owned(streams_of(member).process_id) <= progress.assigned
    )
    if request.epoch != progress.epoch and not is_retried:
        raise fenced_member("The streams group member", progress.epoch, request.epoch)
    return member
