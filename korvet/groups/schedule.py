"""The list of all groups, with the time at which the keeper has to look at each: the backstop of their deadlines.

Another such list is that of all transactional ids. A list lies in another slot than most of what it lists, so no script
changes both. Each step may come twice or late:

    creation    lists the group before it creates it (lua/shared/listed): one that exists is always listed
    a deadline  lowers the time, some 100 ms after the change that made it. What is lost with its worker the next change
                brings again, or the keeper, which looks at all groups when it begins, and at each after LOOK_AGAIN_MS
    a look      of the keeper moves the time LOOK_AGAIN_MS ahead, reads the group, and then lowers the time again
    deletion    marks the group for the keeper, deletes it, and takes it off the list unless it was listed again

Heartbeats and commits of a group that exists do not touch the list.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from korvet.clock import CLOCK, Clock
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.deferred import Deferred
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import encode_group_id
from korvet.redis.replies import Arg, Reply, errors_about, listed
from korvet.turns import in_parts

_WRITE = scripts.get("schedule/write")
_DUE = scripts.get("schedule/due")
_UNLIST = scripts.get("schedule/unlist")

NOTHING_DUE, NOT_THERE = -1, -2
"""In place of a time: no deadline is ahead; there is no such group."""

LOOK_AGAIN_MS = 3_600_000
"""How long a group without deadlines is not looked at, and one at most that a keeper took and did not finish."""

_AT_ONCE = 1000
"""Groups of one script: a millisecond of Redis."""

_MARKS = 1 << 40
"""A deleter's mark is a time before 2005: long due, and hardly ever the same twice."""


class Due(NamedTuple):
    """What the keeper has to look at, by the names in the list, with their times there as they were.

    `now_ms` is the clock of the list, `again_ms` the time that they have in it now.
    """

    now_ms: int
    again_ms: int
    times_ms: dict[bytes, float]


class Schedule:
    """One list, of groups or of what else has an id.

    Every method raises StorageUnavailableError if Redis is away, and KafkaError KAFKA_STORAGE_ERROR.
    """

    def __init__(
        self, redis: Redis, key: str, look_again_ms: int = LOOK_AGAIN_MS, *, clock: Clock = CLOCK
    ) -> None:
        self._redis = redis
        self._key = key
        self._look_again_ms = look_again_ms
        self._earlier: Deferred[bytes, float] = Deferred(self.lower, clock=clock)

    def create(self, group: str, run: Callable[[int], list[Reply]]) -> list[Reply]:
        """Return the reply of a script that may create the group.

        `run` is given when the group was listed, 0 if it was not. Raises KafkaError COORDINATOR_NOT_AVAILABLE.
        """
        reply = run(0)
        if reply[:1] != [b"UNLISTED"]:
            return reply
        listed_ms = cast("int", reply[1])
        name = _name(group)
        self._write("CH", {name: listed_ms})
        reply = run(listed_ms)
        if reply[:1] == [b"UNLISTED"]:
            message = f"the creation of {group} took too long"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        # Once more: who deleted it may have taken the name of the new group off the list.
        self._earlier.put({name: listed_ms})
        return reply

    def lower_soon(self, group: str, due_ms: int) -> None:
        """Have the keeper look at the group at this time, if not earlier; -1: nothing is due."""
        name = _name(group)
        waiting = self._earlier.get(name)
        if due_ms >= 0 and (waiting is None or due_ms < waiting):
            self._earlier.put({name: due_ms})

    def flush(self) -> None:
        self._earlier.flush()

    def lower(self, times_ms: Mapping[bytes, float]) -> None:
        self._write("LT", times_ms)

    def take_due(self, limit: int) -> Due:
        """Take the most urgent groups whose time has come."""
        [reply] = self._redis.scripts([(_DUE, (self._key,), (limit, self._look_again_ms))])
        now_ms, again_ms, *due = listed(self._key, reply)
        names, times = cast("list[bytes]", due[::2]), cast("list[bytes]", due[1::2])
        times_ms = dict(zip(names, map(float, times), strict=True))
        return Due(cast("int", now_ms), cast("int", again_ms), times_ms)

    def mark(self, group: str) -> int:
        """Have the keeper look at a group that is being deleted; returns its time in the list."""
        self.flush()  # nothing that waits here lists the group again when it is gone
        mark = secrets.randbelow(_MARKS)
        self._write("XX", {_name(group): mark})
        return mark

    def unlist(self, group: str | bytes, time_ms: int) -> None:
        """Take a group that does not exist off the list if its time is still this one; bytes are a name in the list."""
        name = group if isinstance(group, bytes) else _name(group)
        with errors_about(self._key):
            self._redis.script(_UNLIST, (self._key,), (name, time_ms))

    def _write(self, how: str, times_ms: Mapping[bytes, float]) -> None:
        for chunk in in_parts(list(times_ms.items()), _AT_ONCE) if times_ms else ():
            args: list[Arg] = [how]
            for name, time_ms in chunk:
                args += (repr(time_ms), name)
            with errors_about(self._key):
                self._redis.script(_WRITE, (self._key,), args)


def _name(group: str) -> bytes:
    return encode_group_id(group).encode()
