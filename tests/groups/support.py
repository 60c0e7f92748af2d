"""A group for tests: a store on a real Redis, and members with defaults for all that a test does not set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.store import GroupStore
from korvet.groups.types import Joined, JoinRequest, StoredGroup, Synced, SyncRequest, Waiting
from korvet.redis.client import Redis
from korvet.redis.keys import Keys

KEYS = Keys("korvet")
SESSION_MS, REBALANCE_MS = 10_000, 60_000
RANGE = (("range", b"topics"),)


def join_request(group: str, member: str = "", **fields: Any) -> JoinRequest:
    given: dict[str, Any] = {
        "instance": "",
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_ms": SESSION_MS,
        "rebalance_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "require_known_member_id": False,
        "supports_skip_assignment": True,
    }
    return JoinRequest(group=group, member_id=member, **given | fields)


def sync_request(
    group: str, member: str, generation: int, parts: Mapping[str, bytes], **fields: Any
) -> SyncRequest:
    """Return the request of a member that syncs; `parts` are the leader's assignments."""
    given = {"instance": "", "protocol_type": None, "protocol": None} | fields
    assignments = tuple(parts.items())
    return SyncRequest(group=group, member_id=member, generation=generation, assignments=assignments, **given)


class Group:
    """One group; `raw` moves its deadlines, as if time had passed."""

    def __init__(
        self, redis: Redis, raw: Any, name: str = "billing", *, size_max: int = 100, initial_delay_ms: int = 0
    ) -> None:
        self.store = GroupStore(redis, KEYS, size_max=size_max, initial_delay_ms=initial_delay_ms)
        self.raw, self.name = raw, name
        self.state, self.members = KEYS.group_state(name), KEYS.group_members(name)
        self.deadlines = KEYS.group_deadlines(name)
        self._numbers = itertools.count()

    def ask(self, member: str = "", **fields: Any) -> Joined | Waiting:
        """Join with `member` as the id, or with `new` as that of a new member."""
        new_member_id = fields.pop("new", f"member-{next(self._numbers)}")
        outcome = self.store.join(join_request(self.name, member, **fields), new_member_id)
        assert outcome is not None
        return outcome

    def joined(self, member: str = "", **fields: Any) -> Joined:
        """Join, and expect the rebalance to be complete."""
        outcome = self.ask(member, **fields)
        assert isinstance(outcome, Joined), outcome
        return outcome

    def waits(self, member: str = "", **fields: Any) -> Waiting:
        """Join, and expect to wait for others."""
        outcome = self.ask(member, **fields)
        assert isinstance(outcome, Waiting), outcome
        return outcome

    def sync(
        self,
        member: str,
        generation: int,
        instance: str = "",
        kind: str | None = None,
        protocol: str | None = None,
        **parts: bytes,
    ) -> Synced | Waiting:
        """Sync; `parts` are the leader's assignments."""
        fields = {"instance": instance, "protocol_type": kind, "protocol": protocol}
        outcome = self.store.sync(sync_request(self.name, member, generation, parts, **fields))
        assert outcome is not None
        return outcome

    def part(self, member: str, generation: int, **parts: bytes) -> bytes:
        outcome = self.sync(member, generation, "", None, None, **parts)
        assert isinstance(outcome, Synced), outcome
        return outcome.assignment

    def heartbeat(self, member: str, generation: int, instance: str = "") -> None:
        self.store.heartbeat(self.name, member, instance, generation)

    def leave(self, *members: tuple[str, str]) -> list[str]:
        outcomes = self.store.leave(self.name, members)
        assert outcomes is not None
        return [code.name for code in outcomes]

    def stable(self, *names: str, **fields: Any) -> int:
        """Make a group of these members, the first its leader; returns its generation."""
        generation = self.joined(new=names[0], **fields).generation
        for name in names[1:]:
            self.waits(new=name, **fields)
        for name in names[:1] if len(names) > 1 else ():
            generation = self.joined(name, **fields).generation
        self.part(names[0], generation, **{name: name.encode() for name in names})
        for name in names[1:]:
            assert self.part(name, generation) == name.encode()
        return generation

    def described(self) -> StoredGroup:
        [outcome] = self.store.describe([self.name])
        assert isinstance(outcome, StoredGroup), outcome
        return outcome

    def ids(self) -> set[str]:
        return {member.member_id for member in self.described().members}

    def summary(self) -> tuple[str, int, set[str]]:
        return self.described().state, self.described().generation, self.ids()

    def time_is_up_for(self, *members: str) -> None:
        for member in members:
            assert self.raw.zadd(self.deadlines, {member: 1}, xx=True, ch=True)

    def phase_is_over(self) -> None:
        assert int(self.raw.hget(self.state, "deadline"))
        self.raw.hset(self.state, "deadline", 1)

    def advance(self) -> None:
        """End what is past its deadline."""
        self.store.advance(self.name)


def refused(code: str, act: Callable[[], object]) -> KafkaError:
    """Act, expect the error of this name, and return it."""
    with pytest.raises(KafkaError) as refusal:
        act()
    assert refusal.value.code is ErrorCode[code], refusal.value
    return refusal.value
