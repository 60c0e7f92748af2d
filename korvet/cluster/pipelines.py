"""Pipelines of the lake: what each reports, a row of one hash, and the lease of the process that runs it.

A row is the report of its process at the time of writing. The lease, which the process renews while it runs, says that
it lives. So a process that is killed is `lost` LEASE_MS later at the most, when
its lease has ended.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, cast

import msgspec

from korvet.cluster.leases import LeaseStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import checked, errors_about, listed

LEASE_MS = 30_000
"""How long after its last sign of life a process counts as running the pipeline."""

State = Literal["starting", "running", "stopped", "completed", "failed", "lost"]
"""One of telemetry.stats.PIPELINE_STATES."""


MAIN = "main"
"""The query that brings rows to the target; others of a pipeline read the same records again."""


class PipelineProcess(NamedTuple):
    """A process, as no other process on any machine has it: ids of processes are used again."""

    host: str
    id: int
    machine: str
    """The boot of the machine and the namespace of process ids, of a container say."""
    start: str
    """When the process began, in ticks since the boot."""

    @classmethod
    def own(cls) -> PipelineProcess:
        return cls(socket.gethostname(), os.getpid(), _machine(), _start(os.getpid()) or "")

    @classmethod
    def parse(cls, holder: str) -> PipelineProcess:
        host, number, machine, start = holder.split("/")
        return cls(host, int(number), machine, start)

    def __str__(self) -> str:
        return f"{self.host}/{self.id}/{self.machine}/{self.start}"

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine, that signals from here reach."""
        return self.machine == _machine()

    @property
    def has_ended(self) -> bool:
        """Whether it is one of this machine and has ended: of others nothing is known."""
        if not self.is_here:
            return False
        try:
            os.kill(self.id, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        # Of another user's process that may be hidden: then it is taken for the same.
        return _start(self.id) not in (None, self.start)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - one name for both calls of the kernel
    except FileNotFoundError:  # not Linux: a process that has the id of an ended one is taken for it
        return f"{uuid.getnode():x}"


def _start(number: int) -> str | None:
    """Return when a process began, "" for one that only waits to be buried; None if that cannot be seen."""
    try:
        state, *rest = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else rest[18]


class QueryPosition(msgspec.Struct, frozen=True):
    """How far a query has read a topic: its id, and the offset that follows for each partition."""

    id: str
    offsets: dict[int, int]


class LostOffsets(msgspec.Struct, frozen=True):
    """Offsets of a partition that a query passed over unread: how many in all, and the last range, without its end."""

    count: int
    first: int
    end: int


class QueryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last micro-batch of a query that read something: its number, when it ended, what it read, and how fast.

    `positions` are by topic, after the last batch of all; `lost` by topic and partition, since its checkpoint began.
    `polled_ms` is when the query last ended a batch, or looked for records and found none.
    """

    batch: int = -1
    ended_ms: int | None = None
    polled_ms: int | None = None
    records: int = 0
    duration_ms: int | None = None
    records_per_second: float = 0.0
    positions: dict[str, QueryPosition] = {}
    lost: dict[str, dict[int, LostOffsets]] = {}


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline, as its process has reported it last.

    `holder` is the process (PipelineProcess), `log` the file of its log if it has one, `tables` are the paths that it
    writes to: its target's, and that of dead letters. It was in `state` since
    `since_ms`, and was started at `started_ms`. `restarts` counts the starts after an end that nobody had asked for,
    `records` the records read, `dead_letters` the records in the table of dead letters, `unread_fields` records with
    fields outside the pipeline's schema, by part of the source, schema id and field, `unmet` records that do not meet
    an expectation, by source and expectation; all since the first start.
    """

    name: str
    state: State
    since_ms: int
    started_ms: int
    holder: str
    file: str = ""
    log: str | None = None
    tables: tuple[str, ...] = ()
    restarts: int = 0
    records: int = 0
    dead_letters: int = 0
    unread_fields: dict[str, int] = {}
    unmet: dict[str, int] = {}
    error: str | None = None
    error_ms: int | None = None
    queries: dict[str, QueryStatus] = {}

    @property
    def process(self) -> PipelineProcess:
        return PipelineProcess.parse(self.holder)

    @property
    def is_active(self) -> bool:
        """Whether its process lives, as far as that is known."""
        return self.state in ("starting", "running")

    @property
    def last_batch(self) -> QueryStatus:
        """The last batch with records of the query `main`; before the first an empty one."""
        return self.queries.get(MAIN, QueryStatus())

    @property
    def polled_ms(self) -> int | None:
        """When the last of the queries to do so ended a batch or found no records; None before all have."""
        polls = [query.polled_ms for query in self.queries.values()]
        return None if None in polls else min((poll for poll in polls if poll is not None), default=None)

    def positions(self) -> dict[str, QueryPosition]:
        """Return how far each topic was read by all queries that read it."""
        result: dict[str, QueryPosition] = {}
        for query in self.queries.values():
            for topic, position in query.positions.items():
                before = result.setdefault(topic, position)
                if before.id == position.id:
                    result[topic] = QueryPosition(position.id, _smaller(before.offsets, position.offsets))
        return result

    def lost_offsets(self) -> dict[tuple[str, int], int]:
        """Return how many offsets of each partition were passed over unread: by the query that lost the most."""
        counts: dict[tuple[str, int], int] = {}
        for query in self.queries.values():
            for topic, position in query.positions.items():
                for partition in position.offsets:
                    lost = query.lost.get(topic, {}).get(partition)
                    count = 0 if lost is None else lost.count
                    counts[topic, partition] = max(count, counts.get((topic, partition), 0))
        return counts


def _smaller(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {at: min(item[at] for item in (one, other) if at in item) for at in sorted({*one, *other})}


class PipelineStore:
    """The rows and the leases. Every method raises StorageUnavailableError, and KafkaError KAFKA_STORAGE_ERROR."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def lease(self, name: str) -> LeaseStore:
        return LeaseStore(self._redis, self._keys.pipeline_lease(name), self._keys.pipeline_fence(name))

    def holder(self, name: str) -> str | None:
        return self._holders([name])[0]

    def write(self, status: PipelineStatus) -> None:
        with errors_about(self._keys.pipelines):
            self._redis.call("HSET", self._keys.pipelines, status.name, msgspec.json.encode(status))

    def read(self) -> list[PipelineStatus]:
        """Return every pipeline by name, with the state `lost` where the lease is not its process' any more.

        A row that another version wrote, and this one cannot read, is left out.
        """
        with errors_about(self._keys.pipelines):
            result = cast(
                "list[bytes]", listed(self._keys.pipelines, self._redis.call("HGETALL", self._keys.pipelines))
            )
        rows = []
        for text in result[1::2]:
            try:
                rows.append(msgspec.json.decode(text, type=PipelineStatus))
            except msgspec.DecodeError:
                continue
        active = [row for row in rows if row.is_active]
        lost = {
            row.name
            for row, holder in zip(active, self._holders([row.name for row in active]), strict=True)
            if holder != row.holder
        }
        marked = (msgspec.structs.replace(row, state="lost") if row.name in lost else row for row in rows)
        return sorted(marked, key=lambda row: row.name)

    def forget(self, name: str) -> None:
        """Remove what there is of a pipeline that does not run."""
        for command in (("HDEL", self._keys.pipelines, name), ("DEL", self._keys.pipeline_fence(name))):
            with errors_about(command[1]):
                self._redis.call(*command)

    def _holders(self, names: list[str]) -> list[str | None]:
        keys = [self._keys.pipeline_lease(name) for name in names]
        result: list[str | None] = []
        for key, reply in zip(keys, self._redis.pipeline([("GET", key) for key in keys]), strict=True):
            value = checked(key, reply)
            result.append(value.decode(errors="replace") if isinstance(value, bytes) else None)
        return result
