"""Consumer group membership: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the waiting of the first two.

The state of a group is in Redis and changes only by the scripts under lua/group, one atomic transition each, so any
worker of any broker serves any member. A worker holds nothing but requests that wait. States are Kafka's:

    Dead                 does not exist
    Empty                has no members, but committed offsets or a past generation
    PreparingRebalance   waits for its members to join (again)
    CompletingRebalance  has a new generation, and waits for the leader's assignments
    Stable               every member has its assignment

    Empty, Dead          -> PreparingRebalance    a member joins: it waits group.initial.rebalance.delay.ms for others
    PreparingRebalance   -> CompletingRebalance   all members have joined, or the longest rebalance timeout is over
    CompletingRebalance  -> Stable                the leader syncs
    Completing, Stable   -> PreparingRebalance    a member joins, leaves, is removed, or changes its protocols
    PreparingRebalance   -> Empty                 no member is left

Deadlines. The sorted set `deadlines` has the end of each member's session; a member whose request waits has +inf, since
it cannot send heartbeats meanwhile. `korvet:groups` has the next deadline of each group (groups/schedule.py). A
heartbeat or commit renews the session.

When a member's session ends, lua/group/advance.lua removes the member, as LeaveGroup would, and begins a rebalance. The
process that first sees the deadline pass calls it: a worker with a request that waits for the group (`_wait` below), or
the keeper's task that reads `korvet:groups` once a second (server/keeper/group_tasks.py). The same call ends a
rebalance that waits too long, and removes members that never synced. A static member is removed at its session's end
too, but not when it misses a rebalance. After an outage the keeper first begins all sessions again, by
lua/group/resume.lua.

Who wakes whom. Each transition publishes on the group's channel. A request that has to wait subscribes to the channel
before it calls its script, so it misses no transition. It polls lua/group/look.lua when a message comes, at the group's
next deadline (after `advance`), and every POLL_MS in any case: a lost message delays nobody by more than that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.consumer.classic_members import ClassicMembers
from korvet.groups.consumer.subscriptions import IsVisible
from korvet.groups.store import GroupStore
from korvet.groups.types import (
    Joined,
    JoinRequest,
    MemberIdRequiredError,
    Synced,
    SyncRequest,
    Waiting,
    instance_id_of,
)
from korvet.logs import Log, RateLimitedLogger
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.telemetry.request_metrics import REQUEST_METRICS

_rate_limited_log = RateLimitedLogger(Log(__name__))

POLL_MS = 900
"""Longest time between two polls of a request that waits: below a second, and a poll takes time too."""

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Longest wait of a new member without an id, five minutes as in Kafka (KAFKA-7610): its client asks again as another
member, and in a long rebalance members whose answers nobody reads would pile up."""

PROTOCOLS_MAX = 1000
"""Protocols of one member; no client has more than a handful."""

METADATA_BYTES_MAX = 1 << 20
"""Bytes of the metadata of one member, all protocols together; a subscription to a thousand topics has some 50 KiB."""


class GroupCoordinator:
    """The members of all groups, as one worker serves them."""

    def __init__(
        self,
        store: GroupStore,
        subscriptions: Subscriptions,
        settings: Settings,
        classic_members: ClassicMembers,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        """`classic_members` are those of consumer groups."""
        self._clock = clock
        self._store = store
        self._subscriptions = subscriptions
        self._classic_members = classic_members
        self._session_ms = range(
            settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms + 1
        )
        self._parked: set[Watch] = set()
        self._draining = False

    def drain(self) -> None:
        """Refuse all requests that wait, now and from now on; members that know their ids stay in their groups."""
        self._draining = True
        for watch in self._parked:
            watch.wake_all()

    def flush(self) -> None:
        self._store.schedule.flush()

    def join(self, request: JoinRequest, is_visible: IsVisible) -> Joined:
        """Join, and wait until the rebalance is complete; raises KafkaError by Kafka's rules, MemberIdRequiredError."""
        _check_group(request.group)
        if request.session_ms not in self._session_ms:
            message = f"the session timeout must be from {self._session_ms[0]} to {self._session_ms[-1]} ms"
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, message)
        _check_protocols(request.group, request.protocols)
        instance_id = instance_id_of(request.instance)
        new_member_id = f"{request.client_id if instance_id is None else instance_id}-{uuid.uuid4()}"
        is_new = not request.member_id and not request.instance
        joined = self._join_classic(request, new_member_id, is_new=is_new)
        if joined is None:
            outcome = self._classic_members.join(request, new_member_id, is_visible)
            if isinstance(outcome, Joined):
                return outcome
            # A classic group again, perhaps with this member in it.
            request = msgspec.structs.replace(request, member_id=outcome)
            joined = self._join_classic(request, new_member_id, is_new=is_new)
        if joined is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group} is no classic group")
        return joined

    def sync(self, request: SyncRequest) -> Synced:
        """Get a member's assignment, and wait until the leader has brought it; raises KafkaError by Kafka's rules."""
        _check_group(request.group)
        synced = self._sync_classic(request) or self._classic_members.sync(request)
        if synced is None:
            raise _must_join()
        return synced

    def heartbeat(self, group: str, member_id: str, instance: str, generation: int) -> None:
        _check_group(group)
        who = (group, member_id, instance, generation)
        if not self._store.heartbeat(*who) and not self._classic_members.heartbeat(*who):
            raise _must_join()

    def leave(self, group: str, members: Sequence[tuple[str, str]]) -> list[ErrorCode]:
        """Remove members, each named by its id and its instance id; returns the outcome for each.

        A share group or streams group has none of them, so each is UNKNOWN_MEMBER_ID.
        """
        _check_group(group)
        outcomes = self._store.leave(group, members)
        if outcomes is None:
            outcomes = self._classic_members.leave(group, members)
        if outcomes is None:
            outcomes = self._store.leave(group, members)  # it may have become a classic group meanwhile
        return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members) if outcomes is None else outcomes

    def _join_classic(self, request: JoinRequest, new_member_id: str, *, is_new: bool) -> Joined | None:
        group = request.group
        if is_new and not request.member_id and request.require_known_member_id:
            # It gets its id, and has nothing to wait for.
            self._require_member_id(request, new_member_id)
            return None
        with self._watch(group) as watch:
            outcome = self._store.join(request, new_member_id)
            began = self._clock.monotonic()
            while isinstance(outcome, Waiting):
                is_late = is_new and self._clock.monotonic() - began >= NEW_MEMBER_JOIN_TIMEOUT_MS / 1000
                if is_late or (is_new and self._draining):
                    self._store.leave(group, [(outcome.member_id, "")])
                if is_late:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "a new member has waited for too long")
                self._wait("JoinGroup", group, watch, outcome)
                outcome = self._store.poll_join(group, request.instance, outcome)
            return outcome

    def _require_member_id(self, request: JoinRequest, new_member_id: str) -> None:
        """Raise MemberIdRequiredError, unless the group is no classic one."""
        try:
            outcome = self._store.join(request, new_member_id)
        except KafkaError as error:
            if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                raise MemberIdRequiredError(new_member_id) from error
            raise
        if outcome is not None:
            message = f"{request.group}: a new member joined without an id"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{message}: {outcome}")

    def _sync_classic(self, request: SyncRequest) -> Synced | None:
        with self._watch(request.group) as watch:
            outcome = self._store.sync(request)
            while isinstance(outcome, Waiting):
                self._wait("SyncGroup", request.group, watch, outcome)
                outcome = self._store.poll_sync(request.group, request.instance, outcome)
            return outcome

    @contextmanager
    def _watch(self, group: str) -> Iterator[Watch]:
        with Watch(self._subscriptions, [self._store.channel(group)], clock=self._clock) as watch:
            if not watch.live:
                watch.listen()
            yield watch

    def _wait(self, api: str, group: str, watch: Watch, waiting: Waiting) -> None:
        """Wait for a transition, or until a deadline of the group has passed."""
        if self._draining:
            message = "this worker is stopping; another one goes on with the membership"
            raise KafkaError(ErrorCode.NOT_COORDINATOR, message)
        due_ms = POLL_MS if waiting.due_ms is None else min(waiting.due_ms + 1, POLL_MS)
        woken = self._park(api, watch, due_ms)
        if not woken and due_ms < POLL_MS:
            self._store.advance(group)

    def _park(self, api: str, watch: Watch, milliseconds: int) -> bool:
        self._parked.add(watch)
        REQUEST_METRICS.parked(api, 1)
        try:
            return bool(watch.wait(milliseconds / 1000))
        finally:
            self._parked.discard(watch)
            REQUEST_METRICS.parked(api, -1)


def _must_join() -> KafkaError:
    """Return the error for a member of a group that was of the consumer protocol, and is a classic one again."""
    return KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the members must join again")


def _check_group(group: str) -> None:
    if not group:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def _check_protocols(group: str, protocols: Sequence[tuple[str, bytes]]) -> None:
    size = sum(len(name) + len(metadata) for name, metadata in protocols)
    if len(protocols) > PROTOCOLS_MAX or size > METADATA_BYTES_MAX:
        message = f"a member may have {PROTOCOLS_MAX} protocols, with {METADATA_BYTES_MAX} bytes of metadata"
        # The response has no room for a reason, and to clients the error is fatal.
        fields = {"group": group, "reason": message, "protocols": len(protocols), "bytes": size}
        _rate_limited_log.warning("join", "join refused", **fields)
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
