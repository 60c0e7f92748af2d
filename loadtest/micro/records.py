"""CPU per record of making records, and a consumer's batch of them, from what Redis answers to a read.

Run as `python -m loadtest.micro.records` from the repository. Nothing talks to Redis: the answer is made here, 1,000
entries of 125 a millisecond, as an append of the Java client leaves them; with entries that differ too. "Read" is
what a read takes; "batch" a batch of it for a consumer, "tuples" its records as objects, "columns" those of an archive.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import lz4.frame
from korvet_core import Fetched, LogReader, RawReply

from korvet.log.packed import PackedLog
from korvet.server.worker import GC_THRESHOLD
from korvet.topics.types import Partition
from loadtest.harness import table

VALUE_BYTES = 100
BITS = 10
TIMESTAMP = 1_700_000_000_000
COUNT = 1000
PER_MS = 125
END = 2**52
BYTES_MAX = 1 << 24
TURNS, REPEATS = 7, 30


def value_of(number: int) -> bytes:
    """Return a value of hexadecimal noise, which a compressor halves."""
    return random.Random(number % 1000).randbytes(VALUE_BYTES // 2).hex().encode()


class Case(NamedTuple):
    """What entries have: a value of so many times 100 bytes, compressed or not, a key, a header."""

    name: str
    times: int
    lz4: bool = False
    key: bool = False
    header: bool = False


CASES = (
    Case("100 B", 1),
    Case("100 B, key", 1, key=True),
    Case("100 B, key, header", 1, key=True, header=True),
    Case("900 B", 9),
    Case("1 KiB, lz4", 11, lz4=True),
    Case("2 KiB, lz4", 20, lz4=True),
)


def answer(case: Case, *, differ: bool) -> RawReply:
    """Return an answer to MULTI .. EXEC, as a log is read; if they `differ`, the first entry has one field more."""
    state = [b"id", PackedLog(next_offset=END, first=0).pack()]
    pieces = [b"*2\r\n*8\r\n", *map(bulk, state), b"$-1\r\n" * 6, b"*%d\r\n" % COUNT]
    for number in range(COUNT):
        content = value_of(number) * case.times
        if case.lz4:
            content = lz4.frame.compress(content)
        fields = [b"key", b"%08d" % number] if case.key else []
        fields += [b"value", content, b"timestamp", b"%d" % (TIMESTAMP + number // PER_MS)]
        fields += [b"korvet.encoding", b"lz4"] if case.lz4 else []
        fields += [b"header.trace", b"%016d" % number] if case.header else []
        fields += [b"header.more", b""] if differ and number == 0 else []
        entry_id = b"%d-%d" % (TIMESTAMP + number // PER_MS, number % PER_MS)
        pieces += [b"*2\r\n", bulk(entry_id), b"*%d\r\n" % len(fields), *map(bulk, fields)]
    return RawReply(b"".join(pieces))


def bulk(text: bytes) -> bytes:
    """Return a string as Redis answers it."""
    return b"$%d\r\n%s\r\n" % (len(text), text)


class Reads:
    """A log of whose reads the answers are made here."""

    def __init__(self) -> None:
        self._reader = LogReader(BYTES_MAX)
        partition = Partition("t", 0, "id", BITS, "record", "", "", "", "", ("", ""), "", "", "", "")
        self._read = self._reader.begin(partition, 0, COUNT, None, False, 0)  # noqa: FBT003 - of all

    def found(self, reply: RawReply) -> Fetched:
        """Return what an answer holds."""
        outcome = self._reader.outcome(self._read, reply)
        assert isinstance(outcome, tuple)
        assert isinstance(outcome[1], Fetched)
        return outcome[1]


def built(found: Fetched) -> int:
    """Build a batch; returns its size."""
    batches, count = found.collect([(0, END)], codec=0, log_append_time=False)
    assert count == COUNT
    return sum(map(len, batches))


def rows_of(found: Fetched) -> int:
    """Return how many rows an archive gets."""
    count, *_ = found.arrow_columns(1 << 28, keys=True, values=True, headers=True, log_append_time=False)
    return count


def cpu_us(work: Callable[[], object]) -> float:
    """Return the CPU time of `work` per record, the best of some turns."""
    best = float("inf")
    for _ in range(TURNS):
        begun = time.process_time()
        for _ in range(REPEATS):
            work()
        best = min(best, time.process_time() - begun)
    return best / REPEATS / COUNT * 1e6


def main() -> None:
    """Print a table."""
    # The garbage collector runs as rarely as in a worker, or it is what is measured.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 1000)
    reads = Reads()
    rows: list[list[str | float]] = []
    for case in CASES:
        for differ in (True, False):
            reply = answer(case, differ=differ)
            found = reads.found(reply)
            works = (
                partial(reads.found, reply),
                partial(built, found),
                found.records,
                partial(rows_of, found),
            )
            rows.append([case.name + (", differing" if differ else ""), *(cpu_us(work) for work in works)])
    print(table(("us per record", "read", "batch", "tuples", "columns"), rows))


if __name__ == "__main__":
    main()
