"""The members of share groups (KIP-932): what ShareGroupHeartbeat does, as one worker serves it.

Epochs, target assignments and sessions are those of a group of the consumer protocol (groups/consumer/coordinator.py),
and so is what is stored. But several members may have a partition, so nobody waits until another one has revoked it: a
member has the target of an assignment with its next heartbeat. A group has members, and is Stable, or it is Empty; it
stays until it is deleted.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError, refuse_first
from korvet.groups.consumer.assignment import (
    AssignedGroups,
    MemberStep,
    check_size,
    fenced_member,
    unknown_member,
)
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerMember,
    GroupView,
    MemberAnswer,
    MemberReport,
    Progress,
)
from korvet.groups.share.assignor import ASSIGNORS
from korvet.groups.types import SHARE, SHARE_MEMBER_ID_LENGTH_MAX


class ShareGroups(AssignedGroups):
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules."""

    assignors_known = ASSIGNORS

    def heartbeat(self, request: MemberReport) -> MemberAnswer:
        """Take a heartbeat that `renew` does not take: of a member that is in the group, joins or leaves."""
        self.check(request)
        if request.epoch != LEAVE_EPOCH:
            return self.go_on(request, lambda _name: False, is_asked=request.names is not None)
        self.remove(request.group, request.member_id)
        return MemberAnswer(request.member_id, LEAVE_EPOCH, 0, None)

    def check(self, request: MemberReport) -> None:
        length_max = SHARE_MEMBER_ID_LENGTH_MAX
        refuse_first(
            ErrorCode.INVALID_REQUEST,
            (not request.member_id, "MemberId can't be empty."),
            (len(request.member_id) > length_max, f"MemberId has more than {length_max} characters."),
            (not request.group, "GroupId can't be empty."),
            (request.rack == "", "RackId can't be empty."),
            (
                request.epoch == JOIN_EPOCH and not request.names,
                "SubscribedTopicNames must be set in first request.",
            ),
            (request.epoch < LEAVE_EPOCH, "MemberEpoch is invalid."),
        )
        check_size(request)

    def next_progress(self, step: MemberStep) -> Progress:
        """Give the member its target: nobody waits until another one has revoked it."""
        before, epoch = step.member.progress, step.target_epoch
        if before.epoch == epoch and not step.is_resubscribed:
            return before
        target = step.member.target
        subscribed = self.subscribed(step.member, {topic_id for topic_id, _ in target})
        assigned = frozenset(item for item in target if item[0] in subscribed)
        previous = before.previous if before.epoch == epoch else before.epoch
        return Progress(epoch, previous, assigned=assigned)

    def base(self, request: MemberReport, view: GroupView) -> ConsumerMember | None:
        group, member = request.group, view.member
        if view.group.kind != SHARE and view.group.state:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} is not a share group.")
        if request.epoch == JOIN_EPOCH:
            return member
        if view.group.kind != SHARE:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group} not found.")
        if member is None:
            raise unknown_member(group, request.member_id)
        # The response with its new epoch may be lost.
        if request.epoch not in (member.progress.epoch, member.progress.previous):
            who = f"The share group member {request.member_id}"
            raise fenced_member(who, member.progress.epoch, request.epoch)
        return member
