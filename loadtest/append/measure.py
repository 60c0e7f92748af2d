"""Measures rows: calls of a script between plain XADDs of the same payload, on a new server each time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

from korvet.log.appends import APPEND_SCRIPTS
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.entry_ids import DENSE
from korvet.topics.registry import id_text, new_id
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from loadtest.append.rows import Row, calls_of
from loadtest.append.server import Driven, Request, Server, WrongError, warm_up

_SLICES = 3  # measured in a row on one server
_TIME_BITS = 10  # the default of offset.sequence.bits


class Sample(NamedTuple):
    """Calls of a script beside plain XADDs: CPU of the process and of its main thread as ratios.

    `above_us` is what the process used above XADD for a batch that was written, `script_us` how long a call held Redis.
    """

    ratio: float
    main_ratio: float
    above_us: float
    script_us: float


def measure(program: Path, rows: Sequence[Row], rounds: int) -> tuple[str, dict[Row, list[Sample]]]:
    """Return what the server is, and the samples of each row. Raises WrongError, ConfigError (it does not start)."""
    samples: dict[Row, list[Sample]] = {row: [] for row in rows}
    version = ""
    for number in range(rounds):
        first = number % len(rows)
        for row in (*rows[first:], *rows[:first]):
            # A new server: in a heap that other rows have used, XADD of 16 KiB takes between 14 and 30 us.
            with Server(program) as server:
                redis = Redis(server.url, timeout_ms=60_000, connect_timeout_ms=5000, load=APPEND_SCRIPTS)
                version = server.version()
                with closing(redis):
                    samples[row] += _samples(server, redis, row)
    return version, samples


def _samples(server: Server, redis: Redis, row: Row) -> list[Sample]:
    """Send what a row appends by scripts and by plain XADDs in turn, and compare scripts with the XADDs on both sides.

    The first of both are not measured: what they take of memory is new to the process, and costs a page fault each.
    """
    keys, topic_id = Keys("korvet"), id_text(new_id())
    layout: Literal["batch", "record"] = "batch" if row.layout == "batch" else "record"
    bits = _TIME_BITS if row.layout == "time" else DENSE
    partition = LogStore(redis, redis, keys).partition("bench", 0, topic_id, bits, layout)
    topic = TopicRow(name="bench", id=topic_id, partitions=1, configs={"storage.format": layout})
    calls = calls_of(row, partition)
    entries = row.entries * sum(call.written for call in calls)

    def driven(requests: Sequence[Request]) -> Driven:
        result = server.drive(requests, row.under_way)
        if (length := server.call("XLEN", partition.stream)) != entries:
            raise WrongError(f"{row.name}: the stream has {length} entries, not {entries}")
        server.call("FLUSHALL", "SYNC")
        return result

    plain, scripts = [], []
    for _ in range(1 + _SLICES):
        plain.append(driven([call.plain for call in calls]))
        TopicStore(redis, keys).create(topic)
        scripts.append(driven([call.script for call in calls]))
        for call, reply in zip(calls, scripts[-1].replies, strict=True):
            call.check(reply)
    plain.append(driven([call.plain for call in calls]))
    batches = sum(call.written for call in calls[warm_up(calls) :])
    return [_sample(*slices, batches) for slices in zip(plain[1:-1], scripts[1:], plain[2:], strict=True)]


def _sample(before: Driven, scripts: Driven, after: Driven, batches: int) -> Sample:
    plain_us = (before.process_us + after.process_us) / 2
    return Sample(
        scripts.process_us / plain_us,
        2 * scripts.main_us / (before.main_us + after.main_us),
        (scripts.process_us - plain_us) / batches,
        scripts.script_us,
    )
