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

from typing import TypeVar

from korvet.clock import CLOCK, Clock
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.config.values import listed
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.assignment import (
    ATTEMPTS_MAX,
    SEEN_MAX,
    AssignedGroups,
    Written,
    check_size,
    keeps_changing,
)
from korvet.groups.consumer.assignors import ASSIGNORS
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.reconcile import PARTITIONS_AT_ONCE, reconcile, wanted
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.consumer.subscriptions import IsVisible, matcher, names_of
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNREVOKED,
    ConsumerMember,
    GroupView,
    MemberAnswer,
    MemberChange,
    MemberReport,
    Owned,
    Progress,
    SubscriberRow,
)
from korvet.groups.types import CONSUMER, EMPTY
from korvet.redis.pubsub import Subscriptions
from korvet.topics.registry import TopicRegistry

T = TypeVar("T")


class ConsumerGroups(AssignedGroups):
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules."""

    def __init__(
        self,
        store: ConsumerStore,
        topics: TopicRegistry,
        configs: GroupConfigs,
        migration: Migration,
        settings: Settings,
        subscriptions: Subscriptions,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        assignors = {name: ASSIGNORS[name] for name in listed(settings.group_consumer_assignors) or ASSIGNORS}
        refresh_ms = settings.group_consumer_regex_refresh_interval_ms
        super().__init__(store, topics, configs, assignors, refresh_ms, subscriptions, clock=clock)
        self._migration = migration
        self.size_max = settings.group_consumer_max_size

    def heartbeat(self, request: MemberReport, is_visible: IsVisible) -> MemberAnswer:
        """Take any other heartbeat of a member that is in the group, joins or leaves."""
        self.check(request)
        group, heartbeat_ms = request.group, self.heartbeat_ms(request.group)
        if request.epoch < JOIN_EPOCH:
            leaving = (request.member_id, request.instance or "", request.epoch)
            left = self.store.leave(group, [leaving])
            self._migration.after_leaving(group, left)
            [outcome] = left.outcomes
            if outcome is not ErrorCode.NONE:
                message = f"group {group} has no such member as {request.member_id} {request.instance or ''}"
                raise KafkaError(outcome, message.rstrip())
            return MemberAnswer(request.member_id, request.epoch, 0, None)
        joined = self._join(request)
        if len(self._expressions) >= SEEN_MAX:
            self._expressions.clear()
        self._expressions[group, joined.member_id] = joined.regex
        if self.assign(group, is_visible, joined):
            joined = joined._replace(view=None)
        before, after = self.step(group, joined, request.owned)
        is_new = request.epoch == JOIN_EPOCH or request.is_full or before != after.assigned
        return MemberAnswer(joined.member_id, after.epoch, heartbeat_ms, after.assigned if is_new else None)

    def step(self, group: str, written: Written, owned: Owned | None) -> tuple[Owned, Progress]:
        """Have the member go towards its target; returns what it was assigned before, and how far it is then.

        What it reports to own is that of the member as it was written: of another request's answer it knows nothing.
        """
        member_id, view = written.member_id, written.view
        session_ms = self.session_ms(group)
        before: Owned | None = None
        taken: Owned | None = None
        attempts = 0
        while attempts < ATTEMPTS_MAX:
            view = view or self.store.read(group, member_id, "")
            member = view.member
            if member is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group} has no member {member_id}")
            if owned is not None and member.epoch_text != written.epoch_text:
                raise keeps_changing(group)
            target, unsubscribed = self._target(member, is_resubscribed=written.is_resubscribed)
            if taken is None:
                taken = frozenset(self.store.owners(group, member_id, wanted(member.progress, target)))
            epoch = view.group.assignment_epoch
            progress = reconcile(member.progress, epoch, target, taken, owned, unsubscribed)
            change = MemberChange(
                member_id=member_id,
                instance="",
                before=member,
                progress=progress,
                by_ms=self._time_for(member, progress),
            )
            ms = member.row.session_ms if member.is_classic else session_ms
            done = self.store.update(group, view.group, change, ms, self.size_max)
            view = None
            if done is None:
                taken = None
                attempts += 1
                continue
            before = member.progress.assigned if before is None else before
            if len(progress.owned ^ member.progress.owned) < PARTITIONS_AT_ONCE:
                return before, progress
            written = written._replace(epoch_text=done.epoch_text)
        raise keeps_changing(group)

    def _target(self, member: ConsumerMember, *, is_resubscribed: bool) -> tuple[Owned, Owned | None]:
        """Return what the member is to have, and what it has and is not subscribed to any more (see `reconcile`)."""
        known = member.target | member.progress.assigned
        subscribed = self.subscribed(member, {topic_id for topic_id, _ in known})
        target = frozenset(each for each in member.target if each[0] in subscribed)
        unsubscribed = frozenset(each for each in member.progress.assigned if each[0] not in subscribed)
        return target, unsubscribed if is_resubscribed else None

    @staticmethod
    def _time_for(member: ConsumerMember, progress: Progress) -> int | None:
        """Return how long the member has for what it is to do next, None: it has begun already."""
        if member.is_classic:
            return member.row.rebalance_ms
        if progress.phase != UNREVOKED:
            return 0
        if member.progress.phase == UNREVOKED and member.progress.revoking == progress.revoking:
            return None
        return member.row.rebalance_ms

    def _join(self, request: MemberReport) -> Written:
        group = request.group
        for _ in range(ATTEMPTS_MAX):
            view = self.store.read(group, request.member_id, request.instance or "")
            if request.epoch == JOIN_EPOCH and self._migration.must_upgrade(view.group):
                if request.regex:
                    matcher(request.regex)  # A member that is refused leaves the group as it is.
                self._migration.upgrade(group, request.member_id, request.instance or "")
                continue
            base = _base(request, view)
            row = self._row(request, base)
            is_same = (
                base is not None and set(names_of(base)) == set(row.names) and base.row.regex == row.regex
            )
            is_replaced = base is not None and base.member_id != request.member_id
            is_back = base is not None and base.progress.epoch == STATIC_LEAVE_EPOCH
            if base is not None and row == base.row and not is_replaced and not is_back:
                # Who has joined and got no assignment yet waits for one.
                waits = base.progress.epoch == JOIN_EPOCH
                epoch = view.group.epoch if waits else 0
                return Written(
                    request.member_id, row.regex, base.epoch_text, epoch, is_resubscribed=False, view=view
                )
            if row.regex and (base is None or row.regex != base.row.regex):
                matcher(row.regex)
            bumps = view.group.epoch == 0 or not (is_same or (base is None and not (row.names or row.regex)))
            # What it had as another member is for others.
            bumps = bumps or (is_replaced and view.member is not None)
            progress = Progress() if base is None else base.progress
            change = MemberChange(
                member_id=request.member_id,
                instance=row.instance,
                before=view.member,
                progress=Progress(assigned=progress.assigned) if is_replaced or is_back else progress,
                row=row,
                replaced=base if is_replaced else None,
                bumps=bumps,
            )
            done = self.store.update(group, view.group, change, row.session_ms, self.size_max)
            if done is not None:
                waits = bumps or change.progress.epoch == JOIN_EPOCH
                epoch = done.epoch if waits else 0
                return Written(request.member_id, row.regex, done.epoch_text, epoch, not is_same)
        raise keeps_changing(group)

    def _row(self, request: MemberReport, base: ConsumerMember | None) -> SubscriberRow:
        known = None if base is None else base.row
        names = tuple(sorted(set(request.names))) if request.names is not None else None

        def value(said: T | None, field: str, missing: T) -> T:
            return said if said is not None else missing if known is None else getattr(known, field)

        return SubscriberRow(
            session_ms=self.session_ms(request.group),
            rebalance_ms=max(value(request.rebalance_ms, "rebalance_ms", 0), 0),
            instance=value(request.instance, "instance", ""),
            client_id=request.client_id,
            client_host=request.client_host,
            rack=value(request.rack, "rack", ""),
            names=value(names, "names", ()),
            regex=value(request.regex, "regex", ""),
            assignor=value(request.assignor, "assignor", ""),
        )

    def check(self, request: MemberReport) -> None:
        problem = ""
        if not request.member_id:
            problem = "MemberId can't be empty."
        elif not request.group:
            problem = "GroupId can't be empty."
        elif request.instance == "":
            problem = "InstanceId can't be empty."
        elif request.rack == "":
            problem = "RackId can't be empty."
        elif request.epoch == JOIN_EPOCH:
            problem = _problem_of_first(request)
        elif request.epoch == STATIC_LEAVE_EPOCH and request.instance is None:
            problem = "InstanceId can't be null."
        elif request.epoch < STATIC_LEAVE_EPOCH:
            problem = "MemberEpoch is invalid."
        if problem:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        if request.assignor is not None and request.assignor not in self.assignors:
            message = f"ServerAssignor {request.assignor} is not supported. Supported assignors: "
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{message}{', '.join(self.assignors)}.")
        check_size(request)


def _problem_of_first(request: MemberReport) -> str:
    if request.rebalance_ms is None:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if request.names is None and request.regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return ""


def _base(request: MemberReport, view: GroupView) -> ConsumerMember | None:
    """Return what the member is made of: itself, or the one whose place it takes; None if it is new.

    Raises KafkaError by Kafka's rules for a member that may not send this request.
    """
    group, joins = request.group, request.epoch == JOIN_EPOCH
    if view.group.kind != CONSUMER and (not joins or view.group.kind or view.group.state not in ("", EMPTY)):
        message = f"there is no group {group} of the consumer protocol"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
    member, holder = view.member, view.holder
    who = f"member {request.member_id} of group {group}"
    if request.instance is not None:
        static = f"{who}, instance {request.instance},"
        if holder is not None and holder.member_id != request.member_id:
            if not joins:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{static} was fenced by {holder.member_id}")
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
        message = f"{who} has epoch {progress.epoch}, not {request.epoch}: it must abandon its partitions and rejoin"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    return member
