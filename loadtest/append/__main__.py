"""What an append costs Redis' own CPU, as a ratio to plain XADD of the same payload: `make bench-append`.

Calls of a script between plain XADDs of the same payload, on a new server each time; `rows` makes what is sent.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from korvet.errors import ConfigError
from korvet.log.appends import APPEND_SCRIPTS
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.embedded import find_program
from korvet.topics.entry_ids import DENSE
from korvet.topics.registry import id_text, new_id
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from loadtest.append.rows import ROWS, Row, calls_of
from loadtest.harness import table
from loadtest.redis_server import Driven, Request, Server, WrongError, warm_up

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
            with tempfile.TemporaryDirectory() as directory, Server(Path(directory), program) as server:
                redis = Redis(server.url, timeout_ms=60_000, connect_timeout_ms=5000, load=APPEND_SCRIPTS)
                version = server.version()
                server.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
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


def summary(version: str, measured: dict[Row, list[Sample]]) -> str:
    """Return the medians of a server's rows, and the quartiles of the ratios."""
    rows: list[list[str | float]] = []
    for row, samples in measured.items():
        ratio, main, above_us, script_us = map(median, zip(*samples, strict=True))
        ratios = sorted(sample.ratio for sample in samples)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        rows.append([row.name, ratio, f"{low:.2f}-{high:.2f}", main, above_us, script_us])
    return table((version, "ratio", "quartiles", "main", "us above", "script us"), rows)


def main() -> int:
    """Measure and return the exit code."""
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = [row for row in ROWS if flags.only in row.name]
    samples: dict[str, dict[str, list[Sample]]] = {}
    try:
        for program in flags.server or [find_program()]:
            version, measured = measure(program, rows, flags.rounds)
            samples[f"{version}, {program}"] = {row.name: measured[row] for row in rows}
            print(summary(version, measured), flush=True)
    except (ConfigError, WrongError) as error:
        print(f"loadtest.append: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest.append: interrupted", file=sys.stderr)
        return 130
    if flags.json:
        flags.json.write_text(json.dumps({"columns": Sample._fields, "samples": samples}, indent=1) + "\n")
    return 0


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.append",
        description="Measure what appends cost Redis' CPU, as ratios to plain XADD of the same payload.",
    )
    parser.add_argument(
        "--server",
        type=Path,
        action="append",
        metavar="PATH",
        help="a redis-server or valkey-server, any number of times; the one of `korvet serve` by default",
    )
    parser.add_argument("--rounds", type=int, default=9, help="9 by default, of about five seconds")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that have this in their names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures of all rounds go")
    flags = parser.parse_args()
    if not any(flags.only in row.name for row in ROWS):
        parser.error(f"no row has {flags.only!r} in its name")
    return flags


if __name__ == "__main__":
    sys.exit(main())
