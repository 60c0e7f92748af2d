"""CPU per record of making records, and a consumer's batch of them, from what Redis answers to a read.

Run as `python loadtest/micro/records.py` from the repository.
Nothing talks to Redis: the answer is made here, 1,000 entries of 125 a millisecond, as an append of the Java client
leaves them; with entries of differing fields too. "Read" is what a read takes; "batch" a batch of it for a consumer,
"tuples" its records as objects, and "columns" those of an archive.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from collections.abc import Callable
from functools import partial

import lz4.frame
import zstandard
from korvet_core import Fetched, LogReader, RawReply

from korvet.log.packed import PackedLog
from korvet.topics.types import AtRest, Partition
from loadtest.micro import logs

COUNT = 1000
PER_MS = 125
END = 2**52
BYTES_MAX = 1 << 24
TURNS, REPEATS = 7, 30
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"lz4": lz4.frame.compress, "zstd": zstandard.compress}


def answer(
    value: Callable[[int], bytes], *, key: bool, header: bool, at_rest: AtRest, differ: bool
) -> RawReply:
    """Return an answer to MULTI .. EXEC, as a log is read; if they `differ`, the first entry has one field more."""
    state = [b"id", PackedLog(next_offset=END, first=0).pack()]
    pieces = [b"*2\r\n*8\r\n", *map(bulk, state), b"$-1\r\n" * 6, b"*%d\r\n" % COUNT]
    for number in range(COUNT):
        content, marker = value(number), None
        if at_rest.codec != "none":
            content, marker = COMPRESS[at_rest.codec](content), at_rest.codec.encode()
        fields = [b"key", b"%08d" % number] if key else []
        fields += [b"value", content, b"timestamp", b"%d" % (logs.TIMESTAMP + number // PER_MS)]
        fields += [] if marker is None else [b"korvet.encoding", marker]
        fields += [b"header.trace", b"%016d" % number] if header else []
        fields += [b"header.more", b""] if differ and number == 0 else []
        entry_id = b"%d-%d" % (logs.TIMESTAMP + number // PER_MS, number % PER_MS)
        pieces += [b"*2\r\n", bulk(entry_id), b"*%d\r\n" % len(fields), *map(bulk, fields)]
    return RawReply(b"".join(pieces))


def bulk(text: bytes) -> bytes:
    """Return a string as Redis answers it."""
    return b"$%d\r\n%s\r\n" % (len(text), text)


class Reads:
    """A log of whose reads the answers are made here."""

    def __init__(self) -> None:
        self._reader = LogReader(BYTES_MAX)
        partition = Partition("t", 0, "id", logs.BITS, "record", "", "", "", "", ("", ""), "", "", "", "")
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
    logs.collect_as_a_worker()
    plain, lz4 = AtRest("none"), AtRest("lz4")
    cases: dict[str, Callable[[bool], RawReply]] = {
        "100 B": lambda differ: answer(logs.value_of, key=False, header=False, at_rest=plain, differ=differ),
        "100 B, key": lambda differ: answer(
            logs.value_of, key=True, header=False, at_rest=plain, differ=differ
        ),
        "100 B, key, header": lambda differ: answer(
            logs.value_of, key=True, header=True, at_rest=plain, differ=differ
        ),
        "900 B": lambda differ: answer(
            lambda n: logs.value_of(n) * 9, key=False, header=False, at_rest=plain, differ=differ
        ),
        "1 KiB, lz4": lambda differ: answer(
            lambda n: logs.value_of(n) * 11, key=False, header=False, at_rest=lz4, differ=differ
        ),
        "2 KiB, lz4": lambda differ: answer(
            lambda n: logs.value_of(n) * 20, key=False, header=False, at_rest=lz4, differ=differ
        ),
    }
    reads = Reads()
    print(f"{'us per record':20} {'read':>10} {'batch':>7} {'tuples':>7} {'columns':>7}")
    for name, made in cases.items():
        for differ in (True, False):
            reply = made(differ)
            found = reads.found(reply)
            works = (
                partial(reads.found, reply),
                partial(built, found),
                found.records,
                partial(rows_of, found),
            )
            times = " ".join(f"{cpu_us(work):7.3f}" for work in works)
            print(f"{name + (', differing' if differ else ''):30} {times}", flush=True)


if __name__ == "__main__":
    main()
