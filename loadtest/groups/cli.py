"""Flags, the order of the measurements, and where their results go."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from loadtest.bench.processes import NotAvailableError, allow_files
from loadtest.groups import measure
from loadtest.groups.cluster import Cluster
from loadtest.groups.report import Report
from loadtest.groups.wire import RefusedError

RESULTS = Path(__file__).parent / "results"
_FEW = 8


def main() -> int:
    """Measure and return the exit code."""
    flags = _flags()
    signal.signal(signal.SIGTERM, _interrupt)
    allow_files()
    report = Report()
    directory = Path(tempfile.mkdtemp(prefix="korvet-groups-", dir=flags.directory))
    try:
        with Cluster(directory) as cluster:
            _measure(cluster, flags, report)
    except (NotAvailableError, RefusedError) as why:
        print(f"loadtest.groups: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest.groups: interrupted; nothing was written", file=sys.stderr)
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


def _measure(cluster: Cluster, flags: argparse.Namespace, report: Report) -> None:
    for size in dict.fromkeys((_FEW, flags.members)):
        _say(f"{flags.rounds} rebalances of {size} members")
        measure.rebalances(cluster, report, size, flags.rounds)
    _say(f"{flags.rounds} rebalances of {_FEW} members whose workers' subscriptions are cut")
    measure.lost_events(cluster, report, _FEW, flags.rounds)
    _say(f"{flags.rounds} rebalances of {_FEW} members whose workers hear nothing")
    measure.unheard_events(cluster, report, _FEW, flags.rounds)
    _say(f"heartbeats of {flags.heartbeat_members:,} members, for {flags.seconds:.0f} s")
    measure.heartbeats(cluster, report, flags.heartbeat_members, flags.seconds)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.groups",
        description="Measure rebalances, wake-ups and heartbeats of consumer groups, over the wire.",
    )
    parser.add_argument("--members", type=int, default=100, help="in a rebalance, 100 by default")
    parser.add_argument("--rounds", type=int, default=30, help="rebalances of each kind, 30 by default")
    parser.add_argument(
        "--heartbeat-members", type=int, default=1000, help="that send heartbeats, 1,000 by default"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of heartbeats, 20 by default")
    parser.add_argument("--directory", type=Path, help="where the first broker keeps its data")
    return parser.parse_args()
