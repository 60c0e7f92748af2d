"""Run a tier: its parts one after the other, each with its time, then one line of counts.

    python -m tests.tiers check|test|ci|nightly|stress [--resume] [--after TIER] [--part TEXT] [-- FLAGS OF PYTEST]

build/tiers has a log and a result of each part, and the report of each tier. With `--resume` a part that has a result
is not run again, with `--after test` no part of `make test`; their results count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.tiers.counts import Counts
from tests.tiers.parts import TIERS, Part

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/tiers"
NO_TESTS_COLLECTED = 5
"""Exit code of pytest if its flags select none of the part's tests."""
STOP_SECONDS = 30
BUSY_PROCESSES = 4


class Result(msgspec.Struct):
    """What a part came to; a part that is no run of pytest counts as one test."""

    seconds: float
    counts: Counts


def main() -> int:
    """Run the parts that the arguments name; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tiers", description=__doc__)
    parser.add_argument("tier", choices=TIERS)
    parser.add_argument("--resume", action="store_true", help="leave out parts that have a result")
    parser.add_argument("--after", choices=TIERS, help="leave out parts of this tier, which has run")
    parser.add_argument("--part", default="", help="run only parts with this text in their names")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, flags = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    RESULTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    parts = TIERS[asked.tier]()
    ran = {part.name for part in TIERS[asked.after]()} if asked.after else set[str]()
    chosen = [part for part in parts if asked.part in part.name and part.name not in ran]
    if not asked.resume:
        for part in chosen:
            result_file(part).unlink(missing_ok=True)
    with busy_processes(BUSY_PROCESSES if asked.tier == "stress" else 0):
        for part in chosen:
            if not result_file(part).exists():
                run(part, flags)
    shown = parts if not asked.part else chosen
    report = summary({part.name: read_result(part) for part in shown})
    (RESULTS / f"{asked.tier}.md").write_text(report)
    print(report, end="")
    return int(any(result is None or result.counts.failed for result in map(read_result, shown)))


def result_file(part: Part) -> Path:
    """Return where the result of a part is written once it has run."""
    return RESULTS / f"{part.name.replace('/', '.').replace(' ', '-')}.json"


def read_result(part: Part) -> Result | None:
    """Return None for a part that has not run to its end."""
    file = result_file(part)
    return msgspec.json.decode(file.read_bytes(), type=Result) if file.exists() else None


def run(part: Part, flags: Sequence[str]) -> None:
    """Run a part, show what it prints, and write its result."""
    print(f"==> {part.name}", flush=True)
    began = time.monotonic()
    file = result_file(part)
    counted = file.with_suffix(".counts")
    counted.unlink(missing_ok=True)
    command = [*part.command, "--counts", str(counted), *flags] if part.is_pytest else part.command
    code = execute(command, part, file.with_suffix(".log"))
    counts = msgspec.json.decode(counted.read_bytes(), type=Counts) if counted.exists() else Counts()
    if code == 0 and not part.is_pytest:
        counts.passed = 1
    nothing_selected = part.is_pytest and flags and code == NO_TESTS_COLLECTED
    if code and not counts.failed and not nothing_selected:
        counts.failed.append(f"{part.name}: exit code {code}")
    result = Result(time.monotonic() - began, counts)
    file.write_bytes(msgspec.json.encode(result))
    print(f"    {result.seconds:.0f} s, {counts.passed} passed, {len(counts.failed)} failed", flush=True)


def execute(command: Sequence[str], part: Part, log: Path) -> int:
    """Run a command with its output on the terminal and in `log`; returns its exit code, 124 if it takes too long."""
    environment = os.environ | dict(part.environment)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    tee = subprocess.Popen(["tee", log], stdin=process.stdout)
    try:
        return process.wait(part.minutes * 60)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        stop(process)
        tee.wait()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a command that still runs, with all that it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Keep cores busy meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def summary(results: dict[str, Result | None]) -> str:
    """Return a table of the parts, the names of the tests that failed, and the line of counts."""
    lines = [f"\n{'part':40} {'passed':>7} {'failed':>7} {'min:s':>7}"]
    for name, result in results.items():
        if result is None:
            lines.append(f"{name:40} not run")
        else:
            minutes, seconds = divmod(round(result.seconds), 60)
            passed, failed = result.counts.passed, len(result.counts.failed)
            lines.append(f"{name:40} {passed:7} {failed:7} {minutes:4}:{seconds:02}")
    counts = [result.counts for result in results.values() if result]
    failures = [failure for part in counts for failure in part.failed]
    lines += [f"FAILED {failure}" for failure in failures]
    if len(counts) < len(results):
        lines.append(f"{len(results) - len(counts)} parts not run")
    passed, skipped = sum(part.passed for part in counts), sum(part.skipped for part in counts)
    return "\n".join([*lines, f"{passed} passed, {len(failures)} failed, {skipped} skipped"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
