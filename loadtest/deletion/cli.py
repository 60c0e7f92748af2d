"""Flags, the order of the measurements, and where their results go."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from loadtest.bench.processes import NotAvailableError
from loadtest.deletion import topic
from loadtest.deletion.probe import pinging
from loadtest.log.broker import Broker
from loadtest.log.redis_side import RedisSide
from loadtest.log.report import Report
from loadtest.log.wire import RefusedError
from tests.support.wire_client import WireClient

RESULTS = Path(__file__).parent / "results"
_FORMATS = ("record", "batch")
_REST_SECONDS = 5.0
_FREED_SECONDS_MAX = 120.0
_FILE_SECONDS_MAX = 120.0


def main() -> int:
    """Measure and return the exit code."""
    flags = _flags()
    signal.signal(signal.SIGTERM, _interrupt)
    report = Report(flags.records, "the deletion")
    directory = Path(tempfile.mkdtemp(prefix="korvet-deletion-", dir=flags.directory))
    try:
        for storage_format in flags.formats:
            with Broker(directory / storage_format) as broker:
                _measure(broker, storage_format, flags, report)
            shutil.rmtree(directory / storage_format)
    except (NotAvailableError, RefusedError) as why:
        print(f"loadtest.deletion: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest.deletion: interrupted; nothing was written", file=sys.stderr)
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
    socket = broker.data_dir / "server.sock"
    with WireClient(broker.address) as client:
        _say(f"{storage_format}: writing {flags.records:,} records to {flags.partitions:,} partitions")
        topic.create(client, storage_format, flags.partitions)
        report.add(storage_format, "records", "", topic.fill(client, flags.partitions, flags.records))
        topic.commit(client, flags.partitions, flags.groups)
        report.add(storage_format, "memory of Redis when full", "MiB", side.memory_mib())
        side.await_rest(_FILE_SECONDS_MAX)
        os.sync()  # or Redis waits for the disk until all that was written is there
        with pinging(socket) as end:
            time.sleep(_REST_SECONDS)
            report.add_latencies(storage_format, "PING, at rest", end())
        _say(f"{storage_format}: deleting the topic")
        side.watch()
        with pinging(socket) as end:
            began = time.monotonic()
            report.add(storage_format, "DeleteTopics", "s", topic.delete(client))
            side.await_freed(_FREED_SECONDS_MAX)
            report.add(storage_format, "until the memory was free", "s", time.monotonic() - began)
            report.add_latencies(storage_format, "PING, meanwhile", end())
        report.add_slow(storage_format, side.slowest())
        report.add(storage_format, "memory of Redis afterwards", "MiB", side.memory_mib())


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
        prog="python -m loadtest.deletion",
        description="Measure the deletion of one topic of many partitions and records.",
    )
    parser.add_argument("--partitions", type=int, default=1000, help="of the topic, 1,000 by default")
    parser.add_argument("--records", type=int, default=10_000_000, help="in the topic, 10 million by default")
    parser.add_argument(
        "--groups", type=int, default=20, help="that have committed offsets in every partition, 20 by default"
    )
    parser.add_argument(
        "--formats",
        type=_format_names,
        default=list(_FORMATS),
        metavar="NAMES",
        help="record, batch or both with a comma, the default",
    )
    parser.add_argument("--directory", type=Path, help="where the broker keeps its data")
    return parser.parse_args()
