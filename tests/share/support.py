"""A share group on a partition as the worker uses it: it reads where the store says, and acquires what it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from korvet_core import Fetched

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import ErrorCode, KafkaError
from korvet.log.trim import Trim, Trimmed, TrimStore
from korvet.share.reading import last_epoch
from korvet.share.store import SharePartitions
from korvet.share.types import (
    ACCEPT,
    Acknowledged,
    Acknowledgement,
    AckRange,
    Acquire,
    Acquired,
    AcquiredRange,
    Begin,
    HeldRanges,
    Readable,
    ShareOffsets,
)
from korvet.topics.entry_ids import id_of_end
from tests.support.entry_ids import end_of_id
from tests.support.log_bench import Bench

GROUP = "workers"
POLICY = SharePolicy(lock_ms=60_000, delivery_limit=3, in_flight_max=100)

Kind = Literal["redis", "ranges"]


class Part:
    """The part that group `workers` has of partition 0, of a kind."""

    def __init__(self, bench: Bench, kind: Kind, policy: SharePolicy = POLICY) -> None:
        self.bench, self.kind, self.policy = bench, kind, policy
        self.raw: Any = bench.raw
        self.store = SharePartitions(bench.redis)
        self.partition = bench.partition
        self.stream, self.share = self.partition.stream, self.partition.share_groups

    def begin(self, start: int | None = 0, kind: Kind | None = None) -> Acquired | None:
        is_redis = (kind or self.kind) == "redis"
        [begun] = self.store.begin([Begin(self.partition, GROUP, start, is_redis, self.policy)])
        assert not isinstance(begun, KafkaError), begun
        return begun

    def readable(self, offset: int, count: int = 1000, archived: Sequence[tuple[int, int]] = ()) -> Readable:
        return readable_of(self.bench.read(offset, count), offset, archived)

    def ask(
        self,
        member: str = "m1",
        count: int = 1000,
        *,
        readable: Readable | None = None,
        at: int | None = None,
        exact: bool = True,
        goes_on: bool = False,
    ) -> Acquired | KafkaError | None:
        """Acquire once of what was read, or of what is read `at` an offset."""
        readable = readable or self.readable(self.next() if at is None else at)
        [result] = self.store.acquire(
            [Acquire(self.partition, GROUP, member, readable, count, exact, self.policy, goes_on)]
        )
        return result

    def asked(self, *args: Any, **options: Any) -> Acquired:
        """Do so, expect that to succeed."""
        result = self.ask(*args, **options)
        assert isinstance(result, Acquired), result
        return result

    def next(self) -> int:
        """Return where the store says that there is something to read, else the end."""
        begun = self.begin(None)
        assert begun is not None
        return self.bench.bounds().high_watermark if begun.read_next is None else begun.read_next

    def take(self, member: str = "m1", count: int = 1000) -> list[tuple[int, int]]:
        """Acquire what there is, reading where the store says; return offsets and delivery counts."""
        got: list[tuple[int, int]] = []
        while count > len(got):
            result = self.asked(member, count - len(got))
            if not result.ranges:
                break
            got += offsets_in(result)
        return got

    def acknowledge(
        self, *ranges: AckRange | int | tuple[int, int], member: str = "m1", type_: int = ACCEPT
    ) -> Acknowledged | KafkaError:
        """Acknowledge offsets, or ranges of them, in their order."""
        given = [item if isinstance(item, AckRange) else _range(item, type_) for item in ranges]
        [done] = self.store.acknowledge([Acknowledgement(self.partition, GROUP, member, given, self.policy)])
        return done

    def acknowledged(self, *ranges: AckRange | int | tuple[int, int], **options: Any) -> bool:
        """Do so, expect that to succeed, and return whether something was released."""
        done = self.acknowledge(*ranges, **options)
        assert isinstance(done, Acknowledged), done
        return done.released

    def held(self, *ranges: tuple[int, int]) -> HeldRanges:
        """Return what a session has acquired: these ranges, or all that there may be."""
        held = HeldRanges(self.partition)
        held.add(AcquiredRange(first, last, 1) for first, last in ranges or [(0, (1 << 53) - 2)])
        return held

    def release(self, member: str = "m1", *ranges: tuple[int, int]) -> bool:
        """Release what a member has, of these ranges or all; return whether there was something."""
        [done] = self.store.release(GROUP, member, [self.held(*ranges)], self.policy)
        assert isinstance(done, Acknowledged), done
        return done.released

    def expire(self, *offsets: int) -> Self:
        """Let locks end, all or those of these offsets, without waiting for them."""
        # The clock that counts is the server's, so the locks are what is moved.
        if self.kind == "redis":
            rows = self.raw.xpending_range(self.stream, GROUP, "-", "+", 10_000)
            for row in rows:
                if not offsets or self.offset_of(row["message_id"]) in offsets:
                    command = ("XCLAIM", self.stream, GROUP, row["consumer"], 0, row["message_id"])
                    self.raw.eval(
                        "return redis.call(unpack(ARGV))", 0, *command, "JUSTID", "IDLE", self.policy.lock_ms
                    )
        else:
            self.raw.eval(_EXPIRE, 1, self.share, f"r:{GROUP}", *offsets)
        return self

    def set_clock_back(self, ms: int) -> None:
        """Have everything stored of the group be of a clock that was so much ahead."""
        header = self.raw.hget(self.share, f"h:{GROUP}").decode().split()
        self.raw.hset(self.share, f"h:{GROUP}", " ".join([*header[:-1], str(int(header[-1]) + ms)]))
        if self.kind == "ranges":
            self.raw.eval(_SHIFT, 1, self.share, f"r:{GROUP}", ms)
            return
        for row in self.raw.xpending_range(self.stream, GROUP, "-", "+", 10_000):
            command = ("XCLAIM", self.stream, GROUP, row["consumer"], 0, row["message_id"])
            time_ms = int(self.raw.time()[0]) * 1000 + ms
            self.raw.eval("return redis.call(unpack(ARGV))", 0, *command, "TIME", time_ms, "JUSTID")

    def trim(self, start: int) -> None:
        """Move the start of the log, as retention or DeleteRecords does."""
        [done] = TrimStore(self.bench.redis).trim([Trim(self.partition, start)])
        assert isinstance(done, Trimmed), done

    def offsets(self) -> ShareOffsets:
        [result] = self.store.offsets(GROUP, [self.partition])
        assert isinstance(result, ShareOffsets), result
        return result

    def state(self) -> tuple[int, int, int]:
        """Return start, next and how many are in flight."""
        return self.offsets()[:3]

    def id_of(self, offset: int) -> str:
        """Return the entry id of an offset in format `record`."""
        return id_of_end(offset + 1, self.bench.bits)

    def offset_of(self, entry_id: bytes) -> int:
        """Return the offset of an entry id, -1 if it names none."""
        end = end_of_id(entry_id, self.bench.bits)
        return -1 if end is None else end - 1


_EXPIRE = """
local owners, ranges = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
for at = 1, #ranges, 5 do
  local hit = #ARGV == 1
  for n = 2, #ARGV do
    hit = hit or tonumber(ARGV[n]) >= ranges[at] and tonumber(ARGV[n]) <= ranges[at + 1]
  end
  if hit and ranges[at + 3] > 0 then
    ranges[at + 4] = 1
  end
end
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(owners, ranges))
"""

_SHIFT = """
local owners, ranges = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
for at = 1, #ranges, 5 do
  ranges[at + 4] = ranges[at + 4] + tonumber(ARGV[2])
end
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(owners, ranges))
"""


def readable_of(fetched: Fetched, offset: int, archived: Sequence[tuple[int, int]] = ()) -> Readable:
    """Return what was read as the store takes it."""
    end = fetched.next_offset or fetched.visible_end
    return Readable(offset, max(end, offset), fetched.spans(), archived, last_epoch(fetched))


def offsets_in(acquired: Acquired) -> list[tuple[int, int]]:
    return [(offset, count) for first, last, count in acquired.ranges for offset in range(first, last + 1)]


def code_of(outcome: object) -> ErrorCode | None:
    return outcome.code if isinstance(outcome, KafkaError) else None


def _range(of: int | tuple[int, int], type_: int) -> AckRange:
    first, last = (of, of) if isinstance(of, int) else of
    return AckRange(first, last, [type_])
