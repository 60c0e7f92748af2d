"""What the workers of a broker have used of its quotas, in memory that all of them share.

The supervisor makes it before the first fork. Each worker has a row and writes only that; it reads all of them, so what
one worker used counts for the others at their next look, without a lock. A worker that is killed leaves its rates,
which age as others do; the supervisor removes its connections. Only token buckets lie in a row that all
workers write: changes of topics are rare, and two in the same microsecond cost one change that is not counted.

A row has a bounded number of entries, in buckets by the hash of their names. In a full bucket a new entry takes the
place of the one that was used longest ago.

A rate is Kafka's (Rate, SampledStat): the sum of the samples that overlap the last windows, divided by the time since
the first of them began, and by no less than all windows but the current one.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections import Counter
from hashlib import blake2b
from typing import NamedTuple

from korvet.config.listeners import wanted_listeners
from korvet.config.settings import Settings

BUCKETS = 256
WAYS = 8
"""Entries of a bucket; a row has room for 2048 clients, addresses and listeners with a quota."""
ADDRESS_BUCKETS = 512
ADDRESS_WAYS = 16
"""Addresses of a worker's connections that are counted for the other workers too: those of 8192 clients."""

_INT = 8
_SECRET = os.urandom(16)
"""Of the supervisor, and by the fork of its workers: nobody chooses names that share a bucket."""
_SAMPLE = 3
"""Numbers of a sample: when it began, when it last grew (ms of the monotonic clock), and its value."""
_KEYS = struct.Struct(f"@{WAYS}q")
_ADDRESSES = struct.Struct(f"@{ADDRESS_WAYS}q")
_ONE = struct.Struct("@q")
_VALUES = struct.Struct(f"@{_SAMPLE}d")


class Windows(NamedTuple):
    """How a rate is sampled: Kafka's quota.window.num and quota.window.size.seconds."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        """How far back samples count."""
        return self.number * self.size_ms


class Rate(NamedTuple):
    """A rate a second, and the time that it is the rate of."""

    value: float
    window_ms: float

    def throttle_ms(self, bound: float) -> float:
        """Return how long to wait so that the rate falls to `bound`: (O - T) / T * W of KIP-13; 0 if it is no more."""
        if self.value <= bound:
            return 0.0
        return (self.value - bound) / bound * self.window_ms if bound else math.inf


def entry_key(*names: str) -> int:
    """Return the name of an entry as it stands in the table."""
    digest = blake2b(
        "\0".join(names).encode("utf-8", "surrogatepass"), digest_size=_INT, key=_SECRET
    ).digest()
    # 0 is a free place.
    return _ONE.unpack(digest)[0] or 1


class UsageTable:
    """The rows of all workers."""

    def __init__(self, workers: int, listeners: int, windows: Windows) -> None:
        """Make it for `workers` and those that replace them: a reload may begin while others of before still drain."""
        self.windows = windows
        self.listeners = listeners
        # As SampledStat: one sample more than windows, for the last of them overlaps the span.
        self.samples = struct.Struct(f"@{_SAMPLE * (windows.number + 1)}d")
        self._rows = 4 * workers
        self.entries_at = (1 + listeners) * _INT
        self.addresses_at = self.entries_at + BUCKETS * WAYS * (_INT + self.samples.size)
        self._row_size = self.addresses_at + ADDRESS_BUCKETS * ADDRESS_WAYS * 2 * _INT
        # The first number says how many rows are in use, the last row has the token buckets.
        self.memory = mmap.mmap(-1, _INT + (self._rows + 1) * self._row_size)

    @classmethod
    def of(cls, settings: Settings, workers: int) -> UsageTable:
        listeners = wanted_listeners(settings.listeners, settings.listen)
        size_ms = settings.quota_window_size_seconds * 1000
        return cls(max(1, workers), len(listeners), Windows(settings.quota_window_num, size_ms))

    def start(self, row: int) -> None:
        """Prepare the row of a worker that is about to be forked; called by the supervisor."""
        if row < self._rows:
            _ONE.pack_into(self.memory, 0, max(self.rows_used, row + 1))
            self.end(row)

    def end(self, row: int) -> None:
        """Count the connections of the row no more; called by the supervisor when its worker has ended."""
        if row < self._rows:
            at = self.row_at(row)
            for first, last in ((0, self.entries_at), (self.addresses_at, self._row_size)):
                self.memory[at + first : at + last] = bytes(last - first)

    def worker(self, row: int) -> Usage:
        """Return the view of the worker of a row; one beyond the table counts alone."""
        if row < self._rows:
            return Usage(self, row)
        return UsageTable(1, self.listeners, self.windows).worker(0)

    @property
    def rows_used(self) -> int:
        """How many rows were ever in use, at least one."""
        used: int = _ONE.unpack_from(self.memory, 0)[0]
        return max(1, used)

    def row_at(self, row: int) -> int:
        """Return where a row begins; -1 is that of the token buckets."""
        return _INT + (row % (self._rows + 1)) * self._row_size


class Usage:
    """The table as one worker uses it. Times are milliseconds of the monotonic clock, the same for all processes."""

    def __init__(self, table: UsageTable, row: int) -> None:
        self._table = table
        self._memory = table.memory
        self._at = table.row_at(row)
        self._buckets_at = table.row_at(-1)
        self.windows = table.windows
        self._own_addresses: Counter[int] = Counter()

    def record(self, key: int, value: float, now_ms: float) -> None:
        """Count `value` for an entry; a negative one takes back what was counted just now."""
        at = self._entry(self._at, key)
        numbers = self._table.samples.unpack_from(self._memory, at)
        starts = numbers[::_SAMPLE]
        newest = max(range(len(starts)), key=starts.__getitem__)
        if now_ms - starts[newest] < self.windows.size_ms:
            sample = (starts[newest], now_ms, numbers[_SAMPLE * newest + 2] + value)
        else:
            newest = min(range(len(starts)), key=starts.__getitem__)
            sample = (now_ms, now_ms, value)
        _VALUES.pack_into(self._memory, at + _SAMPLE * _INT * newest, *sample)

    def rate(self, key: int, now_ms: float) -> Rate:
        """Return the rate of an entry, all workers together."""
        total, oldest = 0.0, now_ms
        for row in range(self._table.rows_used):
            at = self._find(self._table.row_at(row), key)
            if at is None:
                continue
            numbers = iter(self._table.samples.unpack_from(self._memory, at))
            for start, last, value in zip(numbers, numbers, numbers, strict=True):
                if start and now_ms - last < self.windows.span_ms:
                    total += value
                    oldest = min(oldest, start)
        elapsed = now_ms - oldest
        missing = self.windows.number - 1 - elapsed // self.windows.size_ms
        elapsed += max(0, missing) * self.windows.size_ms
        # With a single window nothing but the time since its begin counts, and that may be none.
        return Rate(total / max(elapsed, 1) * 1000, elapsed)

    def take_tokens(
        self, key: int, bound: float, burst: float, value: float, now_ms: float, *, strict: bool
    ) -> float:
        """Take `value` tokens of a bucket, and return how many were missing; 0 if there were enough.

        Kafka's TokenBucket: `bound` tokens come a second, up to `burst`. A strict one lends tokens if none are owed
        already, and else takes none; any other lends and says what is owed.
        """
        at = self._entry(self._buckets_at, key)
        _, last, tokens = _VALUES.unpack_from(self._memory, at)
        tokens = min(burst, tokens + bound * (now_ms - last) / 1000) if last else burst
        if strict and tokens < 0:
            return float(-tokens)
        _VALUES.pack_into(self._memory, at, now_ms, now_ms, min(burst, tokens - value))
        return 0.0 if strict else max(0.0, value - tokens)

    def connect(self, listener: int, address: int, change: int) -> None:
        """Count a connection of an address to a listener (1), or that it has ended (-1)."""
        for at in (self._at, self._at + (1 + listener) * _INT):
            _ONE.pack_into(self._memory, at, max(0, _ONE.unpack_from(self._memory, at)[0] + change))
        self._own_addresses[address] += change
        if not self._own_addresses[address]:
            del self._own_addresses[address]
        bucket = self._at + self._address_bucket(address)
        keys = _ADDRESSES.unpack_from(self._memory, bucket)
        counts = _ADDRESSES.unpack_from(self._memory, bucket + _ADDRESSES.size)
        way = keys.index(address) if address in keys else (*counts, 0).index(0)
        if way < ADDRESS_WAYS:
            _ONE.pack_into(self._memory, bucket + way * _INT, address)
            _ONE.pack_into(self._memory, bucket + _ADDRESSES.size + way * _INT, max(0, counts[way] + change))

    def connections(self) -> int:
        return sum(self._cells(0))

    def listener_connections(self, listener: int) -> int:
        return sum(self._cells((1 + listener) * _INT))

    def address_connections(self, address: int) -> int:
        """Return how many connections an address has to the broker."""
        # All of its own, even if its row has no room for the address.
        total = self._own_addresses[address]
        for row in range(self._table.rows_used):
            bucket = self._table.row_at(row) + self._address_bucket(address)
            if self._table.row_at(row) == self._at:
                continue
            keys = _ADDRESSES.unpack_from(self._memory, bucket)
            if address in keys:
                total += _ONE.unpack_from(
                    self._memory, bucket + _ADDRESSES.size + keys.index(address) * _INT
                )[0]
        return total

    def _cells(self, offset: int) -> list[int]:
        rows = range(self._table.rows_used)
        return [_ONE.unpack_from(self._memory, self._table.row_at(row) + offset)[0] for row in rows]

    def _address_bucket(self, address: int) -> int:
        return self._table.addresses_at + address % ADDRESS_BUCKETS * 2 * _ADDRESSES.size

    def _entry_at(self, row_at: int, key: int, way: int) -> int:
        first = row_at + self._table.entries_at + BUCKETS * _KEYS.size
        return first + (key % BUCKETS * WAYS + way) * self._table.samples.size

    def _find(self, row_at: int, key: int) -> int | None:
        """Return where the samples of an entry are in a row, None if it has none."""
        keys = _KEYS.unpack_from(self._memory, row_at + self._table.entries_at + key % BUCKETS * _KEYS.size)
        return self._entry_at(row_at, key, keys.index(key)) if key in keys else None

    def _entry(self, row_at: int, key: int) -> int:
        """Return where the samples of an entry are in a row; they are new ones if it had none."""
        result = self._find(row_at, key)
        if result is not None:
            return result
        keys_at = row_at + self._table.entries_at + key % BUCKETS * _KEYS.size
        keys = _KEYS.unpack_from(self._memory, keys_at)
        way = keys.index(0) if 0 in keys else min(range(WAYS), key=lambda way: self._last(row_at, key, way))
        at = self._entry_at(row_at, key, way)
        # Nobody may read the samples of one by the name of the other.
        _ONE.pack_into(self._memory, keys_at + way * _INT, 0)
        self._memory[at : at + self._table.samples.size] = bytes(self._table.samples.size)
        _ONE.pack_into(self._memory, keys_at + way * _INT, key)
        return at

    def _last(self, row_at: int, key: int, way: int) -> float:
        at = self._entry_at(row_at, key, way)
        return float(max(self._table.samples.unpack_from(self._memory, at)[1::_SAMPLE]))
