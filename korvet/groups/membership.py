"""Members of groups: joining, syncing, heartbeats and leaving, and the waiting that the first two may take.

Knows Kafka's limits on what enters, and when a member that waits looks again; the rules of a group are the scripts'.
Any worker serves any member: what is parked here is a request, the membership itself is in Redis. So a member that must
wait listens to its group before it asks. It looks when something is announced, when the group's next deadline has come
(and then does first what time has brought), and more often than once a second: a lost announcement delays nobody by
more than that.

Which topics the members of a group are subscribed to, as they say themselves.

Knows Kafka's consumer protocol (ConsumerProtocolSubscription): a version (int16), an array of topics, and what
assignors add. Nothing of what follows from it. Members of other protocol types say nothing of topics.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.store import (
    Described,
    GroupStore,
    Join,
    Joined,
    JoinOutcome,
    Sync,
    Synced,
    SyncOutcome,
    Waiting,
)
from korvet.redis.pubsub import Subscriptions, Watch

LOOK_MS = 900
"""Longest time between two looks of a member that waits: below a second, which the look itself is to fit into too."""

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Longest wait of a member that does not know its id, five minutes as in Kafka (KAFKA-7610): it asks again as another
one, and those whose answers nobody reads any more would pile up in a long rebalance."""

PROTOCOLS_MAX = 1000
"""Protocols of one member; no client has more than a handful."""

METADATA_BYTES_MAX = 1 << 20
"""Bytes of the metadata of one member, all protocols together; a subscription to a thousand topics has some 50 KiB."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says that joins; `member_id` and `instance` are empty where it has none."""

    group: str
    member_id: str
    instance: str
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    told: bool
    skips: bool


class MemberIdRequiredError(KafkaError):
    """A new member is to join again, with the id that it is told here (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        super().__init__(
            ErrorCode.MEMBER_ID_REQUIRED, "the member is to join again with the id that it is told"
        )
        self.member_id = member_id


_Outcome = TypeVar("_Outcome", Joined, Synced)


class Groups:
    """The members of all groups, as one worker serves them."""

    def __init__(
        self,
        store: GroupStore,
        subscriptions: Subscriptions,
        settings: Settings,
        channel_of: Callable[[str], str],
        parked: Callable[[str, int], None] = lambda _api, _change: None,
    ) -> None:
        """`channel_of` names the channel of a group's transitions.

        `parked` is told of each JoinGroup and SyncGroup that begins (1) or ends (-1) to wait for other members.
        """
        self._tell_parked = parked
        self._store = store
        self._subscriptions = subscriptions
        self._channel_of = channel_of
        self._session_ms = range(
            settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms + 1
        )
        self._parked: set[Watch] = set()
        self._draining = False

    def drain(self) -> None:
        """Send every member that waits elsewhere, now and from now on; its membership stays where it knows its id."""
        self._draining = True
        for watch in self._parked:
            watch.wake_all()

    def join(self, asking: JoinRequest) -> Joined:
        """Join, and wait until the rebalance is complete; raises KafkaError by Kafka's rules, MemberIdRequiredError."""
        _check_group(asking.group)
        if asking.session_ms not in self._session_ms:
            message = f"the session time-out must be from {self._session_ms[0]} to {self._session_ms[-1]} ms"
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, message)
        _check_protocols(asking.protocols)
        new_member_id = f"{asking.instance or asking.client_id}-{uuid.uuid4()}"
        fields = msgspec.structs.asdict(asking)
        join = Join(new_member_id=new_member_id, **(fields | {"rebalance_ms": max(asking.rebalance_ms, 0)}))
        if asking.told and not asking.member_id and not asking.instance:
            # It is told its id, and has nothing to wait for.
            return self._first(join)

        def look(waiting: Waiting) -> JoinOutcome:
            return self._store.look_at_join(join.group, join.instance, waiting)

        nameless = not asking.member_id and not asking.instance
        return self._wait("JoinGroup", join.group, lambda: self._store.join(join), look, nameless=nameless)

    def sync(self, sync: Sync) -> Synced:
        """Ask for a member's part, and wait until the leader has brought it; raises KafkaError by Kafka's rules."""
        _check_group(sync.group)

        def look(waiting: Waiting) -> SyncOutcome:
            return self._store.look_at_sync(sync.group, sync.instance, waiting)

        return self._wait("SyncGroup", sync.group, lambda: self._store.sync(sync), look)

    def heartbeat(self, group: str, member_id: str, instance: str, generation: int) -> None:
        """Renew a member's session; raises KafkaError by Kafka's rules."""
        _check_group(group)
        self._store.heartbeat(group, member_id, instance, generation)

    def leave(self, group: str, members: Sequence[tuple[str, str]]) -> list[ErrorCode]:
        """Take members out, each by its id and its instance id; returns what became of each."""
        _check_group(group)
        return self._store.leave(group, members)

    def _first(self, join: Join) -> Joined:
        try:
            outcome = self._store.join(join)
        except KafkaError as error:
            if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                raise MemberIdRequiredError(join.new_member_id) from error
            raise
        message = f"{join.group}: a new member without an id was let in"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{message}: {outcome}")

    def _wait(
        self,
        api: str,
        group: str,
        ask: Callable[[], _Outcome | Waiting],
        look: Callable[[Waiting], _Outcome | Waiting],
        *,
        nameless: bool = False,
    ) -> _Outcome:
        with Watch(self._subscriptions, [self._channel_of(group)]) as watch:
            if not watch.live:
                watch.listen()
            outcome = ask()
            began = time.monotonic()
            while isinstance(outcome, Waiting):
                is_late = nameless and time.monotonic() - began >= NEW_MEMBER_JOIN_TIMEOUT_MS / 1000
                if nameless and (is_late or self._draining):
                    self._store.leave(group, [(outcome.member_id, "")])
                if is_late:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "a new member has waited for too long")
                if self._draining:
                    message = "this worker is stopping; the membership goes on with another"
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, message)
                due_ms = LOOK_MS if outcome.due_ms is None else min(outcome.due_ms + 1, LOOK_MS)
                woken = self._park(api, watch, due_ms)
                if not woken and due_ms < LOOK_MS:
                    self._store.advance(group)
                outcome = look(outcome)
            return outcome

    def _park(self, api: str, watch: Watch, milliseconds: int) -> bool:
        self._parked.add(watch)
        self._tell_parked(api, 1)
        try:
            return bool(watch.wait(milliseconds / 1000))
        finally:
            self._parked.discard(watch)
            self._tell_parked(api, -1)


def _check_group(group: str) -> None:
    if not group:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def _check_protocols(protocols: Sequence[tuple[str, bytes]]) -> None:
    size = sum(len(name) + len(metadata) for name, metadata in protocols)
    if len(protocols) > PROTOCOLS_MAX or size > METADATA_BYTES_MAX:
        message = f"a member may have {PROTOCOLS_MAX} protocols, with {METADATA_BYTES_MAX} bytes of metadata"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


CONSUMER = "consumer"
"""The protocol type of consumers."""


def subscribed_topics(group: Described) -> set[str] | None:
    """Return the topics that any member of a group of consumers is subscribed to; None: nobody can tell."""
    subscribed: set[str] = set()
    for member in group.members:
        topics = subscription(member.metadata)
        if topics is None:
            return None
        subscribed |= topics
    return subscribed


def subscription(metadata: bytes) -> set[str] | None:
    """Return the topics that a consumer's metadata names; None where it is none of the consumer protocol's."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        at = struct.calcsize(">hi")
        topics = set()
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, at)
            at += struct.calcsize(">h")
            name = metadata[at : at + size]
            if size < 0 or len(name) != size:
                return None
            topics.add(name.decode())
            at += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics if version >= 0 <= count else None
