"""CPU per record of making records, and a consumer's batch of them, from what Redis answers to a read.

Run as `python loadtest/micro/records.py` from the repository.
Nothing talks to Redis: the answer is made here, 1,000 entries of 125 a millisecond, as an append of the Java client
leaves them. "One by one" is what entries of differing fields take.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from collections.abc import Callable, Sequence
from functools import partial

from korvet_core import BatchesBuilder, LogReader, RawReply

from korvet.log.packed import PackedLog
from korvet.log.record_format import compress
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from korvet.topics.types import AtRest, Partition
from loadtest.micro import logs

COUNT = 1000
PER_MS = 125
END = 2**52
BYTES_MAX = 1 << 24
TURNS, REPEATS = 7, 30


def answer(
    value: Callable[[int], bytes], *, key: bool, header: bool, at_rest: AtRest, differ: bool
) -> RawReply:
    """Return an answer to MULTI .. EXEC, as a log is read; if they `differ`, the first entry has one field more."""
    state = [b"id", PackedLog(next_offset=END, first=0).pack()]
    pieces = [b"*2\r\n*8\r\n", *map(bulk, state), b"$-1\r\n" * 6, b"*%d\r\n" % COUNT]
    for number in range(COUNT):
        content, marker = value(number), None
        if at_rest.codec != "none" and (frame := compress(content, at_rest.codec)) is not None:
            content, marker = frame, at_rest.codec.encode()
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

    def records(self, reply: RawReply) -> Sequence[StoredRecord]:
        """Return the records of an answer."""
        outcome = self._reader.outcome(self._read, reply)
        assert isinstance(outcome, tuple)
        assert len(outcome) == 5
        records = outcome[4][0]
        return records if isinstance(records, list) else Columns(*records)


def built(records: Sequence[StoredRecord]) -> int:
    """Build a batch; returns its size."""
    builder = BatchesBuilder(codec=0, leader_epoch=0, bytes_max=1 << 21, at_least_one=True)
    builder.add(records)
    assert builder.record_count == COUNT
    return sum(map(len, builder.finish()))


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
    print(f"{'us per record':20} {'one by one':>10} {'build':>7} | {'columns':>10} {'build':>7}")
    for name, made in cases.items():
        times: list[float] = []
        for differ in (True, False):
            reply = made(differ)
            records = reads.records(reply)
            assert isinstance(records, list) == differ
            times += [cpu_us(partial(reads.records, reply)), cpu_us(partial(built, records))]
        print(f"{name:20} {times[0]:10.3f} {times[1]:7.3f} | {times[2]:10.3f} {times[3]:7.3f}", flush=True)


if __name__ == "__main__":
    main()
