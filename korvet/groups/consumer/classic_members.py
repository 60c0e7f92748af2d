"""Members of the classic protocol in a group of the consumer protocol (KIP-848): what JoinGroup and its like do there.

The broker assigns their partitions too, so none of them leads. A member joins and gets its epoch as the generation at
once, and its assignment with SyncGroup. To have it go a step the broker answers its heartbeats with
REBALANCE_IN_PROGRESS: it joins again, and says what it still owns. It has its rebalance timeout to join, and again to
sync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.assignment import ATTEMPTS_MAX, Written, keeps_changing
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.store import ROWS_AT_ONCE, StableGroup
from korvet.groups.consumer.subscriptions import IsVisible, names_of
from korvet.groups.consumer.types import (
    LEAVE_EPOCH,
    UNRELEASED,
    UNREVOKED,
    ConsumerMember,
    GroupFields,
    GroupView,
    MemberChange,
    Owned,
    Progress,
    SubscriberRow,
    text_of,
)
from korvet.groups.embedded_protocol import (
    ClassicSubscription,
    encode_assignment,
    parse_subscription,
    version_of,
)
from korvet.groups.types import (
    CONSUMER,
    Joined,
    JoinError,
    JoinRequest,
    MemberIdRequiredError,
    Synced,
    SyncRequest,
)
from korvet.topics.registry import TopicRegistry, id_bytes, id_text
from korvet.topics.types import TopicRef


class ClassicMembers:
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError by Kafka's rules.

    None is returned for a group that is a classic one by now: the caller goes on with that, also where `join` says so.
    """

    def __init__(self, groups: ConsumerGroups, migration: Migration, topics: TopicRegistry) -> None:
        self._groups = groups
        self._store = groups.store
        self._migration = migration
        self._topics = topics

    def join(self, request: JoinRequest, new_member_id: str, is_visible: IsVisible) -> Joined | str:
        """Join, or join again; a step towards the member's target.

        Returns the member's id, "" for a new one, if the group is a classic one by now, perhaps with this member in it.
        """
        group = request.group
        member_id = request.member_id or new_member_id
        subscription = self._subscription(request)
        for _ in range(ATTEMPTS_MAX):
            view = self._store.read(group, member_id, request.instance)
            if self._migration.is_classic_again(group, view.group):
                return request.member_id
            self._check_protocols(request, view)
            if request.require_known_member_id and not request.member_id and not request.instance:
                raise MemberIdRequiredError(member_id)
            change = self._change(request, member_id, subscription, view)
            done = self._store.update(group, view.group, change, request.session_ms, self._groups.size_max)
            if done is not None:
                break
        else:
            raise keeps_changing(group)
        fields = self._store.fields(group)
        # As in Kafka, a static member that goes back to the classic protocol costs no rebalance.
        stable = self._stable(group, fields) if change.replaced else None
        if stable is not None and self._migration.is_classic_as_it_was(group, stable):
            return _joined(member_id, fields.epoch, stable.protocol)
        if self._migration.is_classic_again(group, fields):
            return member_id
        written = Written(
            member_id, "", done.epoch_text, done.epoch if change.bumps else 0, is_resubscribed=change.bumps
        )
        try:
            self._groups.assign(group, is_visible, written)
            _, progress = self._groups.step(group, written, self._owned(subscription))
        except KafkaError:
            if self._store.fields(group).kind:
                raise
            return member_id
        return _joined(member_id, progress.epoch, request.protocols[0][0])

    def sync(self, request: SyncRequest) -> Synced | None:
        for _ in range(ATTEMPTS_MAX):
            view = self._store.read(request.group, request.member_id, request.instance)
            if not view.group.kind:
                return None
            member = _member(request.group, request.member_id, request.instance, request.generation, view)
            protocol, metadata = member.protocols[0] if member.protocols else ("", b"")
            if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
                message = f"the group is of type {CONSUMER}, and the member joined with protocol {protocol}"
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
            is_behind = view.group.epoch > member.progress.epoch and member.progress.phase != UNREVOKED
            by_ms = _time_to_join(member) if is_behind else 0
            if not self._keep(request.group, view, member, by_ms):
                continue
            if is_behind:
                raise _must_join(request.group)
            assignment = encode_assignment(version_of(metadata) or 0, self._names(member.progress.assigned))
            return Synced(CONSUMER, protocol, assignment)
        raise keeps_changing(request.group)

    def heartbeat(self, group: str, member_id: str, instance: str, generation: int) -> bool | None:
        """Renew the member's session; raises KafkaError REBALANCE_IN_PROGRESS if it is to join again."""
        for _ in range(ATTEMPTS_MAX):
            view = self._store.read(group, member_id, instance)
            if self._migration.is_classic_again(group, view.group):
                return None
            member = _member(group, member_id, instance, generation, view)
            must_join = self._has_next_step(group, view, member)
            # Who has joined and not synced keeps its time for that.
            if not self._keep(group, view, member, _time_to_join(member) if must_join else None):
                continue
            if must_join:
                raise _must_join(group)
            return True
        raise keeps_changing(group)

    def leave(self, group: str, members: Sequence[tuple[str, str]]) -> list[ErrorCode] | None:
        """Remove members of either protocol, each named by its id or its instance id; returns the outcome for each.

        Admin clients remove members of the consumer protocol this way too.
        """
        try:
            left = self._store.leave(group, [(*member, LEAVE_EPOCH) for member in members])
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                error.without_frames()
                return None
            raise
        self._migration.after_leaving(group, left)
        return left.outcomes

    def _change(
        self, request: JoinRequest, member_id: str, subscription: ClassicSubscription, view: GroupView
    ) -> MemberChange:
        member, holder = view.member, view.holder
        if request.instance and request.member_id:
            if holder is None:
                message = f"instance {request.instance} is unknown in group {request.group}"
                raise JoinError(ErrorCode.UNKNOWN_MEMBER_ID, message)
            if holder.member_id != member_id:
                message = f"another member of group {request.group} has instance {request.instance} now"
                raise JoinError(ErrorCode.FENCED_INSTANCE_ID, message)
        replaced = (
            holder if request.instance and holder is not None and holder.member_id != member_id else None
        )
        base = replaced or member
        row = SubscriberRow(
            session_ms=request.session_ms,
            rebalance_ms=max(request.rebalance_ms, 0),
            instance=request.instance or (base.row.instance if base else ""),
            client_id=request.client_id,
            client_host=request.client_host,
            protocols=tuple(name for name, _ in request.protocols),
            rack=subscription.rack_id or "",
        )
        is_same = base is not None and set(names_of(base)) == set(subscription.topics) and not base.row.regex
        progress = Progress() if base is None else base.progress
        return MemberChange(
            member_id=member_id,
            instance=row.instance,
            before=None if replaced else member,
            progress=Progress(assigned=progress.assigned) if replaced else progress,
            row=row,
            protocols=request.protocols,
            replaced=replaced,
            bumps=not is_same,
        )

    def _stable(self, group: str, fields: GroupFields) -> StableGroup | None:
        """Return the group as a stable one of the classic protocol; None: it is none yet, or too large for that."""
        if (
            fields.classic < fields.size
            or fields.size > ROWS_AT_ONCE
            or fields.epoch != fields.assignment_epoch
        ):
            return None
        members = self._store.all_members(group)
        protocols = [dict(item.protocols) for item in members]
        votes = Counter(
            next((name for name in names if all(name in item for item in protocols)), "")
            for names in protocols
        )
        if not votes or "" in votes or any(item.progress.owned != item.target for item in members):
            return None
        [(protocol, _)] = votes.most_common(1)
        assignments = {
            member.member_id: encode_assignment(version_of(item[protocol]) or 0, self._names(member.target))
            for member, item in zip(members, protocols, strict=True)
        }
        return StableGroup(fields.epoch, protocol, assignments)

    def _keep(self, group: str, view: GroupView, member: ConsumerMember, by_ms: int | None) -> bool:
        """Renew a session; `by_ms` is the time for what the member is to do next, None: what is left of it."""
        change = MemberChange(
            member_id=member.member_id, instance="", before=member, progress=member.progress, by_ms=by_ms
        )
        session_ms, size_max = member.row.session_ms, self._groups.size_max
        return self._store.update(group, view.group, change, session_ms, size_max) is not None

    def _has_next_step(self, group: str, view: GroupView, member: ConsumerMember) -> bool:
        progress = member.progress
        if progress.epoch < view.group.epoch or progress.phase == UNREVOKED:
            return True
        wanted = member.target - progress.owned
        return progress.phase == UNRELEASED and not self._store.owners(group, member.member_id, wanted)

    def _check_protocols(self, request: JoinRequest, view: GroupView) -> None:
        names = [name for name, _ in request.protocols]
        supported = bool(names) and request.protocol_type == CONSUMER and view.group.kind == CONSUMER
        if supported and view.group.classic:
            supported = self._store.supports_one_of(request.group, names)
        if not supported:
            message = (
                f"group {request.group} is of type {view.group.kind}, or its members support no such protocol"
            )
            raise JoinError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)

    @staticmethod
    def _subscription(request: JoinRequest) -> ClassicSubscription:
        _, metadata = request.protocols[0] if request.protocols else ("", b"")
        return parse_subscription(metadata) or ClassicSubscription(topics=[])

    def _owned(self, subscription: ClassicSubscription) -> Owned:
        result = []
        for owned_partition in subscription.owned_partitions:
            topic = self._topics.get_cached(owned_partition.topic)
            if topic is not None:
                result += [(id_text(topic.id), index) for index in owned_partition.partitions]
        return frozenset(result)

    def _names(self, owned: Owned) -> dict[str, list[int]]:
        result: dict[str, list[int]] = {}
        for topic_id, indexes in text_of(owned).items():
            topic = self._topics.cached(TopicRef("", id_bytes(topic_id)))
            if topic is not None:
                result[topic.name] = indexes
        return result


def _joined(member_id: str, generation: int, protocol: str) -> Joined:
    return Joined(
        member_id=member_id,
        generation=generation,
        protocol_type=CONSUMER,
        protocol=protocol,
        leader="",
        skip_assignment=False,
        members=(),
    )


def _member(group: str, member_id: str, instance: str, generation: int, view: GroupView) -> ConsumerMember:
    who = f"member {member_id} of group {group}"
    if instance and view.holder is not None and view.holder.member_id != member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{who}, instance {instance}, was fenced")
    member = view.member
    if member is None or not member.is_classic or (instance and view.holder is None):
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"{who} is unknown, or does not use the classic protocol"
        )
    if member.progress.epoch != generation:
        message = f"{who} has epoch {member.progress.epoch}, not {generation}"
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)
    return member


def _time_to_join(member: ConsumerMember) -> int | None:
    """Return the time that a member has to join again; None if it was asked to before."""
    return None if member.by else member.row.rebalance_ms


def _must_join(group: str) -> KafkaError:
    return KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"the members of group {group} must join again")
