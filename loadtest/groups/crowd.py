"""A group of many members, each with a connection of its own, in rebalances and with heartbeats.

Knows the requests of members and in which order a rebalance has them; nothing of figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from korvet.errors import ErrorCode
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from korvet.protocol.schema import Message
from loadtest.groups.cluster import Cluster, channel_of
from loadtest.groups.wire import Connection, Hub, RefusedError

# Versions without tagged fields.
_JOIN, _SYNC, _HEARTBEAT = 5, 3, 3
_BYTES = 100
_LONG_MS = 600_000


class Rebalance(NamedTuple):
    """What a rebalance took (seconds): from sending the last join to the last answer, and to the last assignment.

    `woken` is for each member that waited the time from the announcement of the transition to its answer.
    """

    joined: float
    synced: float
    woken: list[float]


class Member:
    """One member; its id is the one that it received."""

    def __init__(self, group: str, connection: Connection) -> None:
        self.connection = connection
        self.generation = -1
        self._group = group
        self._id = ""

    def join(self) -> None:
        """Ask to join, with metadata that is new each time."""
        protocol = JoinGroupRequestProtocol(name="range", metadata=os.urandom(_BYTES))
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=_LONG_MS,
            rebalance_timeout_ms=_LONG_MS,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        self.connection.send(request, _JOIN, JoinGroupResponse)

    def joined(self, answer: JoinGroupResponse) -> bool:
        """Take an answer; False if it only has the id. Raises RefusedError."""
        self._id = answer.member_id
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return False
        _check(answer.error_code, "JoinGroup")
        self.generation = answer.generation_id
        return True

    def sync(self, parts: Sequence[str] = ()) -> None:
        """Ask for a part; the leader names all members."""
        assignments = [
            SyncGroupRequestAssignment(member_id=each, assignment=os.urandom(_BYTES)) for each in parts
        ]
        request = SyncGroupRequest(
            group_id=self._group, generation_id=self.generation, member_id=self._id, assignments=assignments
        )
        self.connection.send(request, _SYNC, SyncGroupResponse)

    def heartbeat(self) -> None:
        """Say that it lives."""
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self._id)
        self.connection.send(request, _HEARTBEAT, HeartbeatResponse)


class Crowd:
    """The members, spread over all brokers; the first one leads."""

    def __init__(
        self, cluster: Cluster, group: str, size: int, addresses: Sequence[tuple[str, int]] = ()
    ) -> None:
        """Connect the members to these brokers in turn, by default to all of the cluster."""
        self._cluster, self._group = cluster, group
        self._hub = Hub(cluster.socket, channel_of(group))
        self._members: dict[Connection, Member] = {}
        addresses = addresses or cluster.addresses
        for number in range(size):
            connection = Connection(addresses[number % len(addresses)])
            self._members[connection] = Member(group, connection)
            self._hub.add(connection)
        self._leader, *self._followers = self._members.values()
        cluster.await_listeners(group, 1)
        for member in self._members.values():
            member.join()
        self._hub.hear(self._members, self._on_answer)
        self._leader.join()
        self._hub.hear([self._leader.connection], self._joined_alone)

    def close(self) -> None:
        """Close all connections."""
        self._hub.close()

    def rebalance(self, before_last: Callable[[], object] = lambda: None) -> Rebalance:
        """Have all join again, the leader last, and `before_last` called just before that."""
        for member in self._followers:
            member.join()
        self._cluster.await_parked(self._group, len(self._followers))
        self._hub.poll(0)
        self._hub.announced.clear()
        before_last()
        began = time.monotonic()
        self._leader.join()
        joined: dict[Member, float] = {}
        synced: list[float] = []

        def answered(connection: Connection, answer: Message, now: float) -> bool:
            member = self._members[connection]
            if isinstance(answer, JoinGroupResponse):
                member.joined(answer)
                joined[member] = now
                member.sync([each.member_id for each in answer.members])
                return True
            _check(cast("SyncGroupResponse", answer).error_code, "SyncGroup")
            synced.append(now)
            return False

        self._hub.hear(self._members, answered)
        at = next(at for at, message in self._hub.announced if b"CompletingRebalance" in message)
        if len({member.generation for member in joined}) != 1:
            raise RefusedError("the members are in different generations")
        woken = [now - at for member, now in joined.items() if member is not self._leader]
        return Rebalance(max(joined.values()) - began, max(synced) - began, woken)

    def heartbeats(self, seconds: float) -> list[float]:
        """Have every member send a heartbeat each second; returns the seconds from when each was due to its answer."""
        members = list(self._members.values())
        due: dict[Connection, float] = {}
        taken: list[float] = []
        began, sent, wanted = time.monotonic(), 0, int(seconds * len(members))
        while len(taken) < wanted:
            next_due = began + sent / len(members)
            member = members[sent % len(members)]
            is_free = sent < wanted and member.connection not in due
            if is_free and time.monotonic() >= next_due:
                due[member.connection] = next_due
                member.heartbeat()
                sent += 1
                continue
            for connection, answer, now in self._hub.poll(next_due - time.monotonic() if is_free else 1):
                _check(cast("HeartbeatResponse", answer).error_code, "Heartbeat")
                taken.append(now - due.pop(connection))
        return taken

    def _on_answer(self, connection: Connection, answer: Message, _now: float) -> bool:
        if self._members[connection].joined(cast("JoinGroupResponse", answer)):
            raise RefusedError("a member was let in without receiving its id first")
        return False

    def _joined_alone(self, connection: Connection, answer: Message, _now: float) -> bool:
        return not self._members[connection].joined(cast("JoinGroupResponse", answer))


def _check(error_code: int, what: str) -> None:
    if error_code:
        raise RefusedError(f"{what} was refused with error {ErrorCode(error_code).name}")
