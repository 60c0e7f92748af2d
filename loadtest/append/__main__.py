"""Flags and the table: `python -m loadtest.append --help` from the repository."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from statistics import median

from korvet.errors import ConfigError
from korvet.server.embedded import find_program
from loadtest.append.measure import Sample, measure
from loadtest.append.rows import ROWS, Row
from loadtest.append.server import WrongError


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
            print(table(version, measured), flush=True)
    except (ConfigError, WrongError) as error:
        print(f"loadtest.append: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest.append: interrupted", file=sys.stderr)
        return 130
    if flags.json:
        flags.json.write_text(json.dumps({"columns": Sample._fields, "samples": samples}, indent=1) + "\n")
    return 0


def table(version: str, measured: dict[Row, list[Sample]]) -> str:
    """Return the medians of a server's rows, and the quartiles of the ratios."""
    lines = [f"{version:42} ratio  quartiles  main  us above  script us"]
    for row, samples in measured.items():
        ratio, main, above_us, script_us = map(median, zip(*samples, strict=True))
        ratios = sorted(sample.ratio for sample in samples)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        lines.append(
            f"{row.name:42} {ratio:5.2f}  {low:.2f}-{high:.2f} {main:5.2f} {above_us:9.1f} {script_us:10,.0f}"
        )
    return "\n".join(lines) + "\n"


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
