"""Groups whose partitions brokers assign: targets, computed by one worker at a time, and epochs for changes of topics.

Those are groups of the consumer protocol (groups/consumer/coordinator.py), share groups (groups/share) and streams
groups (groups/streams). A member's request takes up to three steps, each written only if nothing has changed since it
was read: the member is created or changed, a target assignment is computed, and the member goes towards its target.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import SETTINGS, Settings
from korvet.config.values import listed
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.assignors import AssignedMember, Assignor
from korvet.groups.consumer.reconcile import PARTITIONS_AT_ONCE
from korvet.groups.consumer.store import ConsumerStore, Targets
from korvet.groups.consumer.subscriptions import IsVisible, Selection, TopicSelector, matcher, names_of
from korvet.groups.consumer.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
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
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.topics.registry import TopicRegistry, id_bytes
from korvet.topics.types import TopicRef
from korvet.turns import in_turns

ATTEMPTS_MAX = 20
"""Tries of a step while others change the same member or the assignment: each but the last has met one of theirs."""

CLAIM_MS = 5_000
"""How long one worker may take for a target assignment before another one begins: many times what the largest takes."""

ASSIGNED_IN_S = 5.0
"""How long a heartbeat waits for a target assignment that another worker computes."""

METADATA_BYTES_MAX = 1 << 20
"""Characters of what a member subscribes to: a thousand topics have some 50 KiB."""

SEEN_MAX = 10_000
"""Groups and expressions whose topics a worker remembers as assigned, and members whose expressions it remembers;
beyond that it looks again."""


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


class MemberStep(NamedTuple):
    """What the next step of a member follows from: `owned` is what it reports to own, None: nothing new."""

    group: str
    target_epoch: int
    member: ConsumerMember
    owned: Owned | None
    is_resubscribed: bool


class _Seen(NamedTuple):
    """When a worker has compared the topics of a group with those of its assignment, and by which registry."""

    version: int
    at: float
    has_expressions: bool


class GroupsContext(NamedTuple):
    """What the groups of one worker depend on, of whatever type they are."""

    topics: TopicRegistry
    configs: GroupConfigs
    settings: Settings
    subscriptions: Subscriptions
    clock: Clock = CLOCK


class BrokerAssignedGroups(ABC):
    """The groups of one type; every method raises StorageUnavailableError if Redis is away, and KafkaError."""

    def __init__(self, store: ConsumerStore, context: GroupsContext) -> None:
        self.store = store
        self._topics, self._configs, settings, self._subscriptions, self.clock = context
        self.size_max = int(SETTINGS[f"group.{store.kind}.max.size"].value(settings))

    def session_ms(self, group: str) -> int:
        return self._configs.session_ms(group, self.store.kind)

    def heartbeat_ms(self, group: str) -> int:
        return self._configs.heartbeat_ms(group, self.store.kind)

    def remove(self, group: str, member_id: str) -> None:
        """Remove a member; raises KafkaError UNKNOWN_MEMBER_ID if there is none."""
        [outcome] = self.store.leave(group, [(member_id, "", LEAVE_EPOCH)]).outcomes
        if outcome is not ErrorCode.NONE:
            raise unknown_member(group, member_id)

    def wait(self, group: str, epoch: int, compute: Callable[[str, int], bool]) -> None:
        """Wait for a target assignment of this epoch, or the latest one if there is none so late.

        If no other worker does so, `compute` computes and writes it, by the token of the right to do so and the epoch
        that it is for; it returns False if the right has ended.
        """
        token, until = secrets.token_hex(8), self.clock.monotonic() + ASSIGNED_IN_S
        with Watch(self._subscriptions, [self.store.channel(group)], clock=self.clock) as watch:
            while True:
                claim = self.store.claim(group, token, CLAIM_MS)
                if claim.granted:
                    try:
                        is_written = compute(token, claim.epoch)
                    except Exception:
                        with suppress(KafkaError):
                            self.store.claim(group, token, 0)
                        raise
                    if is_written and claim.epoch >= epoch:
                        return
                elif claim.assignment_epoch >= min(epoch, claim.epoch):
                    return
                elif (left_s := until - self.clock.monotonic()) <= 0:
                    if claim.assignment_epoch == 0:
                        message = f"the first assignment of group {group} takes long"
                        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
                    return
                elif watch.live:
                    watch.wait(min(left_s, claim.left_ms / 1000))
                else:
                    watch.listen()  # and look again

    @abstractmethod
    def next_progress(self, step: MemberStep) -> Progress:
        """Return how far a member is after its next step."""

    def step(
        self, group: str, written: Written, owned: Owned | None = None, instead: Progress | None = None
    ) -> tuple[Progress, Progress]:
        """Have the member go towards its target, or `instead` be so far; returns how far it was, and is then.

        What it reports to own is that of the member as it was written: of another request's answer it knows nothing.
        """
        member_id, view, epoch_text = written.member_id, written.view, written.epoch_text
        before: Progress | None = None
        attempts = 0
        while attempts < ATTEMPTS_MAX:
            view = view or self.store.read(group, member_id, "")
            member = view.member
            if member is None:
                raise unknown_member(group, member_id)
            if owned is not None and member.epoch_text != epoch_text:
                raise keeps_changing(group)
            target_epoch = view.group.assignment_epoch
            progress = instead or self.next_progress(
                MemberStep(group, target_epoch, member, owned, written.is_resubscribed)
            )
            change = MemberChange(
                member_id=member_id,
                instance="",
                before=member,
                progress=progress,
                by_ms=_time_for(member, progress),
            )
            session_ms = member.row.session_ms if member.is_classic else self.session_ms(group)
            done = self.store.update(group, view.group, change, session_ms, self.size_max)
            view = None
            if done is None:
                attempts += 1
                continue
            before = before or member.progress
            if len(progress.owned ^ member.progress.owned) < PARTITIONS_AT_ONCE:
                return before, progress
            epoch_text = done.epoch_text
        raise keeps_changing(group)


class AssignedGroups(BrokerAssignedGroups):
    """Groups whose members subscribe to topics, and have partitions of these."""

    assignors_known: ClassVar[Mapping[str, Assignor]]
    """All that the setting may name."""

    def __init__(self, store: ConsumerStore, context: GroupsContext) -> None:
        super().__init__(store, context)
        named = listed(str(SETTINGS[f"group.{store.kind}.assignors"].value(context.settings)))
        self.assignors = {name: self.assignors_known[name] for name in named or self.assignors_known}
        """The first counts if no member names one."""
        self._selector = TopicSelector(context.topics)
        self._refresh_s = context.settings.group_consumer_regex_refresh_interval_ms / 1000
        # By group and expression: "" stands for the names, and for what is known to be matched.
        self._seen: dict[tuple[str, str], _Seen] = {}
        # Those of members, by group and member.
        self._expressions: dict[tuple[str, str], str] = {}

    @abstractmethod
    def check(self, request: MemberReport) -> None:
        """Raise KafkaError for a request that no member may send, as INVALID_REQUEST."""

    @abstractmethod
    def base(self, request: MemberReport, view: GroupView) -> ConsumerMember | None:
        """Return what the member is made of: itself, or the one whose place it takes; None if it is new.

        Raises KafkaError by Kafka's rules for a member that may not send this request.
        """

    def renew(self, request: MemberReport) -> MemberAnswer | None:
        """Take a heartbeat of a member that reports nothing and has all that it is to have; None: it is none."""
        self.check(request)
        group = request.group
        regex = self._expressions.get((group, request.member_id))
        if request.epoch < JOIN_EPOCH or request.has_news or not self._has_seen(group, regex):
            return None
        who = (request.member_id, request.instance or "", request.epoch)
        if not self.store.renew(group, *who, self.session_ms(group)):
            return None
        return MemberAnswer(request.member_id, request.epoch, self.heartbeat_ms(group), None)

    def go_on(self, request: MemberReport, is_visible: IsVisible, *, is_asked: bool) -> MemberAnswer:
        """Take any other heartbeat of a member that stays; `is_asked`: it is to get its assignment in any case."""
        group = request.group
        written = self._join(request)
        if len(self._expressions) >= SEEN_MAX:
            self._expressions.clear()
        self._expressions[group, written.member_id] = written.regex
        if self.assign(group, is_visible, written):
            written = written._replace(view=None)
        before, after = self.step(group, written, request.owned)
        is_new = is_asked or request.epoch == JOIN_EPOCH or before.assigned != after.assigned
        assigned = after.assigned if is_new else None
        return MemberAnswer(written.member_id, after.epoch, self.heartbeat_ms(group), assigned)

    def read(self, request: MemberReport) -> GroupView | None:
        """Return what is stored of the member and its group; None: it is to be read again."""
        return self.store.read(request.group, request.member_id, request.instance or "")

    def _join(self, request: MemberReport) -> Written:
        """Create or change the member, if the request says anything new."""
        group, member_id = request.group, request.member_id
        for _ in range(ATTEMPTS_MAX):
            view = self.read(request)
            if view is None:
                continue
            base = self.base(request, view)
            row = self._row(request, base)
            is_same = (
                base is not None and set(names_of(base)) == set(row.names) and base.row.regex == row.regex
            )
            is_replaced = base is not None and base.member_id != member_id
            is_back = base is not None and base.progress.epoch == STATIC_LEAVE_EPOCH
            if base is not None and row == base.row and not is_replaced and not is_back:
                # Who has joined and got no assignment yet waits for one.
                waits = base.progress.epoch == JOIN_EPOCH
                epoch = view.group.epoch if waits else 0
                return Written(member_id, row.regex, base.epoch_text, epoch, is_resubscribed=False, view=view)
            if row.regex and (base is None or row.regex != base.row.regex):
                matcher(row.regex)
            bumps = view.group.epoch == 0 or not (is_same or (base is None and not (row.names or row.regex)))
            # What it had as another member is for others.
            bumps = bumps or (is_replaced and view.member is not None)
            progress = Progress() if base is None else base.progress
            change = MemberChange(
                member_id=member_id,
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
                return Written(member_id, row.regex, done.epoch_text, epoch, not is_same)
        raise keeps_changing(group)

    def _row(self, request: MemberReport, base: ConsumerMember | None) -> SubscriberRow:
        known = request.row(base, self.session_ms(request.group))
        return msgspec.structs.replace(
            known,
            instance=known.instance if request.instance is None else request.instance,
            names=known.names if request.names is None else tuple(sorted(set(request.names))),
            regex=known.regex if request.regex is None else request.regex,
            assignor=known.assignor if request.assignor is None else request.assignor,
        )

    def assign(self, group: str, is_visible: IsVisible, written: Written) -> bool:
        """Have a target assignment for the group's epoch, and if need be wait until there is one for the member's.

        Returns whether there may be another one than when the member was read.
        """
        # For a new epoch there is an assignment to come, by all topics that there are.
        is_begun = not written.epoch and self._begin_epoch_for_topics(group, is_visible, written.regex)
        if not is_begun and written.view and written.view.group.epoch == written.view.group.assignment_epoch:
            return False
        self.wait(
            group,
            written.epoch,
            lambda token, epoch: self._compute(group, token, epoch, written.regex, is_visible),
        )
        return True

    def subscribed(self, member: ConsumerMember, topic_ids: set[str]) -> set[str]:
        """Return the existing topics to which the member is subscribed."""
        names = set(names_of(member))
        matches: Callable[[str], bool] = (
            matcher(member.row.regex) if member.row.regex else lambda _name: False
        )
        result = {item: self._topics.cached(TopicRef("", id_bytes(item))) for item in topic_ids}
        if None in result.values():
            self._topics.refresh()
            result = {item: self._topics.cached(TopicRef("", id_bytes(item))) for item in topic_ids}
        return {
            item
            for item, topic in result.items()
            if topic is not None and (topic.name in names or matches(topic.name))
        }

    def _compute(self, group: str, token: str, epoch: int, regex: str, is_visible: IsVisible) -> bool:
        """Compute the target assignment for an epoch, and write what differs from the last one.

        Returns False if the right to do so has ended.
        """
        members = self.store.all_members(group)
        self._topics.refresh()
        matched = self._matched(group, members, regex, is_visible)
        selection, topics_of = self._selector.select(members, matched)
        subscribers = [
            AssignedMember(member.member_id, member.row.instance, topics_of[member.member_id], member.target)
            for member in in_turns(members)
        ]
        counts = self._selector.partitions(frozenset[str]().union(*topics_of.values()))
        assignor = self._preferred(members)
        targets = self.assignors[assignor](subscribers, counts)
        rows = {
            member.member_id: targets[member.member_id]
            for member in in_turns(members)
            if targets[member.member_id] != member.target
        }
        digest = self._selector.digest(selection)
        written = Targets(epoch, assignor, msgspec.json.encode(selection), digest, rows)
        return self.store.assign(group, token, written)

    def _matched(
        self, group: str, members: Sequence[ConsumerMember], regex: str, is_visible: IsVisible
    ) -> dict[str, list[str]]:
        """Return what all expressions match: as it is stored, but for new ones and that of who asks, if it is alone."""
        used = Counter(member.row.regex for member in members if member.row.regex)
        stored = _selection(self.store.fields(group)).expressions if used else {}
        return {
            item: stored[item]
            if item in stored and not (item == regex and count == 1)
            else self._selector.match(item, is_visible)
            for item, count in used.items()
        }

    def _preferred(self, members: Sequence[ConsumerMember]) -> str:
        """Return the assignor that most members name, the first of the setting if none does."""
        votes = Counter(member.row.assignor for member in members if member.row.assignor in self.assignors)
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
        seen = _Seen(version, self.clock.monotonic(), bool(selection.expressions))
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
        return seen.version == self._topics.version and self.clock.monotonic() - seen.at < self._refresh_s


def check_size(request: MemberReport) -> None:
    texts = (request.member_id, request.instance, request.rack, request.regex, *(request.names or ()))
    if sum(len(text or "") for text in texts) > METADATA_BYTES_MAX:
        message = f"a member may have {METADATA_BYTES_MAX} bytes of metadata"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def keeps_changing(group: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group} keeps changing")


def unknown_member(group: str, member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group}.")


def fenced_member(who: str, known: int, given: int) -> KafkaError:
    message = f"{who} has epoch {known}, not {given}. The member must abandon all its partitions and rejoin."
    return KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _time_for(member: ConsumerMember, progress: Progress) -> int | None:
    """Return how long the member has for what it is to do next, None: it has begun already."""
    if member.is_classic:
        return member.row.rebalance_ms
    if progress.phase != UNREVOKED:
        return 0
    if member.progress.phase == UNREVOKED and member.progress.revoking == progress.revoking:
        return None
    return member.row.rebalance_ms


def _selection(fields: GroupFields) -> Selection:
    return (
        msgspec.json.decode(fields.subscriptions, type=Selection)
        if fields.subscriptions
        else Selection([], {})
    )
