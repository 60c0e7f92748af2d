"""The members of groups in Redis: every transition is one script under lua/group, on keys of the group's own slot.

What is stored and cannot be read is a KafkaError KAFKA_STORAGE_ERROR that names the key, and stays as it is. A missing
instance id or protocol is the empty text; `instance_text` in types.py says how an empty instance id is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.store import ConsumerStore
from korvet.groups.schedule import Schedule
from korvet.groups.streams.store import StreamsStore
from korvet.groups.types import (
    DEAD,
    GROUPS_AT_ONCE,
    SHARE,
    Joined,
    JoinedMember,
    JoinOutcome,
    JoinRequest,
    NamedBytes,
    StoredGroup,
    StoredMember,
    Synced,
    SyncOutcome,
    SyncRequest,
    Waiting,
)
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Arg, Reply, RespError, parsed, value_of
from korvet.redis.scripts import Script
from korvet.turns import in_parts

_JOIN = scripts.get("group/join")
_SYNC = scripts.get("group/sync")
_HEARTBEAT = scripts.get("group/heartbeat")
_LEAVE = scripts.get("group/leave")
_ADVANCE = scripts.get("group/advance")
_RESUME = scripts.get("group/resume")
_LOOK = scripts.get("group/look")


class _MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A member's row as JSON."""

    session_ms: int
    rebalance_ms: int
    instance: str
    client_id: str
    client_host: str
    protocols: tuple[str, ...]


class GroupStore:
    """The groups of one namespace. Every method raises StorageUnavailableError if Redis is away.

    Requests of members return None, and do nothing, if the group is of another type, and has members or keeps its type.
    """

    def __init__(
        self, redis: Redis, keys: Keys, *, size_max: int, initial_delay_ms: int, clock: Clock = CLOCK
    ) -> None:
        """`size_max` is the most members of a group, `initial_delay_ms` how long the first rebalance of one waits."""
        self._redis = redis
        self._keys = keys
        self.schedule = Schedule(redis, keys.groups, clock=clock)
        """The list of groups, which gets the deadlines that transitions make a little later."""
        self.consumers = ConsumerStore(redis, keys, self.schedule)
        """The groups of the consumer protocol."""
        self.shares = ConsumerStore(redis, keys, self.schedule, SHARE)
        """The share groups."""
        self.streams = StreamsStore(redis, keys, self.schedule)
        """The streams groups."""
        self._size_max = size_max
        self._initial_delay_ms = initial_delay_ms

    def channel(self, group: str) -> str:
        """Return the channel on which transitions of the group are announced."""
        return self._keys.group_channel(group)

    def join(self, request: JoinRequest, new_member_id: str) -> JoinOutcome | None:
        """Join, a new member with `new_member_id`; raises KafkaError by the names that lua/group/join.lua lists."""
        row = _MemberRow(
            session_ms=request.session_ms,
            rebalance_ms=max(request.rebalance_ms, 0),
            instance=request.instance,
            client_id=request.client_id,
            client_host=request.client_host,
            protocols=tuple(name for name, _ in request.protocols),
        )
        args = (
            request.member_id,
            new_member_id,
            int(request.require_known_member_id),
            int(request.supports_skip_assignment),
            self._size_max,
            self._initial_delay_ms,
            request.protocol_type,
            msgspec.json.encode(row),
            msgspec.msgpack.encode(request.protocols),
        )

        def run(listed_ms: int) -> list[Reply]:
            return self._change(_JOIN, request.group, (listed_ms, *args)) or []

        reply = self.schedule.create(request.group, run)
        if not reply:
            return None
        self._due_at(request.group, reply[1])
        if reply[0] == b"REFUSED":
            _, _, name, message = cast("list[bytes]", reply)
            raise KafkaError(ErrorCode[name.decode()], message.decode())
        if reply[0] == b"WAIT":
            _, _, member, generation, due = cast("tuple[bytes, int, bytes, bytes, int]", tuple(reply))
            return Waiting(member.decode(), int(generation), _due_ms(due))
        return self._joined(request.group, reply)

    def sync(self, request: SyncRequest) -> SyncOutcome | None:
        """Sync; raises KafkaError by the names that lua/group/sync.lua lists."""
        args: list[Arg] = [
            request.member_id,
            request.instance,
            request.generation,
            *("" if name is None else f"={name}" for name in (request.protocol_type, request.protocol)),
            *(part for assignment in request.assignments for part in assignment),
        ]
        reply = self._change(_SYNC, request.group, args)
        if reply is None:
            return None
        if reply[0] == b"WAIT":
            return Waiting(request.member_id, request.generation, _due_ms(reply[1]))
        self._due_at(request.group, reply[1])
        return _synced(reply)

    def poll_join(self, group: str, instance: str, waiting: Waiting) -> JoinOutcome:
        """Return the outcome for a member that waits in a join; raises KafkaError as lua/group/look.lua lists."""
        reply = self._poll("join", group, instance, waiting)
        return reply if isinstance(reply, Waiting) else self._joined(group, reply)

    def poll_sync(self, group: str, instance: str, waiting: Waiting) -> SyncOutcome:
        """Return the outcome for a member that waits in a sync; raises KafkaError as lua/group/look.lua lists."""
        reply = self._poll("sync", group, instance, waiting)
        return reply if isinstance(reply, Waiting) else _synced(reply)

    def heartbeat(self, group: str, member_id: str, instance: str, generation: int) -> bool | None:
        """Renew a session; raises KafkaError by the names that lua/group/heartbeat.lua lists."""
        return None if self._ask(_HEARTBEAT, group, (member_id, instance, generation)) is None else True

    def leave(self, group: str, members: Sequence[tuple[str, str]]) -> list[ErrorCode] | None:
        """Remove members, each named by its id and its instance id; returns the outcome for each."""
        reply = self._change(_LEAVE, group, [part for member in members for part in member])
        if reply is None:
            return None
        due, *names = cast("list[bytes]", reply)
        self._due_at(group, due)
        return [ErrorCode[name.decode()] for name in names]

    def advance(self, group: str) -> None:
        """End sessions and phases whose time is over; the group may be of any type."""
        keys = self._keys.consumer_group(group)
        due: Reply = 0
        while due == 0:
            due = self._run(_ADVANCE, group, keys, (self.channel(group),))
        self._due_at(group, due)

    def advance_all(self, groups: Sequence[str]) -> list[int | KafkaError]:
        """Advance groups; returns for each when (ms) something is due, NOTHING_DUE, NOT_THERE or its error."""
        outcomes = dict(zip(groups, self._change_all(_ADVANCE, groups), strict=True))
        while unfinished := [group for group, outcome in outcomes.items() if outcome == 0]:
            outcomes |= zip(unfinished, self._change_all(_ADVANCE, unfinished), strict=True)
        return [outcomes[group] for group in groups]

    def resume_all(self, groups: Sequence[str]) -> list[int | KafkaError]:
        """Begin all sessions again, after a time in which members could not renew them; returns the same."""
        return self._change_all(_RESUME, groups)

    def describe(self, groups: Sequence[str]) -> list[StoredGroup | KafkaError]:
        """Return each group as it is now, all of its data of one moment, or its error."""
        outcomes: list[StoredGroup | KafkaError] = []
        for chunk in in_parts(groups, GROUPS_AT_ONCE) if groups else ():
            keys = [(self._keys.group_state(group), self._keys.group_members(group)) for group in chunk]
            replies = self._redis.transactions([[("HGETALL", key) for key in pair] for pair in keys])
            outcomes += map(self._stored, chunk, replies)
        return outcomes

    def _stored(self, group: str, replies: list[Reply] | RespError | KafkaError) -> StoredGroup | KafkaError:
        if isinstance(replies, KafkaError):
            return replies.without_frames()
        try:
            if isinstance(replies, RespError):
                raise replies
            state, members = (cast("list[bytes]", value_of(reply)) for reply in replies)
            return _described(_pairs(state), _pairs(members))
        except (RespError, ValueError, msgspec.DecodeError) as error:
            return self._malformed(group, str(error))

    def _poll(self, what: str, group: str, instance: str, waiting: Waiting) -> Waiting | list[Reply]:
        args = (what, waiting.member_id, instance, waiting.generation)
        reply = cast("list[Reply]", self._run(_LOOK, group, self._keys.membership_of(group), args))
        return waiting._replace(due_ms=_due_ms(reply[1])) if reply[0] == b"WAIT" else reply

    def _change(self, script: Script, group: str, args: Sequence[Arg]) -> list[Reply] | None:
        return cast("list[Reply] | None", self._ask(script, group, (self.channel(group), *args)))

    def _ask(self, script: Script, group: str, args: Sequence[Arg]) -> Reply:
        """Run a script that reads the group's type first; returns None if that is another one."""
        try:
            return self._run(script, group, self._keys.membership_of(group), args)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None

    def _change_all(self, script: Script, groups: Sequence[str]) -> list[int | KafkaError]:
        replies = self._redis.scripts(
            [(script, self._keys.consumer_group(group), (self.channel(group),)) for group in groups]
        )
        keys = map(self._keys.group_members, groups)
        return [parsed(key, "a deadline", reply, int) for key, reply in zip(keys, replies, strict=True)]

    def _due_at(self, group: str, due: Reply) -> None:
        self.schedule.lower_soon(group, cast("int", due))

    def _run(self, script: Script, group: str, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        try:
            return self._redis.script(script, keys, args)
        except RespError as error:
            raise self._malformed(group, str(error)) from error

    def _joined(self, group: str, reply: Sequence[Reply]) -> Joined:
        _, _, member, generation, kind, protocol, leader, skip, *rest = cast("list[bytes]", reply)
        chosen = protocol.decode()
        try:
            members = tuple(
                JoinedMember(
                    rest[at].decode(), rest[at + 1].decode(), _metadata(_protocols(rest[at + 2]), chosen)
                )
                for at in range(0, len(rest), 3)
            )
        except (ValueError, msgspec.DecodeError) as error:
            raise self._malformed(group, str(error)) from error
        return Joined(
            member_id=member.decode(),
            generation=int(generation),
            protocol_type=kind.decode(),
            protocol=chosen,
            leader=leader.decode(),
            skip_assignment=bool(skip),
            members=members,
        )

    def _malformed(self, group: str, what: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._keys.group_members(group)}: {what}")


def _due_ms(reply: Reply) -> int | None:
    milliseconds = cast("int", reply)
    return None if milliseconds < 0 else milliseconds


def _synced(reply: Sequence[Reply]) -> Synced:
    _, _, kind, protocol, assignment = cast("list[bytes]", reply)
    return Synced(kind.decode(), protocol.decode(), assignment)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _protocols(text: bytes) -> NamedBytes:
    return msgspec.msgpack.decode(text, type=NamedBytes)


def _metadata(protocols: NamedBytes, chosen: str) -> bytes:
    return next((metadata for name, metadata in protocols if name == chosen), b"")


def _described(state: dict[bytes, bytes], members: dict[bytes, bytes]) -> StoredGroup:
    chosen = state.get(b"protocol", b"").decode()
    result = []
    for field in sorted(members):
        if not field.startswith(b"m:"):
            continue
        member = field[2:]
        row = msgspec.json.decode(members[field], type=_MemberRow)
        protocols = _protocols(members.get(b"p:" + member, b"\x90"))
        result.append(
            StoredMember(
                member.decode(),
                row.instance,
                row.client_id,
                row.client_host,
                _metadata(protocols, chosen),
                members.get(b"a:" + member, b""),
            )
        )
    return StoredGroup(
        state=state.get(b"state", DEAD.encode()).decode(),
        generation=int(state.get(b"generation", b"0")),
        kind=state.get(b"type", b"").decode(),
        protocol_type=state.get(b"protocol_type", b"").decode(),
        protocol=chosen,
        since_ms=int(state.get(b"since", b"0")),
        members=tuple(result),
    )
