"""Groups of the consumer protocol (KIP-848) and share groups (KIP-932) in Redis, written by scripts in lua/consumer.

A change is made if nothing has changed since it was read, or else returned as None: the caller reads again. What is
stored and cannot be read is a KafkaError KAFKA_STORAGE_ERROR that names the key, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeVar, cast

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.types import (
    NOTHING,
    REMOVED_EPOCH,
    ConsumerMember,
    EpochRow,
    GroupFields,
    GroupView,
    MemberChange,
    Owned,
    Progress,
    SubscriberRow,
    owned_of,
    text_of,
)
from korvet.groups.schedule import Schedule
from korvet.groups.types import CONSUMER, GROUPS_AT_ONCE, SHARE, STREAMS, NamedBytes
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Arg, Reply, errors_about, listed, malformed, parsed, time_ms, value_of
from korvet.redis.scripts import Script
from korvet.turns import in_parts, in_turns

_ADVANCE = scripts.get("group/advance")
_HEARTBEAT = scripts.get("consumer/heartbeat")
_UPDATE = scripts.get("consumer/update")
_LEAVE = scripts.get("consumer/leave")
_CLAIM = scripts.get("consumer/claim")
_ASSIGN = scripts.get("consumer/assign")
_BUMP = scripts.get("consumer/bump")
_STAGE = scripts.get("consumer/stage")
_UPGRADE = scripts.get("consumer/upgrade")
_DOWNGRADE = scripts.get("consumer/downgrade")

ROWS_AT_ONCE = 250
"""Target rows of one script, and members of one read: less than a millisecond of Redis."""

_LEAVING_AT_ONCE = 50
"""Members that one script removes, for the same reason."""

REMOVAL_MS = 2000
"""How late the keeper ends a session, at most: twice its interval. A member that is later was kept from renewing its
session by an outage, after which the keeper begins all sessions again (server/keeper/group_tasks.py)."""

_READS_MAX = 20
"""Reads of all members while some of them leave."""

_FIELDS = (
    "type",
    "state",
    "generation",
    "assignment_epoch",
    "size",
    "classic",
    "assignor",
    "subscriptions",
    "digest",
)

Row = TypeVar("Row")
TopicIndexes = dict[str, list[int]]


class _CurrentRow(msgspec.Struct, frozen=True):
    """What a member owns, by topic id, as JSON."""

    assigned: TopicIndexes
    revoking: TopicIndexes


class Claim(NamedTuple):
    """Whether the caller is to compute the target assignment, the epochs of the group, and how long another one may."""

    granted: bool
    epoch: int
    assignment_epoch: int
    left_ms: int


class GroupMembers(NamedTuple):
    """A group and its members."""

    fields: GroupFields
    members: list[ConsumerMember]


class Updated(NamedTuple):
    """The epoch of the group after a change of a member, and the member's epoch row."""

    epoch: int
    epoch_text: bytes


class Left(NamedTuple):
    """The members left in a group, members of the classic protocol included, and the result of each request."""

    size: int
    classic: int
    outcomes: list[ErrorCode]


class StableGroup(NamedTuple):
    """A group of classic members that all have what they are to have: protocol, and assignments as they get them."""

    epoch: int
    protocol: str
    assignments: Mapping[str, bytes]


class Targets(NamedTuple):
    """A target assignment: rows by member that differ from the last ones, and what it was made of."""

    epoch: int
    assignor: str
    subscriptions: bytes
    digest: str
    rows: Mapping[str, Owned]


class ConsumerStore:
    """The groups of one type of one namespace. Every method raises StorageUnavailableError if Redis is away.

    Partitions of a share group have no owners; all other rows of both types are alike.
    """

    def __init__(self, redis: Redis, keys: Keys, schedule: Schedule, kind: str = CONSUMER) -> None:
        self.kind = kind
        self._redis = redis
        self._keys = keys
        self._schedule = schedule

    def channel(self, group: str) -> str:
        return self._keys.group_channel(group)

    def renew(
        self, group: str, member_id: str, instance: str, epoch: int, session_ms: int, endpoints: str = ""
    ) -> bool:
        """Renew the session of a member that has all that it is to have; returns False for any other.

        `endpoints` is for a streams group. Raises KafkaError by the names that lua/consumer/heartbeat.lua lists.
        """
        args = (self.kind, member_id, instance, epoch, session_ms, endpoints)
        with errors_about(self._keys.group_members(group)):
            return self._redis.script(_HEARTBEAT, self._keys.membership_of(group), args) == 1

    def read(self, group: str, member_id: str, instance: str) -> GroupView:
        """Return the group, the member, and the member that has the instance id.

        A session of a member of a share group that has just ended is ended here, as the keeper does (REMOVAL_MS). In
        other groups that would cost partitions where an outage lasts about as long as a session.
        """
        state, members, deadlines, assignments = self._keys.consumer_group(group)
        names = [member_id]
        commands = [
            *(("HMGET", state, *_FIELDS), ("HGET", members, f"i:{instance}")),
            *(("ZSCORE", deadlines, member_id), ("TIME",)),
        ]
        reply, holder, deadline, now = self._redis.transaction(commands)
        late_ms = time_ms(now) - float(deadline) if isinstance(deadline, bytes) else 0
        if self.kind == SHARE and 0 < late_ms <= REMOVAL_MS:
            self._end_sessions(group)
            reply, holder, *_ = self._redis.transaction(commands)
        result = listed(state, reply)
        if isinstance(holder, bytes) and instance and holder.decode() != member_id:
            names.append(holder.decode())
        fields = _group_fields(state, cast("list[bytes | None]", result))
        stored = self._members(members, assignments, names) if fields.kind else {}
        member = stored.get(member_id)
        other = stored.get(names[-1]) if isinstance(holder, bytes) and instance else None
        return GroupView(fields, member, other)

    def _end_sessions(self, group: str) -> None:
        due = 0
        while due == 0:
            due = cast("int", self._run(_ADVANCE, group, ()))
        self._schedule.lower_soon(group, due)

    def has(self, group: str, member_id: str) -> bool:
        members = self._keys.group_members(group)
        with errors_about(members):
            return self._redis.call("HEXISTS", members, f"e:{member_id}") == 1

    def fields(self, group: str) -> GroupFields:
        state = self._keys.group_state(group)
        [reply] = self._redis.pipeline([("HMGET", state, *_FIELDS)])
        return _group_fields(state, cast("list[bytes | None]", listed(state, reply)))

    def describe(self, groups: Sequence[str]) -> list[GroupMembers | KafkaError]:
        """Return each group with its members, a hundred groups in three round trips if they are small.

        In the answers KafkaError: GROUP_ID_NOT_FOUND for a group of another type too, INVALID_GROUP_ID for an empty
        name, KAFKA_STORAGE_ERROR.
        """
        outcomes: list[GroupMembers | KafkaError] = []
        for part in in_parts(groups, GROUPS_AT_ONCE) if groups else ():
            keys = [self._keys.group_state(group) for group in part]
            replies = self._redis.pipeline([("HMGET", key, *_FIELDS) for key in keys])
            fields = [
                parsed(key, "the group", reply, partial(self._own_fields, group, key))
                for group, key, reply in zip(part, keys, replies, strict=True)
            ]
            stored = zip(part, fields, strict=True)
            members = self._members_of([group for group, own in stored if isinstance(own, GroupFields)])
            for group, own in zip(part, fields, strict=True):
                if isinstance(own, KafkaError):
                    outcomes.append(own)
                    continue
                owned = members[group]
                outcomes.append(owned if isinstance(owned, KafkaError) else GroupMembers(own, owned))
        return outcomes

    def _own_fields(self, group: str, key: str, reply: Iterable[bytes | None]) -> GroupFields:
        if not group:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")
        fields = _group_fields(key, reply)
        if fields.kind == self.kind:
            return fields
        what = "Streams group" if self.kind == STREAMS else "Group"
        what = f"Group {group} is not a {self.kind} group." if fields.state else f"{what} {group} not found."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, what)

    def _members_of(self, groups: Sequence[str]) -> dict[str, list[ConsumerMember] | KafkaError]:
        """Return the members of each group, read as `all_members` does, those of small groups together."""
        outcomes: dict[str, list[ConsumerMember] | KafkaError] = {}
        keys = [self._keys.consumer_group(group) for group in groups]
        replies = self._redis.pipeline([("ZRANGE", deadlines, 0, -1) for _, _, deadlines, _ in keys])
        waiting: list[tuple[str, list[str]]] = []
        for group, (_, _, deadlines, _), reply in zip(groups, keys, replies, strict=True):
            names = parsed(deadlines, "a member", reply, _names)
            if isinstance(names, KafkaError):
                outcomes[group] = names
            elif not 0 < len(names) <= ROWS_AT_ONCE:
                outcomes[group] = self._all_members_or_error(group) if names else []
            else:
                waiting.append((group, names))
        while waiting:
            count = _that_fit([len(names) for _, names in waiting], ROWS_AT_ONCE)
            chunk, waiting = waiting[:count], waiting[count:]
            outcomes |= self._members_at_once(chunk)
        return outcomes

    def _members_at_once(
        self, groups: Sequence[tuple[str, list[str]]]
    ) -> dict[str, list[ConsumerMember] | KafkaError]:
        outcomes: dict[str, list[ConsumerMember] | KafkaError] = {}
        keys = [self._keys.consumer_group(group) for group, _ in groups]
        calls = [
            _row_commands(members, assignments, names)
            for (_, members, _, assignments), (_, names) in zip(keys, groups, strict=True)
        ]
        answers = self._redis.transactions(calls)
        for (group, names), (_, members, _, assignments), replies in zip(groups, keys, answers, strict=True):
            parse = partial(_rows, members, assignments, names)
            by_id = parsed(members, "a member", replies, parse)
            if isinstance(by_id, KafkaError):
                outcomes[group] = by_id
            else:
                is_whole = len(by_id) == len(names)
                outcomes[group] = list(by_id.values()) if is_whole else self._all_members_or_error(group)
        return outcomes

    def _all_members_or_error(self, group: str) -> list[ConsumerMember] | KafkaError:
        try:
            return self.all_members(group)
        except KafkaError as error:
            return error.without_frames()

    def all_members(self, group: str) -> list[ConsumerMember]:
        """Return all members by their ids, in parts: one that joins meanwhile may be missing.

        If one is replaced meanwhile neither of both may be found, so all are read again while some have gone.
        """
        deadlines = self._keys.consumer_group(group)[2]
        result: list[ConsumerMember] = []
        names: list[str] | None = None
        for _ in range(_READS_MAX):
            [reply] = self._redis.pipeline([("ZRANGE", deadlines, 0, -1)])
            before, names = names, _names(cast("list[bytes]", listed(deadlines, reply)))
            if before == names:
                break  # rows are missing, not members
            result = self.some_members(group, names)
            if len(result) == len(names):
                break
        return result

    def some_members(self, group: str, names: Iterable[str]) -> list[ConsumerMember]:
        """Return those of the members that there are, by their ids."""
        _, members, _, assignments = self._keys.consumer_group(group)
        result: list[ConsumerMember] = []
        wanted = sorted(set(names))
        for chunk in in_parts(wanted, ROWS_AT_ONCE) if wanted else ():
            result += self._members(members, assignments, chunk).values()
        return result

    def owners(self, group: str, member_id: str, wanted: Owned) -> dict[tuple[str, int], str]:
        """Return the owners of those of the partitions that another member owns."""
        key = self._keys.group_assignments(group)
        result: dict[tuple[str, int], str] = {}
        for chunk in in_parts(sorted(wanted), 1000) if wanted else ():
            [reply] = self._redis.pipeline([("HMGET", key, *map(_owner_field, chunk))])
            owners = cast("list[bytes | None]", listed(key, reply))
            own = member_id.encode()
            result |= {
                item: owner.decode()
                for item, owner in zip(chunk, owners, strict=True)
                if owner is not None and owner != own
            }
        return result

    def update(
        self, group: str, fields: GroupFields, change: MemberChange, session_ms: int, size_max: int
    ) -> Updated | None:
        """Write a member; returns None if something has changed since it was read.

        Raises KafkaError by the names that lua/consumer/update.lua lists.
        """
        before, replaced, progress = change.before, change.replaced, change.progress
        base = replaced or before
        was = Progress() if base is None else base.progress
        released = [] if replaced else sorted(was.owned - progress.owned)
        acquired = sorted(progress.owned if replaced else progress.owned - was.owned)
        if self.kind == SHARE:
            released, acquired = [], []
        moved = replaced is not None or (progress.assigned, progress.revoking) != (was.assigned, was.revoking)
        current = _CurrentRow(text_of(progress.assigned), text_of(progress.revoking))
        args: list[Arg] = [
            change.member_id,
            before.epoch_text if before else b"",
            change.instance,
            replaced.member_id if replaced else "",
            replaced.epoch_text if replaced else b"",
            msgspec.json.encode(change.row) if change.row else b"",
            msgspec.msgpack.encode(change.protocols) if change.protocols else b"",
            progress.epoch,
            progress.previous,
            progress.phase,
            "" if change.by_ms is None else change.by_ms,
            msgspec.json.encode(current) if moved else b"",
            session_ms,
            int(change.bumps),
            size_max,
            fields.assignment_epoch if fields.kind else fields.epoch,
            len(released),
            *map(_owner_field, in_turns(released)),
            *map(_owner_field, in_turns(acquired)),
        ]

        def run(listed_ms: int) -> list[Reply]:
            return cast("list[Reply]", self._run_of_kind(_UPDATE, group, [group, listed_ms, *args]))

        done, due, epoch, *epoch_text = self._schedule.create(group, run)
        if not done:
            return None
        self._schedule.lower_soon(group, cast("int", due))
        return Updated(cast("int", epoch), cast("bytes", epoch_text[0]))

    def leave(self, group: str, leaving: Sequence[tuple[str, str, int]]) -> Left:
        """Remove members, each by its id, its instance id and the epoch that it leaves with.

        Raises KafkaError by the names that lua/consumer/leave.lua lists.
        """
        outcomes = [b""] * len(leaving)
        waiting = list(range(len(leaving)))
        while True:
            chunk = waiting[:_LEAVING_AT_ONCE]
            args = [part for place in chunk for part in leaving[place]]
            due, size, classic, *names = cast("list[int]", self._run_of_kind(_LEAVE, group, args))
            self._schedule.lower_soon(group, due)
            for place, name in zip(chunk, cast("list[bytes]", names), strict=True):
                outcomes[place] = name
            waiting = [place for place in chunk if outcomes[place] == b"AGAIN"] + waiting[len(chunk) :]
            if not waiting:
                return Left(size, classic, [ErrorCode[name.decode()] for name in outcomes])

    def claim(self, group: str, token: str, lease_ms: int) -> Claim:
        """Ask for the right to compute the target assignment, 0: give it back; raises KafkaError GROUP_ID_NOT_FOUND."""
        state = self._keys.group_state(group)
        with errors_about(state):
            args = (self._keys.group_channel(group), self.kind, token, lease_ms)
            granted, *rest = cast("list[int]", self._redis.script(_CLAIM, (state,), args))
        return Claim(granted == 1, *rest)

    def assign(self, group: str, token: str, targets: Targets) -> bool:
        """Write a target assignment in parts; returns False if the right to do so has ended."""
        rows = [(name, msgspec.json.encode(text_of(own))) for name, own in in_turns(targets.rows.items())]
        parts = list(in_parts(rows, ROWS_AT_ONCE))
        for place, chunk in enumerate(parts, 1):
            args: list[Arg] = [token, targets.epoch, int(place == len(parts))]
            args += (targets.assignor, targets.subscriptions, targets.digest)
            args += (part for row in chunk for part in row)
            if self._run_of_kind(_ASSIGN, group, args) != 1:
                return False
        return True

    def bump(self, group: str, fields: GroupFields, subscriptions: bytes) -> bool:
        """Begin a new group epoch for other topics; returns False if the group is not at the one that was read."""
        return self._run_of_kind(_BUMP, group, [fields.epoch, fields.digest, subscriptions]) == 1

    def revision(self, group: str) -> str:
        """Return what differs after each change of a classic group."""
        result = self._redis.call("HGET", self._keys.group_state(group), "revision")
        return "" if result is None else cast("bytes", result).decode()

    def upgrade(self, group: str, token: str, revision: str, fields: Sequence[tuple[str, bytes]]) -> bool:
        """Make a classic group one of the consumer protocol, whose members own what `fields` say.

        Returns False, and nothing is done, if it is at another revision by now.
        """
        keys = self._keys.group_state(group), self._keys.group_assignments(group)
        for place, chunk in enumerate(in_parts(fields, ROWS_AT_ONCE)):
            args: list[Arg] = [token, revision, int(place == 0), *(part for item in chunk for part in item)]
            with errors_about(keys[1]):
                if self._redis.script(_STAGE, keys, args) != 1:
                    return False
        return self._run(_UPGRADE, group, [token, revision]) == 1

    def downgrade(self, group: str, size_max: int, stable: StableGroup | None = None) -> bool:
        """Make a group of classic members alone a classic group; returns False if it is none.

        Its members join again, unless it is `stable`: then returns False if it has changed since it was read.
        """
        args: list[Arg] = [size_max]
        if stable is not None:
            args += (stable.epoch, stable.protocol)
            args += (part for row in in_turns(stable.assignments.items()) for part in row)
        due = cast("int", self._run(_DOWNGRADE, group, args))
        if due >= 0:
            self._schedule.lower_soon(group, due)
        return due >= 0

    def supports_one_of(self, group: str, names: Sequence[str]) -> bool:
        """Whether all members of the classic protocol support one of these protocols, as of now."""
        key = self._keys.group_state(group)
        [reply] = self._redis.pipeline([("HMGET", key, "classic", *(f"s:{name}" for name in names))])
        classic, *counts = (int(item or 0) for item in cast("list[bytes | None]", listed(key, reply)))
        return any(count >= classic for count in counts)

    def _members(self, members: str, assignments: str, names: Sequence[str]) -> dict[str, ConsumerMember]:
        replies = self._redis.transaction(_row_commands(members, assignments, names))
        return _rows(members, assignments, names, replies)

    def _run_of_kind(self, script: Script, group: str, args: Sequence[Arg]) -> Reply:
        """Run a script that does nothing to a group of another type."""
        return self._run(script, group, [self.kind, *args])

    def _run(self, script: Script, group: str, args: Sequence[Arg]) -> Reply:
        with errors_about(self._keys.group_members(group)):
            reply = self._redis.script(
                script, self._keys.consumer_group(group), (self._keys.group_channel(group), *args)
            )
        return value_of(reply)


def _names(ids: Iterable[bytes]) -> list[str]:
    return sorted(member_id.decode() for member_id in ids)


def _that_fit(sizes: Sequence[int], most: int) -> int:
    """Return how many of the first sizes are not more than `most` together, one at least."""
    return max(1, sum(total <= most for total in accumulate(sizes)))


def _row_commands(members: str, assignments: str, names: Sequence[str]) -> list[Sequence[Arg]]:
    rows = [f"{kind}:{name}" for name in names for kind in "mep"]
    owned = [f"{kind}:{name}" for name in names for kind in "ct"]
    return [("HMGET", members, *rows), ("HMGET", assignments, *owned)]


def _rows(
    members: str, assignments: str, names: Sequence[str], replies: Sequence[Reply]
) -> dict[str, ConsumerMember]:
    """Return the members that the replies to `_row_commands` have, by id."""
    texts = cast("list[bytes | None]", listed(members, replies[0]))
    parts = cast("list[bytes | None]", listed(assignments, replies[1]))
    result = {}
    for at, name in enumerate(in_turns(names)):
        row, epoch, protocols = texts[3 * at : 3 * at + 3]
        if row is None or epoch is None:
            continue
        try:
            stored = _stored(name, row, epoch, protocols, parts[2 * at], parts[2 * at + 1])
        except (msgspec.DecodeError, ValueError) as error:
            raise malformed(members, f"the row of member {name}") from error
        if stored.progress.epoch != REMOVED_EPOCH:
            result[name] = stored
    return result


def owned_in(row: bytes) -> Owned:
    """Return what the row of a member says that it owns; raises msgspec.DecodeError."""
    current = msgspec.json.decode(row, type=_CurrentRow)
    return owned_of(current.assigned) | owned_of(current.revoking)


def _owner_field(partition: tuple[str, int]) -> str:
    return f"o:{partition[0]}:{partition[1]}"


def _stored(
    name: str,
    row: bytes,
    epoch_text: bytes,
    protocols: bytes | None,
    current: bytes | None,
    target: bytes | None,
) -> ConsumerMember:
    epoch = msgspec.json.decode(epoch_text, type=EpochRow)
    owned = _CurrentRow({}, {}) if current is None else msgspec.json.decode(current, type=_CurrentRow)
    wanted = NOTHING if target is None else owned_of(msgspec.json.decode(target, type=TopicIndexes))
    return ConsumerMember(
        member_id=name,
        row=msgspec.json.decode(row, type=SubscriberRow),
        epoch_text=epoch_text,
        by=epoch.by,
        progress=Progress(
            epoch.epoch, epoch.previous, epoch.phase, owned_of(owned.assigned), owned_of(owned.revoking)
        ),
        target=wanted,
        protocols=() if protocols is None else msgspec.msgpack.decode(protocols, type=NamedBytes),
    )


def _group_fields(key: str, results: Iterable[bytes | None]) -> GroupFields:
    texts = [result or b"" for result in results]
    kind, state, epoch, assignment_epoch, size, classic, assignor, subscriptions, digest = texts
    try:
        return GroupFields(
            kind=kind.decode(),
            state=state.decode(),
            epoch=int(epoch or 0),
            assignment_epoch=int(assignment_epoch or 0),
            size=int(size or 0),
            classic=int(classic or 0),
            assignor=assignor.decode(),
            subscriptions=subscriptions,
            digest=digest.decode(),
        )
    except ValueError as error:
        raise malformed(key, "the group") from error
