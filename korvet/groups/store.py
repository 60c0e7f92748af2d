"""The members of groups in Redis: every transition is one script under lua/group.

Knows the scripts and what a member's rows look like; nothing of waiting or of the wire. What is found there and is not
Korvet's is a KafkaError KAFKA_STORAGE_ERROR that names the key, and stays as it is.

What the store of groups takes and gives: who joins, what became of it, and a group as it is described.

Knows plain data only; nothing of Redis or of the wire. An instance id or protocol that is not there is the empty text.

The list of all groups: their names, states and protocol types, page by page.

Knows where the list lies; nothing of members or offsets. A name in the list that is no group any more is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys, decode_group_id, encode_group_id
from korvet.redis.replies import Reply, RespError, listed, malformed, value_of
from korvet.redis.scripts import Script


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """A member that wants to join; `member_id` is empty for a new one, which gets `new_member_id`.

    `protocols` are names with metadata, in order of preference; `told` says that a new member is told its id before it
    may join (KIP-394), `skips` that a leader may be told to assign nothing (KIP-814).
    """

    group: str
    member_id: str
    new_member_id: str
    instance: str
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    told: bool
    skips: bool


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """A member that asks for its part; the leader brings `assignments`, by member id."""

    group: str
    member_id: str
    instance: str
    generation: int
    protocol_type: str
    protocol: str
    assignments: tuple[tuple[str, bytes], ...]


class Waiting(NamedTuple):
    """Others are waited for.

    `generation` is that before the join, or that of the sync; `due_ms` is how long it is to the next deadline of the
    group, None where there is none.
    """

    member_id: str
    generation: int
    due_ms: int | None


class JoinedMember(NamedTuple):
    """A member as its leader is told of it: `metadata` is that for the group's protocol."""

    member_id: str
    instance: str
    metadata: bytes


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place in a generation; `members` are told to the leader alone."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    skip_assignment: bool
    members: tuple[JoinedMember, ...]


class Synced(NamedTuple):
    """A member's part."""

    protocol_type: str
    protocol: str
    assignment: bytes


class DescribedMember(NamedTuple):
    """A member with its metadata for the group's protocol (all of it empty before there is one) and its part."""

    member_id: str
    instance: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A group: `state` is Kafka's name of it, `since_ms` when that began; Dead is one that does not exist."""

    state: str
    generation: int
    protocol_type: str
    protocol: str
    since_ms: int
    members: tuple[DescribedMember, ...]


JoinOutcome: TypeAlias = Joined | Waiting
SyncOutcome: TypeAlias = Synced | Waiting


_JOIN = scripts.get("group/join")
_SYNC = scripts.get("group/sync")
_HEARTBEAT = scripts.get("group/heartbeat")
_LEAVE = scripts.get("group/leave")
_ADVANCE = scripts.get("group/advance")
_RESUME = scripts.get("group/resume")
_LOOK = scripts.get("group/look")


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A member's row as JSON."""

    session_ms: int
    rebalance_ms: int
    instance: str
    client_id: str
    client_host: str
    protocols: tuple[str, ...]


_Protocols = tuple[tuple[str, bytes], ...]


class GroupStore:
    """The groups of one namespace. Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys, *, size_max: int, initial_delay_ms: int) -> None:
        """`size_max` is the most members of a group, `initial_delay_ms` how long the first rebalance of one waits."""
        self._redis = redis
        self._keys = keys
        self._size_max = size_max
        self._initial_delay_ms = initial_delay_ms

    def join(self, join: Join) -> JoinOutcome:
        """Join; raises KafkaError by the names that lua/group/join.lua lists."""
        row = _Row(
            session_ms=join.session_ms,
            rebalance_ms=join.rebalance_ms,
            instance=join.instance,
            client_id=join.client_id,
            client_host=join.client_host,
            protocols=tuple(name for name, _ in join.protocols),
        )
        args = (
            join.member_id,
            join.new_member_id,
            "told" if join.told else "now",
            int(join.skips),
            self._size_max,
            self._initial_delay_ms,
            join.protocol_type,
            msgspec.json.encode(row),
            msgspec.msgpack.encode(join.protocols),
        )
        reply = self._change(_JOIN, join.group, args)
        if reply[0] == b"WAIT":
            _, member, generation, due = cast("tuple[bytes, bytes, bytes, int]", tuple(reply))
            return Waiting(member.decode(), int(generation), _due(due))
        return self._joined(join.group, reply)

    def sync(self, sync: Sync) -> SyncOutcome:
        """Sync; raises KafkaError by the names that lua/group/sync.lua lists."""
        args: list[Arg] = [
            sync.member_id,
            sync.instance,
            sync.generation,
            sync.protocol_type,
            sync.protocol,
        ]
        for member, assignment in sync.assignments:
            args += (member, assignment)
        reply = self._change(_SYNC, sync.group, args)
        if reply[0] == b"WAIT":
            return Waiting(sync.member_id, sync.generation, _due(cast("int", reply[1])))
        return _synced(reply)

    def heartbeat(self, group: str, member_id: str, instance: str, generation: int) -> None:
        """Renew a session; raises KafkaError by the names that lua/group/heartbeat.lua lists."""
        self._run(_HEARTBEAT, group, self._keys.membership_of(group), (member_id, instance, generation))

    def leave(self, group: str, members: Sequence[tuple[str, str]]) -> list[ErrorCode]:
        """Take members out, each by its id and its instance id; returns what became of each."""
        reply = self._change(_LEAVE, group, [part for member in members for part in member])
        return [ErrorCode[cast("bytes", name).decode()] for name in reply]

    def advance(self, group: str) -> int | None:
        """Do what time has brought; returns the ms until something is due again, None where nothing is."""
        keys = (*self._keys.membership_of(group), self._keys.groups)
        return _due(cast("int", self._run(_ADVANCE, group, keys, self._names(group))))

    def resume(self, group: str) -> None:
        """Begin all sessions anew, after a time in which nobody could renew them."""
        self._run(_RESUME, group, (*self._keys.membership_of(group), self._keys.groups), self._names(group))

    def look_at_join(self, group: str, instance: str, waiting: Waiting) -> JoinOutcome:
        """Return what a member that waits in a join is to be told; raises KafkaError as lua/group/look.lua says."""
        args = ("join", waiting.member_id, instance, waiting.generation)
        reply = cast("list[Reply]", self._run(_LOOK, group, self._keys.membership_of(group), args))
        if reply[0] == b"WAIT":
            return waiting._replace(due_ms=_due(cast("int", reply[1])))
        return self._joined(group, reply)

    def look_at_sync(self, group: str, instance: str, waiting: Waiting) -> SyncOutcome:
        """Return what a member that waits in a sync is to be told; raises KafkaError as lua/group/look.lua says."""
        args = ("sync", waiting.member_id, instance, waiting.generation)
        reply = cast("list[Reply]", self._run(_LOOK, group, self._keys.membership_of(group), args))
        if reply[0] == b"WAIT":
            return waiting._replace(due_ms=_due(cast("int", reply[1])))
        return _synced(reply)

    def due(self, limit: int, skip: int = 0) -> list[str]:
        """Return groups in which something may be due by Redis' clock, those that wait longest first.

        `skip` passes over as many of them. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        seconds, microseconds = cast("list[bytes]", self._redis.call("TIME"))
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        key = self._keys.groups
        [reply] = self._redis.pipeline([("ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", skip, limit)])
        names = cast("list[bytes]", listed(key, reply))
        return [decode_group_id(name.decode(errors="replace")) for name in names]

    def describe(self, groups: Sequence[str]) -> list[Described | KafkaError]:
        """Return each group as it is now, all of its data of one moment, or what is wrong with it."""
        outcomes: list[Described | KafkaError] = []
        for group in groups:
            keys = (self._keys.group_state(group), self._keys.group_members(group))
            try:
                found = self._redis.transaction([("HGETALL", key) for key in keys])
                state, members = (cast("list[bytes]", value_of(reply)) for reply in found)
                outcomes.append(_described(_pairs(state), _pairs(members)))
            except (RespError, ValueError, msgspec.DecodeError) as error:
                outcomes.append(self._malformed(group, str(error)))
        return outcomes

    def _names(self, group: str) -> tuple[str, str]:
        return self._keys.group_channel(group), encode_group_id(group)

    def _change(self, script: Script, group: str, args: Sequence[Arg]) -> list[Reply]:
        keys = (*self._keys.membership_of(group), self._keys.groups)
        return cast("list[Reply]", self._run(script, group, keys, (*self._names(group), *args)))

    def _run(self, script: Script, group: str, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        try:
            return self._redis.script(script, keys, args)
        except RespError as error:
            raise self._malformed(group, str(error)) from error

    def _joined(self, group: str, reply: Sequence[Reply]) -> Joined:
        _, member, generation, kind, protocol, leader, skip, *rest = cast("list[bytes]", reply)
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


def _due(milliseconds: int) -> int | None:
    return None if milliseconds < 0 else milliseconds


def _synced(reply: Sequence[Reply]) -> Synced:
    _, kind, protocol, assignment = cast("list[bytes]", reply)
    return Synced(kind.decode(), protocol.decode(), assignment)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _protocols(text: bytes) -> _Protocols:
    return msgspec.msgpack.decode(text, type=_Protocols)


def _metadata(protocols: _Protocols, chosen: str) -> bytes:
    return next((metadata for name, metadata in protocols if name == chosen), b"")


def _described(state: dict[bytes, bytes], members: dict[bytes, bytes]) -> Described:
    chosen = state.get(b"protocol", b"").decode()
    found = []
    for field in sorted(members):
        if not field.startswith(b"m:"):
            continue
        member = field[2:]
        row = msgspec.json.decode(members[field], type=_Row)
        protocols = _protocols(members.get(b"p:" + member, b"\x90"))
        found.append(
            DescribedMember(
                member.decode(),
                row.instance,
                row.client_id,
                row.client_host,
                _metadata(protocols, chosen),
                members.get(b"a:" + member, b""),
            )
        )
    return Described(
        state=state.get(b"state", b"Dead").decode(),
        generation=int(state.get(b"generation", b"0")),
        protocol_type=state.get(b"protocol_type", b"").decode(),
        protocol=chosen,
        since_ms=int(state.get(b"since", b"0")),
        members=tuple(found),
    )


_PAGE = 500
"""Groups of one round trip: a millisecond of Redis."""


class Listed(NamedTuple):
    """A group: `state` is Kafka's name of it, `protocol_type` empty where it never had members."""

    group: str
    state: str
    protocol_type: str


class GroupLook(NamedTuple):
    """A group as its state tells of it: `members` have joined."""

    group: str
    state: str
    generation: int
    members: int


class GroupList:
    """The groups of one namespace."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def names(self) -> Iterator[list[str]]:
        """Yield the names of all groups, so many at a time that one round trip may ask for all of them.

        A group that comes or goes meanwhile may be missing, one that stays is there. Raises KafkaError
        KAFKA_STORAGE_ERROR, StorageUnavailableError.
        """
        for page in self._redis.scan_sorted_set(self._keys.groups, _PAGE):
            yield [decode_group_id(_text(name)) for name in page]

    def look(self, names: Sequence[str]) -> list[GroupLook | KafkaError]:
        """Return those of the groups that there are, all in one round trip; KAFKA_STORAGE_ERROR names a damaged one."""
        keys = [self._keys.group_state(name) for name in names]
        replies = self._redis.pipeline([("HMGET", key, "state", "generation", "size") for key in keys])
        found = [_look(name, key, reply) for name, key, reply in zip(names, keys, replies, strict=True)]
        return [each for each in found if each is not None]

    def every(self) -> list[Listed]:
        """Return all groups by name. Raises KafkaError KAFKA_STORAGE_ERROR, StorageUnavailableError."""
        groups: list[Listed] = []
        for names in self.names():
            keys = [self._keys.group_state(name) for name in names]
            replies = self._redis.pipeline([("HMGET", key, "state", "protocol_type") for key in keys])
            for name, key, reply in zip(names, keys, replies, strict=True):
                state, protocol_type = cast("list[bytes | None]", listed(key, reply))
                if state is not None:
                    groups.append(Listed(name, _text(state), _text(protocol_type or b"")))
        return sorted(groups)


def _look(group: str, key: str, reply: Reply) -> GroupLook | KafkaError | None:
    try:
        fields = cast("list[bytes | None]", listed(key, reply))
        state, generation, members = fields
        # A group of which only offsets were ever committed never had members.
        return (
            None if state is None else GroupLook(group, _text(state), int(generation or 0), int(members or 0))
        )
    except KafkaError as error:
        return error
    except ValueError:
        return malformed(key, "a field")


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")
