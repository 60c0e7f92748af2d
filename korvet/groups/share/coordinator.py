"""The members of share groups (KIP-932): what ShareGroupHeartbeat does, as one worker serves it.

Epochs, target assignments and sessions are those of a group of the consumer protocol (groups/consumer/coordinator.py),
and so is what is stored. But several members may have a partition, so nobody waits until another one has revoked it: a
member has the target of an assignment with its next heartbeat. A group has members, and is Stable, or it is Empty; it
stays until it is deleted.
"""

from __future__ import annotations

from korvet.clock import CLOCK, Clock
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.config.values import listed
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.assignment import (
    ATTEMPTS_MAX,
    AssignedGroups,
    Written,
    check_size,
    keeps_changing,
)
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerMember,
    GroupView,
    MemberAnswer,
    MemberChange,
    MemberReport,
    Progress,
    SubscriberRow,
)
from korvet.groups.share.assignor import ASSIGNORS
from korvet.groups.types import SHARE, SHARE_MEMBER_ID_LENGTH_MAX
from korvet.redis.pubsub import Subscriptions
from korvet.topics.registry import TopicRegistry


class ShareGroups(AssignedGroups):
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules."""

    def __init__(
        self,
        store: ConsumerStore,
        topics: TopicRegistry,
        configs: GroupConfigs,
        settings: Settings,
        subscriptions: Subscriptions,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        assignors = {name: ASSIGNORS[name] for name in listed(settings.group_share_assignors) or ASSIGNORS}
        refresh_ms = settings.group_consumer_regex_refresh_interval_ms
        super().__init__(store, topics, configs, assignors, refresh_ms, subscriptions, clock=clock)
        self._size_max = settings.group_share_max_size

    def heartbeat(self, request: MemberReport) -> MemberAnswer:
        """Take a heartbeat that `renew` does not take: of a member that is in the group, joins or leaves."""
        self.check(request)
        group = request.group
        if request.epoch == LEAVE_EPOCH:
            [outcome] = self.store.leave(group, [(request.member_id, "", LEAVE_EPOCH)]).outcomes
            if outcome is not ErrorCode.NONE:
                raise _unknown(request)
            return MemberAnswer(request.member_id, LEAVE_EPOCH, 0, None)
        written = self._join(request)
        if self.assign(group, lambda _name: False, written):
            written = written._replace(view=None)
        before, after = self._step(group, written)
        is_new = request.epoch == JOIN_EPOCH or request.names is not None or before.assigned != after.assigned
        assigned = after.assigned if is_new else None
        return MemberAnswer(request.member_id, after.epoch, self.heartbeat_ms(group), assigned)

    def check(self, request: MemberReport) -> None:
        problem = ""
        if not request.member_id:
            problem = "MemberId can't be empty."
        elif len(request.member_id) > SHARE_MEMBER_ID_LENGTH_MAX:
            problem = f"MemberId has more than {SHARE_MEMBER_ID_LENGTH_MAX} characters."
        elif not request.group:
            problem = "GroupId can't be empty."
        elif request.rack == "":
            problem = "RackId can't be empty."
        elif request.epoch == JOIN_EPOCH and not request.names:
            problem = "SubscribedTopicNames must be set in first request."
        elif request.epoch < LEAVE_EPOCH:
            problem = "MemberEpoch is invalid."
        if problem:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        check_size(request)

    def _join(self, request: MemberReport) -> Written:
        group, member_id = request.group, request.member_id
        for _ in range(ATTEMPTS_MAX):
            view = self.store.read(group, member_id, "")
            member = _member(request, view)
            known = None if member is None else member.row
            names = () if known is None else known.names
            row = SubscriberRow(
                session_ms=self.session_ms(group),
                rebalance_ms=0,
                instance="",
                client_id=request.client_id,
                client_host=request.client_host,
                rack=request.rack or ("" if known is None else known.rack),
                names=names if request.names is None else tuple(sorted(set(request.names))),
            )
            is_same = names == row.names
            # Who has joined and got no assignment yet waits for one.
            waits = not is_same or member is None or member.progress.epoch == JOIN_EPOCH
            if member is not None and row == known:
                epoch = view.group.epoch if waits else 0
                return Written(member_id, "", member.epoch_text, epoch, is_resubscribed=False, view=view)
            change = MemberChange(
                member_id=member_id,
                instance="",
                before=member,
                progress=Progress() if member is None else member.progress,
                row=row,
                bumps=not is_same,
            )
            done = self.store.update(group, view.group, change, row.session_ms, self._size_max)
            if done is not None:
                epoch = done.epoch if waits else 0
                return Written(member_id, "", done.epoch_text, epoch, is_resubscribed=not is_same)
        raise keeps_changing(group)

    def _step(self, group: str, written: Written) -> tuple[Progress, Progress]:
        """Give the member its target, and renew its session; returns how far it was before, and is then."""
        view = written.view
        for _ in range(ATTEMPTS_MAX):
            view = view or self.store.read(group, written.member_id, "")
            member = view.member
            if member is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"group {group} has no member {written.member_id}"
                )
            before = after = member.progress
            epoch = view.group.assignment_epoch
            if before.epoch != epoch or written.is_resubscribed:
                subscribed = self.subscribed(member, {topic_id for topic_id, _ in member.target})
                assigned = frozenset(each for each in member.target if each[0] in subscribed)
                previous = before.previous if before.epoch == epoch else before.epoch
                after = Progress(epoch, previous, assigned=assigned)
            change = MemberChange(
                member_id=written.member_id, instance="", before=member, progress=after, by_ms=0
            )
            session_ms = self.session_ms(group)
            if self.store.update(group, view.group, change, session_ms, self._size_max) is not None:
                return before, after
            view = None
        raise keeps_changing(group)


def _member(request: MemberReport, view: GroupView) -> ConsumerMember | None:
    """Return the member that sends a request, None if it is a new one.

    Raises KafkaError by Kafka's rules for a member that may not send it.
    """
    group, member = request.group, view.member
    if view.group.kind != SHARE and view.group.state:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} is not a share group.")
    if request.epoch == JOIN_EPOCH:
        return member
    if view.group.kind != SHARE:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group} not found.")
    if member is None:
        raise _unknown(request)
    # The response with its new epoch may be lost.
    if request.epoch not in (member.progress.epoch, member.progress.previous):
        message = (
            f"The share group member {request.member_id} has epoch {member.progress.epoch}, not {request.epoch}."
            " The member must abandon all its partitions and rejoin."
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    return member


def _unknown(request: MemberReport) -> KafkaError:
    message = f"Member {request.member_id} is not a member of group {request.group}."
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
