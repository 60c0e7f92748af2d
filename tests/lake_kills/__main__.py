"""One run: a client produces, and processes of a job are killed -9 at random moments from a seed, which it prints.

`python -m tests.lake_kills --work archive --kills 20 --seed 7 --spark cluster --store s3`; exits with 1 after a
violation.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tests.lake_kills.archiving import archive
from tests.lake_kills.killing import Run
from tests.lake_kills.pipelines import append, merge
from tests.lake_kills.system import Store, System, Where

WORKS = {"archive": archive, "append": append, "merge": merge}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.lake_kills", description=__doc__)
    parser.add_argument(
        "--work", choices=WORKS, default="archive", help="archive, or a pipeline that does this"
    )
    parser.add_argument("--kills", type=int, default=20, help="of each victim")
    parser.add_argument("--victims", default="", help="their names, separated by commas; default: all")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no more are killed")
    parser.add_argument("--once", action="store_true", help="archive --once again and again, not --interval")
    parser.add_argument("--spark", choices=get_args(Where), default="local")
    parser.add_argument("--store", choices=get_args(Store), default="directory")
    parser.add_argument("--rate", type=int, default=400, help="records a second")
    parser.add_argument("--seed", type=int, default=None, help="of all that is random")
    asked = parser.parse_args(arguments)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    victims = {"local": ["driver", "java", "worker"], "cluster": ["driver", "executor", "worker"]}.get(
        asked.spark, ["driver"]
    )
    if asked.work == "archive":
        victims.append("compact")
    if asked.victims:
        victims = asked.victims.split(",")
    run = Run(asked.kills, tuple(victims), seed, asked.rate, asked.once, asked.minutes)
    with contextlib.ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="korvet-kills-")))
        system = running.enter_context(System.started(directory, asked.spark, asked.store))
        found = WORKS[asked.work](system, run)
        for name, count in found.counts.items():
            print(f"{count:8,}  {name}")
        for each in found.violations:
            print(f"VIOLATION  {each}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
