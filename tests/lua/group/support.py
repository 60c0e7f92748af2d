"""A group for tests of scripts: plain redis-py, the scripts by EVALSHA, and members whose names are their ids."""

from __future__ import annotations

import json
from typing import Any

from tests.lua.support import STATE, STREAM, TOPIC_ID, dumped, run

GROUP = "{korvet:group:g:offsets}:group"
MEMBERS = "{korvet:group:g:offsets}:members"
DEADLINES = "{korvet:group:g:offsets}:deadlines"
GROUPS = "korvet:groups"
OFFSETS = "korvet:group:g:offsets"
CHANNEL = OFFSETS
KEYS = (GROUP, MEMBERS, DEADLINES, GROUPS)
EVERY_KEY = (*KEYS, OFFSETS)
SESSION_MS, REBALANCE_MS = 10_000, 60_000
INFINITE = float("inf")

JOIN: dict[str, Any] = {
    "require_known_member_id": False,
    "supports_skip_assignment": True,
    "size_max": 100,
    "delay_ms": 0,
    "kind": "consumer",
    "names": ("range",),
    "instance": "",
    "metadata": "topics",
}


def row(*protocols: str, instance: str = "", **fields: Any) -> str:
    """Return a member's row."""
    given = {"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS, "instance": instance}
    return json.dumps(given | {"protocols": protocols} | fields, separators=(",", ":"))


class Group:
    """The group `g` as the scripts see it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def join(self, asked: str = "", new: str = "new", **given: Any) -> list[Any]:
        """Join as `asked`, or as a new member that gets the id `new`; see JOIN for what else may be given."""
        of = JOIN | given
        how = (
            int(of["require_known_member_id"]),
            int(of["supports_skip_assignment"]),
            of["size_max"],
            of["delay_ms"],
            of["kind"],
        )
        own = (row(*of["names"], instance=of["instance"]), of["metadata"])
        args = (CHANNEL, "g", asked, new, *how, *own)
        reply: list[Any] = run(self.client, "group/join", KEYS, args)
        return reply

    def sync(self, member: str, generation: int, *parts: str, instance: str = "", **of: str) -> list[Any]:
        """Sync; `parts` are members, each of which is assigned its own name."""
        pairs = [each for part in parts for each in (part, part)]
        given = (member, instance, generation, of.get("kind", ""), of.get("protocol", ""), *pairs)
        reply: list[Any] = run(self.client, "group/sync", KEYS, (CHANNEL, "g", *given))
        return reply

    def heartbeat(self, member: str, generation: int, instance: str = "") -> int:
        """Send a heartbeat."""
        reply: int = run(self.client, "group/heartbeat", KEYS[:3], (member, instance, generation))
        return reply

    def leave(self, *members: tuple[str, str]) -> list[bytes]:
        """Take members out, by id and instance id."""
        named = [each for member in members for each in member]
        reply: list[bytes] = run(self.client, "group/leave", KEYS, (CHANNEL, "g", *named))
        return reply

    def advance(self) -> int:
        """End what is past its deadline."""
        reply: int = run(self.client, "group/advance", KEYS, (CHANNEL, "g"))
        return reply

    def look(self, what: str, member: str, generation: int, instance: str = "") -> list[Any]:
        """Poll for a member that waits."""
        reply: list[Any] = run(self.client, "group/look", KEYS[:3], (what, member, instance, generation))
        return reply

    def commit(self, generation: int = -1, member: str = "", instance: str = "") -> list[int]:
        """Commit an offset of the first partition of a topic."""
        args = ("g", "g", generation, member, instance, "mirror", 0, TOPIC_ID, '{"offset":5,"ms":', "5-0")
        reply: list[int] = run(self.client, "group/commit", (*EVERY_KEY, STREAM, STATE), args)
        return reply

    def delete(self, *streams: str, seen: int | None = None, mirror: str = "mirror") -> int:
        """Delete the group, having seen commits for these streams."""
        args = ("g", "g", mirror, len(streams) if seen is None else seen)
        reply: int = run(self.client, "group/delete", (*EVERY_KEY, *streams), args)
        return reply

    def forget(self, *seen: str, drop: bool = True, rows: dict[str, str] | None = None) -> list[int]:
        """Forget commits, of a group whose state, generation and time of change were these."""
        rows = rows or {}
        args = ("g", "g", "mirror", "drop" if drop else "keep", *(seen or ("", "", "")), *rows.values())
        reply: list[int] = run(self.client, "group/forget", (*EVERY_KEY, *rows), args)
        return reply

    @staticmethod
    def members_in(answer: list[Any]) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the members in a leader's reply: id -> instance id and metadata."""
        members = answer[7:]
        return {members[at]: (members[at + 1], members[at + 2]) for at in range(0, len(members), 3)}

    def stable(self, *names: str) -> int:
        """Make these members of it, the first its leader, with a part each; returns the generation."""
        joined = self.join(new=names[0])
        for name in names[1:]:
            assert self.join(new=name)[0] == b"WAIT"
        if names[1:]:
            joined = self.join(names[0])
        assert joined[0] == b"JOINED", joined
        generation = int(joined[2])
        for name in names:
            assert self.sync(name, generation, *names)[3] == name.encode()
        return generation

    def state(self) -> str:
        """Return the state's name."""
        found: bytes | None = self.client.hget(GROUP, "state")
        return found.decode() if found else "Dead"

    def deadline(self, member: str) -> float | None:
        """Return the end of a member's session (ms), infinite while its request is parked, None for no member."""
        found: float | None = self.client.zscore(DEADLINES, member)
        return found

    def now_ms(self) -> int:
        """Return Redis' clock."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def fields(self) -> set[str]:
        """Return the fields of the hash of members."""
        return {field.decode() for field in self.client.hkeys(MEMBERS)}

    def snapshot(self) -> list[bytes | None]:
        """Return all keys of the group, byte for byte: to show that nothing was written."""
        return dumped(self.client, (*EVERY_KEY, STREAM))
