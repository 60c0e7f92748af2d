"""The members of groups as values: what they ask, and what they get."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from korvet.errors import ErrorCode, KafkaError

EMPTY, STABLE, DEAD, UNKNOWN = "Empty", "Stable", "Dead", "Unknown"
"""States by Kafka's names; Dead is a group that does not exist, Unknown is listed while its Redis node is away."""

CONSUMER = "consumer"
"""The protocol type of consumers, and the type of a group of the consumer protocol."""

SHARE = "share"
"""The type of a share group (KIP-932), and its protocol type."""

SHARE_MEMBER_ID_LENGTH_MAX = 36
"""Length of a UUID in its longest form, as in Kafka."""

STREAMS = "streams"
"""The type of a streams group (KIP-1071), and its protocol type."""

GROUPS_AT_ONCE = 100
"""Groups that Redis is asked about at once, for a request that names many."""

INSTANCE_ESCAPE = "\\"
"""Stored for the empty instance id, which is one like any other (KIP-345)."""

NamedBytes = tuple[tuple[str, bytes], ...]
"""Metadata by the name of the protocol, or assignments by member id."""


def instance_text(instance_id: str | None) -> str:
    """Return an instance id as it is stored: "" stands for None, so "" gets an escape, and so do escapes alone."""
    if instance_id is None:
        return ""
    return instance_id if instance_id.strip(INSTANCE_ESCAPE) else instance_id + INSTANCE_ESCAPE


def instance_id_of(text: str) -> str | None:
    """Return the instance id of what `instance_text` returned."""
    if not text:
        return None
    return text if text.strip(INSTANCE_ESCAPE) else text[1:]


class JoinError(KafkaError):
    """JoinGroup is refused with another member id than that of the request: none in a group of another protocol."""

    def __init__(self, code: ErrorCode, message: str, member_id: str = "") -> None:
        super().__init__(code, message)
        self.member_id = member_id


class MemberIdRequiredError(JoinError):
    """A new member is to join again with this id (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        message = "the member is to join again with the id in this response"
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED, message, member_id)


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a member says when it joins; `member_id` is empty for a new one.

    `protocols` are names with metadata, in order of preference. With `require_known_member_id` a new dynamic member
    gets an id first and joins again with it (KIP-394). With `supports_skip_assignment` a leader can be asked to assign
    nothing (KIP-814).
    """

    group: str
    member_id: str
    instance: str
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: NamedBytes
    require_known_member_id: bool
    supports_skip_assignment: bool


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A member asks for its assignment; the leader brings `assignments`, by member id.

    None for protocol type or protocol: not to be compared.
    """

    group: str
    member_id: str
    instance: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: NamedBytes


class Waiting(NamedTuple):
    """The request waits for other members.

    `generation` is the one before the join, or that of the sync; `due_ms` is the time to the group's next deadline,
    None if it has none.
    """

    member_id: str
    generation: int
    due_ms: int | None


class JoinedMember(NamedTuple):
    """A member as the leader gets it: `metadata` is for the group's protocol."""

    member_id: str
    instance: str
    metadata: bytes


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a generation; only the leader gets `members`."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    skip_assignment: bool
    members: tuple[JoinedMember, ...]


class Synced(NamedTuple):
    """A member's assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


JoinOutcome: TypeAlias = Joined | Waiting
SyncOutcome: TypeAlias = Synced | Waiting


class StoredMember(NamedTuple):
    """A member as it is stored, with its metadata for the group's protocol (empty before one is chosen)."""

    member_id: str
    instance: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is stored: `since_ms` is when its `state` began; `kind` is its type, "" for a classic one."""

    state: str
    generation: int
    protocol_type: str
    protocol: str
    since_ms: int
    members: tuple[StoredMember, ...]
    kind: str = ""
