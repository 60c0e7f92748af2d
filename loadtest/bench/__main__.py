"""Flags of the benchmark, where its files go, and its end, Ctrl-C included."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from loadtest.bench import chart, toolchain
from loadtest.bench.load import Load
from loadtest.bench.results import Results
from loadtest.bench.run import DEFAULT_PEERS, DEFAULT_SCENARIOS, PEERS, SCENARIOS, Plan, Run
from loadtest.harness import NotAvailableError, allow_files, interrupt

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run and return the exit code."""
    flags = _flags()
    rounds = flags.rounds or (1 if flags.quick else 3)
    seconds = flags.seconds or (1.0 if flags.quick else 2.0)
    plan = Plan(flags.peers, flags.only, rounds, seconds, flags.quick)
    signal.signal(signal.SIGTERM, interrupt)
    directory = Path(tempfile.mkdtemp(prefix="korvet-bench-", dir=flags.directory))
    try:
        toolchain.prepare()
        allow_files()
        with Load(directory) as load:
            run = Run(plan, directory, load)
            run.whole()
        _report(run.results)
    except NotAvailableError as why:
        print(f"make bench: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _report(results: Results) -> None:
    """Print the table, and write it, all figures and the charts."""
    RESULTS.mkdir(exist_ok=True)
    base = RESULTS / time.strftime("%Y%m%d-%H%M%S")
    results.write(base.with_suffix(".json"))
    base.with_suffix(".md").write_text(results.markdown())
    chart.draw(results, base.with_suffix(".png"))
    chart.draw_cost(results, base.with_suffix(".svg"))
    print(results.markdown())
    print(f"Written: {base}.json, .md, and .png or .svg where there is a chart to draw")


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of names with commas, each of which must be known."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return names

    return parse


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Compare Korvet with Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="one short round of the plain cases, 3 minutes")
    parser.add_argument("--rounds", type=int, default=0, help="rounds, 3 by default")
    parser.add_argument("--seconds", type=float, default=0.0, help="of one measurement, 2 by default")
    parser.add_argument("--directory", type=Path, help="where the peers keep their data, all on one disk")
    for flag, known, default, text in (
        ("--peers", PEERS, DEFAULT_PEERS, "who is measured"),
        ("--only", SCENARIOS, DEFAULT_SCENARIOS, "what is measured"),
    ):
        help_text = f"{text}: {','.join(known)}"
        parser.add_argument(flag, type=_names(known), default=default, help=help_text, metavar="NAMES")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
