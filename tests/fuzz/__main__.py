"""One run: hostile messages and records to the decoders, then hostile frames to a worker, from one seed.

`make fuzz ARGS="--minutes 10"`; exits with 1 after a finding. A case of the decoders is the same again by its seed and
number; one of the worker depends on what came before, and is repeated with it: `--stage live --seed 7 --cases 0-900`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.fuzz import decoders
from tests.fuzz.live import SWEEP_CASES, Live
from tests.fuzz.requests import REQUESTS

STAGES = ("decoders", "live")
_DECODERS_SHARE = 0.25
_SHOWN_MAX = 10


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long both stages take together")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is random")
    parser.add_argument("--stage", choices=STAGES, help="only this one")
    parser.add_argument("--cases", help="only these, by number: N or FIRST-LAST")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    findings = []
    for stage, share in zip(STAGES, (_DECODERS_SHARE, 1 - _DECODERS_SHARE), strict=True):
        if asked.stage in {None, stage}:
            seconds = asked.minutes * 60 * (1 if asked.stage else share)
            run = run_decoders if stage == "decoders" else run_live
            findings += run(seed, _numbers(asked.cases, seconds))
    for finding in findings[:_SHOWN_MAX]:
        print(f"\nFINDING {finding}")
    print(f"{len(findings)} findings; seed {seed}")
    return 1 if findings else 0


def _numbers(cases: str | None, seconds: float) -> Iterator[int]:
    if cases:
        first, _, last = cases.partition("-")
        yield from range(int(first), int(last or first) + 1)
        return
    until = time.monotonic() + seconds
    yield from itertools.takewhile(lambda _: time.monotonic() < until, itertools.count())


def run_decoders(seed: int, numbers: Iterable[int]) -> list[str]:
    """Run cases of the decoders; returns what was found, the same error of the same line once."""
    kinds = Counter[str]()
    findings: dict[str, str] = {}
    for number in numbers:
        try:
            kinds[decoders.run_case(seed, number)] += 1
        except Exception as error:  # noqa: BLE001 - any error here is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"--stage decoders --seed {seed} --cases {number}\n{''.join(traceback.format_exception(error))}"
            findings.setdefault(f"{type(error)} {where.filename}:{where.lineno}", text)
    records = {kind: count for kind, count in sorted(kinds.items()) if kind.startswith("records")}
    messages = sum(kinds.values()) - sum(records.values())
    versions = len(kinds) - len(records)
    print(f"decoders: {messages} messages of {versions} versions, {sum(records.values())} records: {records}")
    return list(findings.values())


def run_live(seed: int, numbers: Iterable[int]) -> list[str]:
    """Run cases against a broker; returns what was found."""
    directory = Path(tempfile.mkdtemp(prefix="korvet-fuzz-"))
    try:
        with Live(directory, seed, large=True) as live:
            count = 0
            for count, number in enumerate(numbers, 1):
                live.run_case(number)
                if count % SWEEP_CASES == 0:
                    live.sweep()
            live.sweep()
            live.check_memory()
    finally:
        shutil.rmtree(directory)
    print(
        f"live: {count} connections, {live.logins} logins, {live.frames} requests, "
        f"{len(live.sent)} of {len(REQUESTS)} versions sent whole, {len(live.answered)} answered; "
        f"{live.keys} keys in Redis\n"
        f"healthy client: {live.healthy} records, longest {live.healthy_seconds_max:.2f} s; "
        f"worker's memory in MiB: {[item >> 20 for item in live.rss_bytes]}"
    )
    return live.findings


if __name__ == "__main__":
    sys.exit(main())
