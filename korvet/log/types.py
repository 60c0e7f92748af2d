"""What a log store takes and returns; what a read has found is korvet_core.Fetched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec
from korvet_core import Fetched

from korvet.log.epochs import Epochs, epochs_of
from korvet.topics.types import Partition

CheckStep = Callable[[], None]
"""Called before every bounded step of work on logs; whatever it raises ends the work there."""


class Appended(NamedTuple):
    """Where a batch lies: contiguously from `base_offset`.

    `log_start` is the one that responses report (Bounds.first_offset); `duplicate`: it was written there before.
    `row_bytes` is what ever came into the log in bytes as stored, if the append wrote a row of its index, about once in
    512 KiB; else 0. `history` is that of the `node` of Redis that has it (RedisNode.history). `timestamp` (ms) is the
    one that its records got instead of their own (LogAppendTime), -1 if they kept theirs; the caller knows it.
    `replicas` is that of the partition.
    """

    base_offset: int
    log_start: int
    duplicate: bool
    row_bytes: int = 0
    history: str = ""
    timestamp: int = -1
    replicas: int = 0
    node: str = ""


class LogPosition(NamedTuple):
    """An offset of a log; what -1 stands for, its start or its end, the taker says."""

    partition: Partition
    offset: int


class Read(NamedTuple):
    """A read of records from `offset` on, from at most `entries_max` entries (at least one).

    `committed`: only what lies below the last stable offset is read, and which of it was aborted (read_committed); no
    more is read than what `aborted_max` rows of aborted transactions say.

    Entries that begin at or above `end`, if given, are not read; it must lie between two entries. `bytes_expected` is
    about what they weigh; a reader that does not know takes the default of message.max.bytes.
    """

    partition: Partition
    offset: int
    entries_max: int
    end: int | None = None
    bytes_expected: int = 1024 * 1024
    committed: bool = False
    aborted_max: int = 1000


class RemoteRange(NamedTuple):
    """The part of a log that only the remote tier holds: from `start` up to `end`, where Redis begins.

    `archived` is the offset up to which the remote tier is known to hold the log; it may lie past `end`. `epochs` are
    those of the log.
    """

    start: int
    end: int
    archived: int
    epochs: Epochs = ()


def remote_of(fetched: Fetched) -> RemoteRange | None:
    """Return the part of a log that only the remote tier holds: a read of it has found nothing."""
    return None if fetched.remote is None else RemoteRange(*fetched.remote, epochs_of(fetched.epochs))


class Bounds(NamedTuple):
    """The ends of a log, exact at the time of the answer; consumers may see less (LogStore.visible_bounds).

    `log_start` is the lowest offset that may be asked for: 0 until retention or DeleteRecords move it, whatever the
    first entry is. `first_offset` is the first entry's offset, the high watermark in an empty log (what ListOffsets
    calls earliest). `max_timestamp` (ms) is the largest of all records, at most 2^53, -1 without any; it may be that of
    a record that has left the log. The remote tier holds the log up to `archived`; `remote` is the part that only it
    holds. Below `compacted_end` compaction has removed records. `epochs` are those of the log. The oldest open
    transaction begins at `open_offset`, None without one.
    """

    log_start: int
    first_offset: int
    high_watermark: int
    max_timestamp: int
    archived: int = 0
    remote: RemoteRange | None = None
    compacted_end: int = 0
    epochs: Epochs = ()
    open_offset: int | None = None

    @property
    def stable_offset(self) -> int:
        """The last stable offset: all transactions that have records below it have ended; -1 if it is unknown."""
        if self.open_offset is None:
            return self.high_watermark
        # Deletion may have removed the beginning of an open transaction.
        return min(max(self.open_offset, self.first_offset), self.high_watermark)

    @property
    def local_start(self) -> int:
        """The first offset that Redis holds, as responses report it."""
        return self.remote.end if self.remote else self.first_offset

    @property
    def redis_start(self) -> int:
        """Where Redis begins to hold the log: below the first entry too, for what is missing there never was."""
        return self.remote.end if self.remote else self.log_start


class FetchMemory(Protocol):
    """The memory of the records of one response, from their reading until they are sent."""

    @property
    def room(self) -> int:
        """How much it may take."""

    def reserve(self, size: int) -> None:
        """Take `size` bytes more; negative: release them."""


class _Unlimited:
    room = sys.maxsize

    def reserve(self, size: int) -> None:
        """Count nothing."""


UNLIMITED: FetchMemory = _Unlimited()


class LogLimits(msgspec.Struct, frozen=True):
    """What the logs of one process may take.

    A batch has `decompressed_bytes_max` bytes at the most. No request of a client begins while what was made of others
    takes `held_bytes_max`. There are at most `fetch_sessions_max` fetch sessions. A fetch waits for `fetch_wait_max_s`
    at the most, if that is given.
    """

    decompressed_bytes_max: int = 64 * 1024 * 1024
    held_bytes_max: int = 64 * 1024 * 1024
    fetch_sessions_max: int = 0
    fetch_wait_max_s: float | None = None


class FetchLimits(msgspec.Struct, frozen=True):
    """The limits of a whole fetch. If `memory` has less room than `bytes_max`, that is its limit."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    memory: FetchMemory = UNLIMITED
