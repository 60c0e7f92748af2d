"""An append that a crash or a failover takes back: what is left of the log agrees with its state, and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, takewhile
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import redis

from tests.lua.support import STREAM, BatchLog, Log
from tests.support.processes import wait_until
from tests.support.redis_servers import DurableServer, master

LAYOUTS: dict[str, Callable[[Any], Log]] = {
    "batch": BatchLog,
    "dense": lambda client: Log(client, bits=0),
    "time": lambda client: Log(client, bits=10),
}
pytestmark = pytest.mark.slow

CALLS = 3
RECORDS = 6
"""Of a call of `write`; the last one may have a marker besides."""
ENTRIES = 100
"""In the replica before it takes over."""


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Callable[[Any], Log]:
    return LAYOUTS[request.param]


def write(log: Log, call: int, *, ends: bool = True) -> None:
    """Append two batches of one producer, one of another, and a record of a transaction, which call 2 may commit."""
    markers = [log.batch("m", producer=8, transaction="c9")] if ends and call == CALLS - 1 else []
    log.append_all(
        log.batch("a", "b", producer=7, sequence=4 * call),
        log.batch("c", "d", producer=7, sequence=4 * call + 2),
        log.batch("e", producer=9, epoch=call),
        log.batch("f", producer=8, sequence=call, transaction="t9"),
        *markers,
    )


def calls_of(log: Log) -> int:
    """Return how many calls the log holds, each whole; fails unless stream, state and producers agree."""
    offsets, counters, rows = log.offsets(), log.log, log.producers
    calls = len(offsets) // RECORDS
    is_ended = rows[8].first_offset < 0 if calls else False
    assert len(offsets) == RECORDS * calls + is_ended
    assert counters.next_offset == (offsets[-1] + 1 if offsets else 0)
    assert counters.size_bytes == 400 * calls + 100 * is_ended
    if calls:
        assert rows[7].next_sequence == 4 * calls
        assert rows[7].batches[0].base_offset == offsets[RECORDS * calls - 4]
        assert rows[9].epoch == calls - 1
        assert is_ended or rows[8].first_offset == offsets[RECORDS - 1]
        assert ("open" in log.state()) is not is_ended
    return calls


def cuts(content: bytes, at: int) -> Iterator[int]:
    """Yield where an append only file may end: within each command from `at` on, and after it."""
    while at < len(content):
        start, line_end = at, content.index(b"\r\n", at)
        count, at = int(content[at + 1 : line_end]), line_end + 2
        for _ in range(count):
            line_end = content.index(b"\r\n", at)
            at = line_end + 2 + int(content[at + 1 : line_end]) + 2
        yield (start + at) // 2
        yield at


def test_a_file_that_ends_within_an_append_holds_all_of_it_or_nothing(layout: Callable[[Any], Log]) -> None:
    with DurableServer("--auto-aof-rewrite-percentage", "0") as server:
        with redis.Redis.from_url(server.url) as client:
            log = layout(client)
            [file] = Path(server.directory, "appendonlydir").glob("*.incr.aof")
            write(log, 0)
            first_end = file.stat().st_size
            for call in range(1, CALLS):
                write(log, call)
            assert calls_of(log) == CALLS
        server.kill()
        kept = shutil.copytree(file.parent, f"{server.directory}/kept")
        lengths = set()
        for place in cuts(file.read_bytes(), first_end):
            shutil.copytree(kept, file.parent, dirs_exist_ok=True)
            with file.open("r+b") as cut:
                cut.truncate(place)
            server.start()
            with redis.Redis.from_url(server.url) as client:
                calls = calls_of(layout(client))
                for call in range(calls, CALLS):
                    write(layout(client), call)
                assert calls_of(layout(client)) == CALLS
            lengths.add(calls)
            server.kill()
        assert lengths == {1, 2, 3}


def test_a_replica_that_takes_over_holds_calls_that_are_whole(layout: Callable[[Any], Log]) -> None:
    with master() as first, first.replica() as replica:
        log = layout(first.client)
        stop = Event()

        def write_on() -> None:
            for call in takewhile(lambda _: not stop.is_set(), count()):
                write(log, call, ends=False)

        with ThreadPoolExecutor(1) as writer:
            writing = writer.submit(write_on)
            wait_until(lambda: replica.xlen(STREAM) > ENTRIES, "the replica has some of it")
            replica.replicaof("NO", "ONE")
            stop.set()
            writing.result()
        taken_over = layout(replica)
        calls = calls_of(taken_over)
        write(taken_over, calls, ends=False)
        assert calls_of(taken_over) == calls + 1
