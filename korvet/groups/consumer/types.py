"""Groups of the consumer protocol as values: what members ask, and what is stored of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from korvet.groups.types import NamedBytes

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Member epochs of requests that join, leave, and leave for a while as a static member."""

REMOVED_EPOCH = -4
"""That of a member which is gone, and whose partitions are freed in parts."""

STABLE, UNREVOKED, UNRELEASED = "stable", "unrevoked", "unreleased"
"""Phases of a member: it has what it is to have; it is to revoke partitions; it waits for those of others."""

Owned: TypeAlias = frozenset[tuple[str, int]]
"""Partitions by topic id, as text, and index."""

NOTHING: Owned = frozenset()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a member; None: unchanged, or not in the request."""

    group: str
    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack: str | None = None
    rebalance_ms: int | None = None

    def row(self, member: ConsumerMember | None, session_ms: int) -> SubscriberRow:
        """Return who the member is by now, without what else it had of the classic protocol."""
        known = _UNKNOWN if member is None else member.row
        return msgspec.structs.replace(
            known,
            session_ms=session_ms,
            rebalance_ms=max(known.rebalance_ms if self.rebalance_ms is None else self.rebalance_ms, 0),
            client_id=self.client_id,
            client_host=self.client_host,
            rack=known.rack if self.rack is None else self.rack,
            protocols=(),
        )


class MemberReport(Report, frozen=True, kw_only=True):
    """What a member of a group of the consumer protocol or a share group reports."""

    instance: str | None = None
    names: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Owned | None = None

    @property
    def has_news(self) -> bool:
        """Whether it says more than that the member is still there."""
        said = (self.rack, self.rebalance_ms, self.names, self.regex, self.assignor, self.owned)
        return self.epoch == JOIN_EPOCH or any(item is not None for item in said)

    @property
    def is_full(self) -> bool:
        """Whether it says all that a member says when it joins: its client does not know what it is to own."""
        subscribed = self.names is not None or self.regex is not None
        return self.rebalance_ms is not None and subscribed and self.owned is not None


class MemberAnswer(NamedTuple):
    """What a member is to know; `assigned` is None if it knows that already."""

    member_id: str
    epoch: int
    heartbeat_ms: int
    assigned: Owned | None


class StreamsRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a member of a streams group is besides (KIP-1071): `endpoint` is where its process answers queries."""

    process_id: str
    topology_epoch: int
    endpoint: tuple[str, int] | None
    tags: tuple[tuple[str, str], ...]


class SubscriberRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who a member is and what it subscribes to, as JSON; with `protocols` it uses the classic protocol.

    The first six fields are those of a member of a classic group (groups/store.py). What a classic member subscribes to
    is in its protocols, beside this row.
    """

    session_ms: int
    rebalance_ms: int
    instance: str
    client_id: str
    client_host: str
    protocols: tuple[str, ...] = ()
    rack: str = ""
    names: tuple[str, ...] = ()
    regex: str = ""
    assignor: str = ""
    streams: StreamsRow | msgspec.UnsetType = msgspec.UNSET


_UNKNOWN = SubscriberRow(session_ms=0, rebalance_ms=0, instance="", client_id="", client_host="")


class EpochRow(msgspec.Struct, frozen=True):
    """How far a member is: `by` (ms) is when it must have done its part, 0: nothing is to be done."""

    epoch: int
    previous: int
    phase: str
    by: int
    revision: int


class Progress(msgspec.Struct, frozen=True):
    """What a member owns: `assigned` it may use, `revoking` it is to revoke."""

    epoch: int = 0
    previous: int = 0
    phase: str = STABLE
    assigned: Owned = NOTHING
    revoking: Owned = NOTHING

    @property
    def owned(self) -> Owned:
        """All that nobody else may have."""
        return self.assigned | self.revoking


class ConsumerMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as it is stored; `epoch_text` shows whether it has changed since, `by` is that of its EpochRow."""

    member_id: str
    row: SubscriberRow
    epoch_text: bytes
    by: int
    progress: Progress
    target: Owned
    protocols: NamedBytes = ()

    @property
    def is_classic(self) -> bool:
        return bool(self.row.protocols)


class GroupFields(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is stored. `kind` is its type: "" for a classic group, or none, which has no state either."""

    kind: str
    state: str
    epoch: int
    assignment_epoch: int
    size: int
    classic: int
    assignor: str
    subscriptions: bytes
    digest: str


class GroupView(NamedTuple):
    """A group, one of its members, and the member that has the instance id which was asked for; None: there is none."""

    group: GroupFields
    member: ConsumerMember | None
    holder: ConsumerMember | None


class MemberChange(msgspec.Struct, frozen=True, kw_only=True):
    """A member that is to be written: `row` None is as it was; `replaced` is the member whose place it takes.

    With `replaced`, the member `before` gives up what it had.
    """

    member_id: str
    instance: str
    before: ConsumerMember | None
    progress: Progress
    row: SubscriberRow | None = None
    protocols: NamedBytes = ()
    replaced: ConsumerMember | None = None
    bumps: bool = False
    by_ms: int | None = None
    """Time that it has to do its part: 0: nothing is to be done, None: what was left of it."""


def text_of(owned: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    for topic_id, index in sorted(owned):
        result.setdefault(topic_id, []).append(index)
    return result


def owned_of(rows: Mapping[str, Iterable[int]]) -> Owned:
    return frozenset((topic_id, index) for topic_id, indexes in rows.items() for index in indexes)
