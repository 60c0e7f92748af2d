"""A group for tests of scripts: plain redis-py, the scripts by EVALSHA, and members whose names are their ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from tests.lua.support import STREAM, TOPIC_ID, contents, now_ms, of_partition, run

GROUP = "{korvet:group:g:offsets}:group"
MEMBERS = "{korvet:group:g:offsets}:members"
DEADLINES = "{korvet:group:g:offsets}:deadlines"
OFFSETS = "korvet:group:g:offsets"
CHANNEL = OFFSETS
KEYS = (GROUP, MEMBERS, DEADLINES)
PENDING = "{korvet:group:g:offsets}:pending"
ASSIGNMENTS = "{korvet:group:g:offsets}:assignments"
EVERY_KEY = (*KEYS, OFFSETS, PENDING)
WITH_ASSIGNMENTS = (*EVERY_KEY, ASSIGNMENTS)
PRODUCER = 2**62
SESSION_MS, REBALANCE_MS = 10_000, 60_000
INFINITE = float("inf")
By = tuple[int, str, str]
NOBODY: By = (-1, "", "")
"""Generation, member and instance of one that commits."""

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
    given = {"session_ms": SESSION_MS, "rebalance_ms": REBALANCE_MS, "instance": instance}
    return json.dumps(given | {"protocols": protocols} | fields, separators=(",", ":"))


class Group:
    """The group `g` as the scripts see it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.due = 0
        """When something is due in the group (ms), as the last transition has said; -1: nothing is."""

    def join(self, asked: str = "", new: str = "new", **given: Any) -> list[Any]:
        """Join as `asked`, or as a new member that gets the id `new`; see JOIN for what else may be given.

        Unless `listed_ms` says otherwise, the group was listed just now.
        """
        of = JOIN | given
        how = (
            int(of["require_known_member_id"]),
            int(of["supports_skip_assignment"]),
            of["size_max"],
            of["delay_ms"],
            of["kind"],
        )
        own = (row(*of["names"], instance=of["instance"]), of["metadata"])
        listed_ms = given.get("listed_ms", self.now_ms())
        reply: list[Any] = run(self.client, "group/join", KEYS, (CHANNEL, listed_ms, asked, new, *how, *own))
        if reply[0] == b"UNLISTED":
            return reply
        self.due = reply.pop(1)
        if reply[0] == b"REFUSED":
            raise redis.ResponseError(f"{reply[1].decode()} {reply[2].decode()}")
        return reply

    def sync(self, member: str, generation: int, *parts: str, instance: str = "", **of: str) -> list[Any]:
        """Sync; `parts` are members, each of which is assigned its own name."""
        pairs = [item for part in parts for item in (part, part)]
        names = (f"={of[name]}" if name in of else "" for name in ("kind", "protocol"))
        given = (member, instance, generation, *names, *pairs)
        reply: list[Any] = run(self.client, "group/sync", KEYS, (CHANNEL, *given))
        if reply[0] == b"SYNCED":
            self.due = reply.pop(1)
        return reply

    def heartbeat(self, member: str, generation: int, instance: str = "") -> int:
        reply: int = run(self.client, "group/heartbeat", KEYS, (member, instance, generation))
        return reply

    def leave(self, *members: tuple[str, str]) -> list[bytes]:
        named = [item for member in members for item in member]
        reply: list[Any] = run(self.client, "group/leave", KEYS, (CHANNEL, *named))
        self.due = reply.pop(0)
        return reply

    def advance(self) -> int:
        """End what is past its deadline; returns the ms until something is due, -1 for nothing, -2 for no group."""
        self.due = run(self.client, "group/advance", (*KEYS, ASSIGNMENTS), (CHANNEL,))
        return self.due if self.due < 0 else self.due - self.now_ms()

    def look(self, what: str, member: str, generation: int, instance: str = "") -> list[Any]:
        reply: list[Any] = run(self.client, "group/look", KEYS, (what, member, instance, generation))
        return reply if reply[0] == b"WAIT" else [reply[0], *reply[2:]]

    def commit(self, *offsets: int, by: By = NOBODY, knows_epochs: int = 1, **given: Any) -> list[Any]:
        """Commit an offset (5) of each partition from 0 on; the group was listed just now, or at `listed_ms`."""
        args = self._commits(offsets, by, knows_epochs, **given)
        reply: list[Any] = run(self.client, "group/commit", (*KEYS, OFFSETS), args)
        return reply

    def commit_transaction(
        self,
        number: int,
        *offsets: int,
        by: By = NOBODY,
        epoch: int = 0,
        producer: int = PRODUCER,
        **given: Any,
    ) -> list[Any]:
        """Have a transaction commit so."""
        args = self._commits(offsets, by, producer, epoch, number, **given)
        reply: list[Any] = run(self.client, "group/commit_transaction", EVERY_KEY, args)
        return reply

    def _commits(
        self, offsets: Sequence[int], by: By, *how: int, topic_id: str = TOPIC_ID, **given: int
    ) -> list[Any]:
        listed_ms = given.get("listed_ms", self.now_ms())
        args = ["g", listed_ms, *by, given.get("not_after_ms", 0), given.get("replaces", 0), *how]
        for index, offset in enumerate(offsets or (5,)):
            args += (of_partition(STREAM, index), topic_id)
            args.append(f'{{"offset":{offset},"topic_id":"{topic_id}","ms":')
        return args

    def end_transaction(
        self, number: int, *, commit: bool = True, epoch: int = 0, producer: int = PRODUCER
    ) -> dict[str, int]:
        """End a transaction; returns the offsets that were committed, by stream. The group was listed just now."""
        args = (self.now_ms(), producer, epoch, number, "commit" if commit else "abort")
        flat: list[bytes] = run(self.client, "group/end_transaction", (GROUP, OFFSETS, PENDING), args)
        return {
            stream.decode(): json.loads(row)["offset"]
            for stream, row in zip(flat[::2], flat[1::2], strict=True)
        }

    def pending(self, producer: int = PRODUCER) -> tuple[int, bool, dict[str, int]] | None:
        """Return number of a producer's last transaction, whether it is open, and what it is to commit."""
        text = self.client.hget(PENDING, producer)
        if text is None:
            return None
        row = json.loads(text)
        rows = {stream: json.loads(text)["offset"] for stream, text in row["rows"].items()}
        return row["number"], row["open"], rows

    def offset(self, partition: int = 0) -> int | None:
        text = self.client.hget(OFFSETS, of_partition(STREAM, partition))
        return None if text is None else int(json.loads(text)["offset"])

    def delete(self, *streams: str) -> int:
        """Delete the group, having seen commits for these streams."""
        reply: int = run(self.client, "group/delete", WITH_ASSIGNMENTS, ("g", *streams))
        return reply

    def forget(self, *seen: str, drop: bool = True, rows: dict[str, str] | None = None) -> list[int]:
        """Forget commits, of a group whose state, generation and time of change were these."""
        pairs = [item for row in (rows or {}).items() for item in row]
        args = ("drop" if drop else "keep", *(seen or ("", "", "")), *pairs)
        reply: list[int] = run(self.client, "group/forget", WITH_ASSIGNMENTS, args)
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
        result: bytes | None = self.client.hget(GROUP, "state")
        return result.decode() if result else "Dead"

    def deadline(self, member: str) -> float | None:
        """Return the end of a member's session (ms), infinite while its request is parked, None for no member."""
        result: float | None = self.client.zscore(DEADLINES, member)
        return result

    def now_ms(self) -> int:
        return now_ms(self.client)

    def fields(self) -> set[str]:
        return {field.decode() for field in self.client.hkeys(MEMBERS)}

    def seen(self) -> list[str]:
        """Return what a deletion of offsets reads first: state, generation and time of change."""
        return [(item or b"").decode() for item in self.client.hmget(GROUP, "state", "generation", "since")]

    def give_id(self, name: str) -> None:
        """Have a new member get its id, with which it is to join."""
        with pytest.raises(redis.ResponseError, match=f"^MEMBER_ID_REQUIRED {name}$"):
            self.join(new=name, require_known_member_id=True)

    def snapshot(self) -> list[bytes | None]:
        """Return all keys of the group, byte for byte: to show that nothing was written."""
        return contents(self.client, (*WITH_ASSIGNMENTS, STREAM))
