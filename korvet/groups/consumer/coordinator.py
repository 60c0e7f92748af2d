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
       Python and writes it in parts; who changed the member waits for that, ASSIGNED_IN_S at most
    3. the member goes a step towards its target (groups/consumer/reconcile.py)

Sessions and the times to revoke partitions are one deadline for each member, which the keeper looks at as it does
for classic groups (lua/group/advance.lua).
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.config.values import listed
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.assignors import ASSIGNORS, AssignedMember
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.reconcile import PARTITIONS_AT_ONCE, reconcile, wanted
from korvet.groups.consumer.store import ConsumerStore, Targets
from korvet.groups.consumer.subscriptions import IsVisible, Selection, TopicSelector, matcher, names_of
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNREVOKED,
    ConsumerMember,
    GroupFields,
    GroupView,
    MemberAnswer,
    MemberChange,
    MemberReport,
    Owned,
    Progress,
    SubscriberRow,
)
from korvet.groups.types import EMPTY
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.topics.registry import TopicRegistry, id_bytes
from korvet.topics.types import TopicRef
from korvet.turns import in_turns

T = TypeVar("T")

ATTEMPTS_MAX = 20
"""Tries of a step while others change the same member or the assignment: each but the last has met one of theirs."""

CLAIM_MS = 5_000
"""How long one worker may take for a target assignment before another one begins: many times what the largest takes."""

ASSIGNED_IN_S = 5.0
"""How long a heartbeat waits for a target assignment that another worker computes."""

METADATA_BYTES_MAX = 1 << 20
"""Characters of what a member subscribes to: a thousand topics have some 50 KiB."""

SEEN_MAX = 10_000
"""Groups and expressions of which a worker remembers that their topics are those of the assignment, and members whose
expressions it remembers; more, and it looks again."""


class Written(NamedTuple):
    """A member as its request has left it: `epoch` is that of the group which it needs an assignment of.

    `view` is what was read of it, if nothing has changed.
    """

    member_id: str
    regex: str
    epoch_text: bytes
    epoch: int
    is_resubscribed: bool
    view: GroupView | None = None


class _Seen(NamedTuple):
    """When a worker has compared the topics of a group with those of its assignment, and by which registry."""

    version: int
    at: float
    has_expressions: bool


class ConsumerGroups:
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules."""

    def __init__(
        self,
        store: ConsumerStore,
        topics: TopicRegistry,
        configs: GroupConfigs,
        migration: Migration,
        settings: Settings,
        subscriptions: Subscriptions,
    ) -> None:
        self.store = store
        self._subscriptions = subscriptions
        self._migration = migration
        self._topics = topics
        self._selector = TopicSelector(topics)
        self._configs = configs
        self.size_max = settings.group_consumer_max_size
        self.assignors = listed(settings.group_consumer_assignors) or list(ASSIGNORS)
        self._refresh_s = settings.group_consumer_regex_refresh_interval_ms / 1000
        # By group and expression: "" stands for the names, and for what is known to be matched.
        self._seen: dict[tuple[str, str], _Seen] = {}
        # Those of members, by group and member.
        self._expressions: dict[tuple[str, str], str] = {}

    def renew(self, request: MemberReport) -> MemberAnswer | None:
        """Take a heartbeat of a member that reports nothing and has all that it is to have; None: it is none."""
        self._check(request)
        group = request.group
        regex = self._expressions.get((group, request.member_id))
        if request.epoch < JOIN_EPOCH or request.has_news or not self._has_seen(group, regex):
            return None
        who = (request.member_id, request.instance or "", request.epoch)
        if not self.store.renew(group, *who, self._configs.session_ms(group)):
            return None
        return MemberAnswer(request.member_id, request.epoch, self._configs.heartbeat_ms(group), None)

    def heartbeat(self, request: MemberReport, is_visible: IsVisible) -> MemberAnswer:
        """Take any other heartbeat of a member that is in the group, joins or leaves."""
        self._check(request)
        group, heartbeat_ms = request.group, self._configs.heartbeat_ms(request.group)
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

    def assign(self, group: str, is_visible: IsVisible, written: Written) -> bool:
        """Have a target assignment for the group's epoch, and if need be wait until there is one for the member's.

        Returns whether there may be another one than when the member was read.
        """
        # For a new epoch there is an assignment to come, by all topics that there are.
        is_begun = not written.epoch and self._begin_epoch_for_topics(group, is_visible, written.regex)
        if not is_begun and written.view and written.view.group.epoch == written.view.group.assignment_epoch:
            return False
        with Watch(self._subscriptions, [self.store.channel(group)]) as watch:
            self._wait(group, is_visible, written, watch)
        return True

    def _wait(self, group: str, is_visible: IsVisible, written: Written, watch: Watch) -> None:
        epoch = written.epoch
        token, until = secrets.token_hex(8), time.monotonic() + ASSIGNED_IN_S
        while True:
            claim = self.store.claim(group, token, CLAIM_MS)
            if claim.granted:
                try:
                    is_written = self._compute(group, token, claim.epoch, written.regex, is_visible)
                except Exception:
                    with suppress(KafkaError):
                        self.store.claim(group, token, 0)
                    raise
                if is_written and claim.epoch >= epoch:
                    return
            elif claim.assignment_epoch >= min(epoch, claim.epoch):
                return
            elif (left_s := until - time.monotonic()) <= 0:
                if claim.assignment_epoch == 0:
                    message = f"the first assignment of group {group} takes long"
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
                return
            elif watch.live:
                watch.wait(min(left_s, claim.left_ms / 1000))
            else:
                watch.listen()  # and look again

    def step(self, group: str, written: Written, owned: Owned | None) -> tuple[Owned, Progress]:
        """Have the member go towards its target; returns what it was assigned before, and how far it is then.

        What it reports to own is that of the member as it was written: of another request's answer it knows nothing.
        """
        member_id, view = written.member_id, written.view
        session_ms = self._configs.session_ms(group)
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
                taken = self.store.taken(group, member_id, wanted(member.progress, target))
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
        subscribed = self._subscribed(member, {topic_id for topic_id, _ in known})
        target = frozenset(each for each in member.target if each[0] in subscribed)
        unsubscribed = frozenset(each for each in member.progress.assigned if each[0] not in subscribed)
        return target, unsubscribed if is_resubscribed else None

    def _subscribed(self, member: ConsumerMember, topic_ids: set[str]) -> set[str]:
        """Return those of the topics that the member is subscribed to; one that does not exist is none of them."""
        names = set(names_of(member))
        matches: Callable[[str], bool] = (
            matcher(member.row.regex) if member.row.regex else lambda _name: False
        )
        found = {each: self._topics.cached(TopicRef("", id_bytes(each))) for each in topic_ids}
        if None in found.values():
            self._topics.refresh()
            found = {each: self._topics.cached(TopicRef("", id_bytes(each))) for each in topic_ids}
        return {
            each
            for each, topic in found.items()
            if topic is not None and (topic.name in names or matches(topic.name))
        }

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
        """Create or change the member, if the request says anything new."""
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
            session_ms=self._configs.session_ms(request.group),
            rebalance_ms=max(value(request.rebalance_ms, "rebalance_ms", 0), 0),
            instance=value(request.instance, "instance", ""),
            client_id=request.client_id,
            client_host=request.client_host,
            rack=value(request.rack, "rack", ""),
            names=value(names, "names", ()),
            regex=value(request.regex, "regex", ""),
            assignor=value(request.assignor, "assignor", ""),
        )

    def _compute(self, group: str, token: str, epoch: int, regex: str, is_visible: IsVisible) -> bool:
        """Compute the target assignment for an epoch, and write what differs from the last one.

        Returns False if the right to do so has ended.
        """
        members = self.store.all_members(group)
        self._topics.refresh()
        matched = self._matched(group, members, regex, is_visible)
        selection, topics_of = self._selector.select(members, matched)
        subscribers = [
            AssignedMember(each.member_id, each.row.instance, topics_of[each.member_id], each.target)
            for each in in_turns(members)
        ]
        counts = self._selector.partitions(frozenset[str]().union(*topics_of.values()))
        assignor = self._preferred(members)
        targets = ASSIGNORS[assignor](subscribers, counts)
        rows = {
            each.member_id: targets[each.member_id]
            for each in in_turns(members)
            if targets[each.member_id] != each.target
        }
        digest = self._selector.digest(selection)
        written = Targets(epoch, assignor, msgspec.json.encode(selection), digest, rows)
        return self.store.assign(group, token, written)

    def _matched(
        self, group: str, members: Sequence[ConsumerMember], regex: str, is_visible: IsVisible
    ) -> dict[str, list[str]]:
        """Return what all expressions match: as it is stored, but for new ones and that of who asks, if it is alone."""
        used = Counter(each.row.regex for each in members if each.row.regex)
        stored = _selection(self.store.fields(group)).expressions if used else {}
        return {
            each: stored[each]
            if each in stored and not (each == regex and count == 1)
            else self._selector.match(each, is_visible)
            for each, count in used.items()
        }

    def _preferred(self, members: Sequence[ConsumerMember]) -> str:
        """Return the assignor that most members name, the first of the setting if none does."""
        votes = Counter(each.row.assignor for each in members if each.row.assignor in self.assignors)
        return max(self.assignors, key=lambda name: votes[name])

    def _begin_epoch_for_topics(self, group: str, is_visible: IsVisible, regex: str) -> bool:
        """Begin a new group epoch if topics have changed since the last assignment; returns whether they have.

        Of expressions only the member's own is matched again: others may see other topics.
        """
        if self._has_seen(group, regex):
            return False
        fields = self.store.fields(group)
        if fields.epoch != fields.assignment_epoch:
            return False
        # After the fields: this worker then knows no less of the topics than the one that wrote them.
        self._topics.refresh()
        version = self._topics.version
        selection = _selection(fields)
        if regex in selection.expressions:
            selection.expressions[regex] = self._selector.match(regex, is_visible)
        have_changed = (
            bool(fields.kind and fields.digest) and self._selector.digest(selection) != fields.digest
        )
        if have_changed and not self.store.bump(group, fields, msgspec.json.encode(selection)):
            return True  # others have begun an epoch, without what is matched now
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        seen = _Seen(version, time.monotonic(), bool(selection.expressions))
        self._seen[group, ""] = self._seen[group, regex] = seen
        return have_changed

    def _has_seen(self, group: str, regex: str | None) -> bool:
        """Whether the topics that a member has are known to be those of the assignment; None: any expression."""
        seen = self._seen.get((group, ""))
        if seen is None or not self._is_recent(seen):
            return False
        if not seen.has_expressions or not regex:
            return not seen.has_expressions or regex == ""
        own = self._seen.get((group, regex))
        return own is not None and self._is_recent(own)

    def _is_recent(self, seen: _Seen) -> bool:
        return seen.version == self._topics.version and time.monotonic() - seen.at < self._refresh_s

    def _check(self, request: MemberReport) -> None:
        """Raise KafkaError INVALID_REQUEST, and UNSUPPORTED_ASSIGNOR."""
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
        _check_size(request)


def _selection(fields: GroupFields) -> Selection:
    """Return what the members subscribe to as of the last assignment."""
    return (
        msgspec.json.decode(fields.subscriptions, type=Selection)
        if fields.subscriptions
        else Selection([], {})
    )


def _problem_of_first(request: MemberReport) -> str:
    if request.rebalance_ms is None:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if request.names is None and request.regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return ""


def _check_size(request: MemberReport) -> None:
    texts = (request.member_id, request.instance, request.rack, request.regex, *(request.names or ()))
    if sum(len(each or "") for each in texts) > METADATA_BYTES_MAX:
        message = f"a member may have {METADATA_BYTES_MAX} bytes of metadata"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _base(request: MemberReport, view: GroupView) -> ConsumerMember | None:
    """Return what the member is made of: itself, or the one whose place it takes; None if it is new.

    Raises KafkaError by Kafka's rules for a member that may not send this request.
    """
    group, joins = request.group, request.epoch == JOIN_EPOCH
    if not view.group.kind and (not joins or view.group.state not in ("", EMPTY)):
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


def keeps_changing(group: str) -> KafkaError:
    """Return the error for a member that others change all the time."""
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group} keeps changing")
