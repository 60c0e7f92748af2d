"""The members of groups of the consumer protocol (KIP-848): what ConsumerGroupHeartbeat does, as one worker serves it.

State is in Redis, so any worker answers any heartbeat, and the end of one costs no rebalance. There are three epochs:

    group epoch        rises when a member joins, leaves or subscribes to other topics, or a topic changes
    assignment epoch   that of the group for which there is a target assignment
    member epoch       that of the assignment whose target the member has, or waits for

A heartbeat of a member that has its target of the last epoch is one short script (lua/consumer/heartbeat.lua).
Any other one takes up to three steps, each of which is written only if nothing has changed since it was read
(lua/consumer/update.lua), and read again if it has:

    1. the member is created or changed, which may begin a new group epoch
    2. if the group epoch is ahead, who gets the claim (lua/consumer/claim.lua) computes a target assignment for it in
       Python and writes it in parts (groups/consumer/assignment.py); who changed the member waits for that
    3. the member goes a step towards its target (groups/consumer/reconcile.py)

Sessions and the times to revoke partitions are one deadline for each member, which the keeper looks at as it does
for classic groups (lua/group/advance.lua).
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError, refuse_first
from korvet.groups.consumer.assignment import (
    AssignedGroups,
    GroupsContext,
    MemberStep,
    check_size,
    fenced_member,
)
from korvet.groups.consumer.assignors import ASSIGNORS
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.reconcile import reconcile, wanted
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.consumer.subscriptions import IsVisible, matcher
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    NOTHING,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    GroupView,
    MemberAnswer,
    MemberReport,
    Owned,
    Progress,
)
from korvet.groups.types import CONSUMER, EMPTY


class ConsumerGroups(AssignedGroups):
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules."""

    assignors_known = ASSIGNORS

    def __init__(self, store: ConsumerStore, context: GroupsContext, migration: Migration) -> None:
        super().__init__(store, context)
        self._migration = migration

    def heartbeat(self, request: MemberReport, is_visible: IsVisible) -> MemberAnswer:
        """Take any other heartbeat of a member that is in the group, joins or leaves."""
        self.check(request)
        if request.epoch >= JOIN_EPOCH:
            return self.go_on(request, is_visible, is_asked=request.is_full)
        group, instance = request.group, request.instance or ""
        left = self.store.leave(group, [(request.member_id, instance, request.epoch)])
        self._migration.after_leaving(group, left)
        [outcome] = left.outcomes
        if outcome is not ErrorCode.NONE:
            message = f"group {group} has no such member as {request.member_id} {instance}"
            raise KafkaError(outcome, message.rstrip())
        return MemberAnswer(request.member_id, request.epoch, 0, None)

    def read(self, request: MemberReport) -> GroupView | None:
        view = super().read(request)
        if view is None or request.epoch != JOIN_EPOCH or not self._migration.must_upgrade(view.group):
            return view
        if request.regex:
            matcher(request.regex)  # A member that is refused leaves the group as it is.
        self._migration.upgrade(request.group, request.member_id, request.instance or "")
        return None

    def next_progress(self, step: MemberStep) -> Progress:
        member = step.member
        known = member.target | member.progress.assigned
        subscribed = self.subscribed(member, {topic_id for topic_id, _ in known})
        target = frozenset(owned for owned in member.target if owned[0] in subscribed)
        unsubscribed: Owned | None = None
        if step.is_resubscribed:
            unsubscribed = frozenset(
                owned for owned in member.progress.assigned if owned[0] not in subscribed
            )
        owners = self.store.owners(step.group, member.member_id, wanted(member.progress, target))
        taken = owners.keys()
        return reconcile(member.progress, step.target_epoch, target, taken, step.owned, unsubscribed)

    def check(self, request: MemberReport) -> None:
        joins = request.epoch == JOIN_EPOCH
        refuse_first(
            ErrorCode.INVALID_REQUEST,
            (not request.member_id, "MemberId can't be empty."),
            (not request.group, "GroupId can't be empty."),
            (request.instance == "", "InstanceId can't be empty."),
            (request.rack == "", "RackId can't be empty."),
            (joins and request.rebalance_ms is None, "RebalanceTimeoutMs must be provided in first request."),
            (joins and request.owned != NOTHING, "TopicPartitions must be empty when (re-)joining."),
            (
                joins and request.names is None and request.regex is None,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            ),
            (request.epoch == STATIC_LEAVE_EPOCH and request.instance is None, "InstanceId can't be null."),
            (request.epoch < STATIC_LEAVE_EPOCH, "MemberEpoch is invalid."),
        )
        if request.assignor is not None and request.assignor not in self.assignors:
            message = f"ServerAssignor {request.assignor} is not supported. Supported assignors: "
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{message}{', '.join(self.assignors)}.")
        check_size(request)

    def base(self, request: MemberReport, view: GroupView) -> ConsumerMember | None:
        group, joins = request.group, request.epoch == JOIN_EPOCH
        if view.group.kind != CONSUMER and (
            not joins or view.group.kind or view.group.state not in ("", EMPTY)
        ):
            message = f"there is no group {group} of the consumer protocol"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        member, holder = view.member, view.holder
        who = f"member {request.member_id} of group {group}"
        if request.instance is not None:
            static = f"{who}, instance {request.instance},"
            if holder is not None and holder.member_id != request.member_id:
                if not joins:
                    raise KafkaError(
                        ErrorCode.FENCED_INSTANCE_ID, f"{static} was fenced by {holder.member_id}"
                    )
                if not holder.is_classic and holder.progress.epoch != STATIC_LEAVE_EPOCH:
                    message = f"{static} cannot join: {holder.member_id} has not left"
                    raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
                return holder
            if holder is None and not joins:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{static} is unknown")
        if joins:
            return member
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{who} is unknown")
        progress = member.progress
        is_retried = (
            request.epoch == progress.previous < progress.epoch
            and request.owned is not None
            and request.owned <= progress.assigned
        )
        if request.epoch != progress.epoch and not is_retried:
            raise fenced_member(who, progress.epoch, request.epoch)
        return member
