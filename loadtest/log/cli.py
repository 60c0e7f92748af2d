"""Flags, the order of the measurements, and where their results go."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from loadtest.bench.processes import NotAvailableError
from loadtest.log.broker import Broker
from loadtest.log.fill import WEEK_MS, Span, fill
from loadtest.log.lookups import look_up
from loadtest.log.redis_side import RedisSide
from loadtest.log.report import Report
from loadtest.log.retention import NothingTrimmedError, append_for, append_meanwhile
from loadtest.log.wire import EARLIEST, Connection, RefusedError

RESULTS = Path(__file__).parent / "results"
_FORMATS = ("record", "batch")
# What retention leaves is younger than a week; between asking and trimming some of it becomes older.
_MARGIN_MS = 3_600_000


def main() -> int:
    """Measure and return the exit code."""
    flags = _flags()
    signal.signal(signal.SIGTERM, _interrupt)
    report = Report(flags.records)
    directory = Path(tempfile.mkdtemp(prefix="korvet-log-", dir=flags.directory))
    try:
        for storage_format in flags.formats:
            with Broker(directory / storage_format) as broker:
                _measure(broker, storage_format, flags, report)
            shutil.rmtree(directory / storage_format)
    except (NotAvailableError, RefusedError, NothingTrimmedError) as why:
        print(f"loadtest.log: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest.log: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    RESULTS.mkdir(exist_ok=True)
    base = RESULTS / time.strftime("%Y%m%d-%H%M%S")
    report.write(base.with_suffix(".json"))
    base.with_suffix(".md").write_text(report.markdown())
    print(report.markdown())
    print(f"Written: {base}.json and .md")
    return 0


def _measure(broker: Broker, storage_format: str, flags: argparse.Namespace, report: Report) -> None:
    side = RedisSide(broker.data_dir)
    span = Span.ending_now(flags.records)
    with Connection(broker.address) as connection:
        connection.create_topic(storage_format)
        _say(f"{storage_format}: writing {span.records:,} records")
        report.add(storage_format, "written", "records/s", fill(connection, span))
        full_mib = side.memory_mib()
        report.add(storage_format, "memory of Redis when full", "MiB", full_mib)
        _say(f"{storage_format}: {flags.lookups:,} lookups by timestamp")
        found = look_up(connection, span, flags.lookups, span.first_ms)
        report.add_latencies(storage_format, "ListOffsets by timestamp", found)
        _say(f"{storage_format}: appending at rest, for {flags.seconds:.0f} s")
        report.add_latencies(
            storage_format, "append, at rest", append_for(connection, flags.rate, flags.seconds)
        )
    _say(f"{storage_format}: retention of half of it, appending meanwhile")
    side.watch()
    latencies, trimmed = append_meanwhile(broker, side, flags.rate)
    report.add_latencies(storage_format, "append, during retention", latencies)
    report.add(storage_format, "requests during retention", "", latencies.requests)
    report.add(storage_format, "retention took", "s", trimmed.ended - trimmed.began)
    report.add_slow(storage_format, side.slowest())
    report.add(storage_format, "memory of Redis afterwards", "MiB", side.memory_mib())
    with Connection(broker.address) as connection:
        start_ms = int(time.time() * 1000) - WEEK_MS + _MARGIN_MS
        if connection.offset_for(EARLIEST).offset == 0:
            raise RefusedError("the log begins where it began, though half of it was trimmed")
        found = look_up(connection, span, flags.lookups, start_ms)
        report.add_latencies(storage_format, "ListOffsets by timestamp, afterwards", found)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _format_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in _FORMATS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(_FORMATS)}")
    return names


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.log",
        description="Measure lookups by timestamp and retention in one long log.",
    )
    parser.add_argument("--records", type=int, default=10_000_000, help="in the log, 10 million by default")
    parser.add_argument(
        "--formats",
        type=_format_names,
        default=list(_FORMATS),
        metavar="NAMES",
        help="record, batch or both with a comma, the default",
    )
    parser.add_argument("--lookups", type=int, default=1000, help="by timestamp, 1000 by default")
    parser.add_argument(
        "--rate",
        type=float,
        default=100.0,
        help="produce requests a second, of 100 records each; 100 by default",
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of appending at rest, to compare with; 10 by default"
    )
    parser.add_argument("--directory", type=Path, help="where the broker keeps its data")
    return parser.parse_args()
