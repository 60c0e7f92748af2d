"""CPU per record of making a consumer's batch from what XRANGE answers: parsing, reading, building.

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
from typing import cast

from korvet_core import BatchesBuilder, RespReader

from korvet.log.record_format import Entry, compress, read_columns, read_entries
from korvet.protocol.records.record import StoredRecord
from korvet.redis.replies import error_of
from korvet.topics.types import AtRest
from loadtest.micro import logs

COUNT = 1000
PER_MS = 125
END = 2**53
BYTES_MAX = 1 << 24
TURNS, REPEATS = 7, 30


def answer(value: Callable[[int], bytes], *, key: bool, header: bool, at_rest: AtRest) -> bytes:
    """Return an answer to XRANGE within MULTI .. EXEC, as a log is read."""
    pieces = [b"+QUEUED\r\n*1\r\n*%d\r\n" % COUNT]
    for number in range(COUNT):
        content, marker = value(number), None
        if at_rest.codec != "none" and (frame := compress(content, at_rest.codec)) is not None:
            content, marker = frame, at_rest.codec.encode()
        fields = [b"key", b"%08d" % number] if key else []
        fields += [b"value", content, b"timestamp", b"%d" % (logs.TIMESTAMP + number // PER_MS)]
        fields += [] if marker is None else [b"korvet.encoding", marker]
        fields += [b"header.trace", b"%016d" % number] if header else []
        entry_id = b"%d-%d" % (logs.TIMESTAMP + number // PER_MS, number % PER_MS)
        pieces.append(b"*2\r\n$%d\r\n%s\r\n*%d\r\n" % (len(entry_id), entry_id, len(fields)))
        pieces += [b"$%d\r\n%s\r\n" % (len(field), field) for field in fields]
    return b"".join(pieces)


def parsed(raw: bytes) -> Sequence[Entry]:
    """Return the entries of an answer."""
    reader = RespReader(error_of)
    reader.feed(raw)
    reader.next_reply(None)
    return cast("list[Sequence[Entry]]", reader.next_reply(None))[0]


def one_by_one(entries: Sequence[Entry]) -> list[StoredRecord]:
    """Read without columns."""
    return read_entries(entries, logs.BITS, END, BYTES_MAX, lambda _offset, _encoding: None)


def columns(entries: Sequence[Entry]) -> Sequence[StoredRecord]:
    """Read as columns."""
    found = read_columns(entries, logs.BITS, END, BYTES_MAX)
    assert found is not None
    return found


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
    cases = {
        "100 B": answer(logs.value_of, key=False, header=False, at_rest=AtRest("none")),
        "100 B, key": answer(logs.value_of, key=True, header=False, at_rest=AtRest("none")),
        "100 B, key, header": answer(logs.value_of, key=True, header=True, at_rest=AtRest("none")),
        "900 B": answer(lambda n: logs.value_of(n) * 9, key=False, header=False, at_rest=AtRest("none")),
        "1 KiB, lz4": answer(lambda n: logs.value_of(n) * 11, key=False, header=False, at_rest=AtRest("lz4")),
        "2 KiB, lz4": answer(lambda n: logs.value_of(n) * 20, key=False, header=False, at_rest=AtRest("lz4")),
    }
    print(
        f"{'us per record':20} {'parse':>7} | {'one by one':>10} {'build':>7} | {'columns':>10} {'build':>7}"
    )
    for name, raw in cases.items():
        entries = parsed(raw)
        rows, table = one_by_one(entries), columns(entries)
        print(
            f"{name:20} {cpu_us(partial(parsed, raw)):7.3f} |"
            f" {cpu_us(partial(one_by_one, entries)):10.3f}"
            f" {cpu_us(partial(built, rows)):7.3f} |"
            f" {cpu_us(partial(columns, entries)):10.3f}"
            f" {cpu_us(partial(built, table)):7.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
