"""A group of the consumer protocol, or a share group, for tests of its scripts: members whose names are their ids."""

from __future__ import annotations

import json
from typing import Any

from tests.lua.group.support import ASSIGNMENTS, CHANNEL, DEADLINES, GROUP, MEMBERS, row
from tests.lua.support import now_ms, run

CONSUMER_KEYS = (GROUP, MEMBERS, DEADLINES, ASSIGNMENTS)
SESSION_MS = 45_000


def owner(index: int, topic_id: str = "id") -> str:
    return f"o:{topic_id}:{index}"


class ConsumerGroup:
    """The group `g` as the scripts see it."""

    def __init__(self, client: Any, kind: str = "consumer") -> None:
        self.client, self.kind = client, kind

    def update(self, member: str, *partitions: int, epoch: int = 0, **given: Any) -> list[Any]:
        """Write a member that owns these partitions of a topic, as of all that it is read just now."""
        before = given["before"] if "before" in given else self.read(f"e:{member}")
        replaced = given.get("replaced", "")
        current = {"assigned": {"id": list(partitions)}, "revoking": {}}
        args = [
            *("g", given.get("listed_ms", self.now_ms()), member, before),
            given.get("instance", ""),
            *(replaced, self.read(f"e:{replaced}") if replaced else b""),
            row(*given.get("protocols", ()), instance=given.get("instance", "")),
            b"\x90" if given.get("protocols") else b"",
            *(epoch, 0, given.get("phase", "stable"), given.get("by_ms", 0)),
            json.dumps(current, separators=(",", ":")),
            *(SESSION_MS, int(given.get("bumps", True)), given.get("size_max", 1000)),
            given.get("assignment_epoch") or int(self.client.hget(GROUP, "assignment_epoch") or 0),
            len(given.get("released", ())),
            *map(owner, given.get("released", ())),
            *map(owner, partitions if given.get("has_owners", True) else ()),
        ]
        reply: list[Any] = run(self.client, "consumer/update", CONSUMER_KEYS, (CHANNEL, self.kind, *args))
        return reply

    def read(self, field: str) -> bytes:
        is_hash = self.client.type(MEMBERS) == b"hash"
        return (self.client.hget(MEMBERS, field) if is_hash else None) or b""

    def leave(self, *members: tuple[str, str, int]) -> list[Any]:
        """Take members out, by id, instance id and epoch; returns what is left, and the outcomes."""
        named = [part for member in members for part in member]
        reply: list[Any] = run(self.client, "consumer/leave", CONSUMER_KEYS, (CHANNEL, self.kind, *named))
        return reply[1:]

    def assign(self, epoch: int, targets: dict[str, list[int]], *, by: str = "t", last: int = 1) -> int:
        """Write targets; the right to do so has to be claimed before."""
        args = [part for name, own in targets.items() for part in (name, json.dumps({"id": own}))]
        given = (CHANNEL, self.kind, by, epoch, last, "uniform", "{}", "digest", *args)
        reply: int = run(self.client, "consumer/assign", CONSUMER_KEYS, given)
        return reply

    def claim(self, by: str = "t", lease_ms: int = 60_000) -> list[int]:
        reply: list[int] = run(self.client, "consumer/claim", (GROUP,), (CHANNEL, self.kind, by, lease_ms))
        return reply

    def heartbeat(self, member: str, epoch: int, instance: str = "", endpoints: str = "") -> int:
        args = (self.kind, member, instance, epoch, SESSION_MS, endpoints)
        reply: int = run(self.client, "consumer/heartbeat", (GROUP, MEMBERS, DEADLINES), args)
        return reply

    def advance(self) -> int:
        """End what is past its deadline."""
        reply: int = run(self.client, "group/advance", CONSUMER_KEYS, (CHANNEL,))
        return reply

    def downgrade(self, *stable: str) -> int:
        reply: int = run(self.client, "consumer/downgrade", CONSUMER_KEYS, (CHANNEL, 100, *stable))
        return reply

    def stable(self, *names: str, **given: Any) -> None:
        """Make these its members, each with a partition, in epoch 1 or later."""
        for index, name in enumerate(names):
            self.update(name, index, **given)
        assert self.claim()[0] == 1
        assert self.assign(len(names), {name: [index] for index, name in enumerate(names)}) == 1
        for name in names:
            self.update(name, *self.owned(name), epoch=len(names), bumps=False, **given)

    def owned(self, member: str) -> list[int]:
        every = self.client.hgetall(ASSIGNMENTS).items()
        return sorted(
            int(field.rpartition(b":")[2])
            for field, value in every
            if field.startswith(b"o:") and value == member.encode()
        )

    def field(self, name: str) -> str | None:
        result: bytes | None = self.client.hget(GROUP, name)
        return None if result is None else result.decode()

    def now_ms(self) -> int:
        return now_ms(self.client)
