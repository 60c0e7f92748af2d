"""A worker's stores of one group, on a topic that has a record in its first partition."""

from __future__ import annotations

from typing import Any

from korvet.clock import CLOCK, Clock
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.redis.client import Redis
from tests.groups.support import KEYS, Group
from tests.support.log_bench import Bench

NAME = "billing"
LIST = KEYS.groups


class Stores:
    """The stores, and what lies in Redis."""

    def __init__(self, redis: Redis, raw: Any, *, clock: Clock = CLOCK, bench: Bench | None = None) -> None:
        self.redis, self.raw = redis, raw
        self.group = Group(redis, raw, NAME)
        self.store = OffsetStore(redis, KEYS, mirror=True, clock=clock)
        self.bench = bench or Bench(redis, raw, "batch")
        self.stream = self.bench.partition.stream

    def commit(self, offset: int = 1, generation: int = -1, member: str = "") -> None:
        at = Commit(self.bench.partition, offset, -1, "")
        assert self.store.commit(Committer(NAME, generation, member), [at]) == [None]

    def flush(self) -> None:
        self.group.store.schedule.flush()
        self.store.flush()

    def is_listed(self) -> bool:
        return self.raw.zscore(LIST, NAME) is not None

    def exists(self) -> bool:
        return bool(self.raw.exists(self.group.state))

    def redis_groups(self) -> list[tuple[bytes, bytes]]:
        results = self.raw.xinfo_groups(self.stream)
        return [(result["name"], result["last-delivered-id"]) for result in results]

    def forget_all(self) -> None:
        """Delete all offsets, and the group with them, as the keeper does once they have expired."""
        expired, errors = OffsetExpiry(self.store, self.group.store, 0, 0).expire([NAME])
        if errors:
            raise errors[0]
        assert expired.groups == 1
