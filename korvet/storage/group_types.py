"""What the store of groups takes and gives: who joins, what became of it, and a group as it is described.

Knows plain data only; nothing of Redis or of the wire. An instance id or protocol that is not there is the empty text.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec


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
