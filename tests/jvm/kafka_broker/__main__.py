"""One run: a line for each class, what failed, and a line of counts.

`make test-kafka-broker ARGS="kafka.server.OffsetFetchRequestTest kafka.server.FetchRequestTest#testFetch"`; without
classes it runs the ones of classes.txt without a result of this commit. Exits with 1 if a test fails that no list
names, or if a test of open.txt passes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.toolchain import kafka_version
from loadtest.harness import NotAvailableError
from tests.jvm.kafka_broker import jvm, lists, results

FOLDER = results.ROOT / "build" / "kafka_broker"
_WORDS = ("passed", "failed", "outside", "open", "skipped")


def main() -> int:
    """Run; returns the exit code."""
    arguments = _arguments()
    try:
        jvm.prepare()
    except NotAvailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    target = "kafka" if arguments.kafka else arguments.layout
    kept = FOLDER / f"{target}-{kafka_version() if arguments.kafka else results.version()}"
    run = Run(target, kept, arguments.fresh)
    begun = time.monotonic()
    if arguments.tests:
        wanted = defaultdict[str, list[str]](list)
        for test in arguments.tests:
            owner, _, method = test.partition("#")
            wanted[owner] += [method] * bool(method)
        for owner, methods in wanted.items():
            run.named(owner, methods)
    else:
        part, parts = arguments.part
        for owner in lists.classes()[part - 1 :: parts]:
            run.kept(owner)
    counts = ", ".join(f"{run.counts[word]} {word}" for word in _WORDS)
    left = sum(not run.file(owner).exists() for owner in lists.classes())
    print(f"{target}: {counts}, {left} classes not run, {time.monotonic() - begun:.0f} s")
    return 1 if run.counts["failed"] or run.closed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.jvm.kafka_broker", description=__doc__)
    parser.add_argument(
        "tests", nargs="*", metavar="CLASS[#METHOD]", help="run these, also if they have results"
    )
    parser.add_argument(
        "--layout", choices=jvm.LAYOUTS, default="batch", help="that of the logs: docs/records.md"
    )
    parser.add_argument("--kafka", action="store_true", help="as the control: Kafka's brokers, and no lists")
    parser.add_argument(
        "--fresh", action="store_true", help="run classes that have results of this commit again"
    )
    parser.add_argument(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="N/COUNT",
        help="run every COUNTth class, from the Nth on",
    )
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not N/COUNT, as 2/3")
    return int(part), int(parts)


class Run:
    """Runs classes, prints what they end with, and counts it. `folder` keeps the results of whole classes."""

    def __init__(self, target: str, folder: Path, fresh: bool) -> None:  # noqa: FBT001 - a flag of the command line
        self.counts = Counter[str]()
        self.closed = 0
        self._target = target
        self._folder = folder
        self._fresh = fresh
        is_control = target == "kafka"
        self._outside = [] if is_control else lists.outside(target)
        self._open = [] if is_control else lists.entries("open.txt")

    def file(self, owner: str) -> Path:
        """Return where the results of a whole class are kept."""
        return self._folder / f"{owner}.tsv"

    def kept(self, owner: str) -> None:
        """Run a whole class unless its results are kept."""
        if self._fresh or not self.file(owner).exists():
            self._run(owner, []).replace(self.file(owner))
        self._show(owner, self.file(owner))

    def named(self, owner: str, methods: Sequence[str]) -> None:
        """Run a class, or some of its methods, whose results are not kept."""
        file = self._run(owner, methods)
        if not methods:
            file = file.replace(self.file(owner))
        self._show(owner, file)

    def _run(self, owner: str, methods: Sequence[str]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{owner}.running"
        file.write_text("")
        jvm.run_class(self._target, owner, methods, file, FOLDER / "logs" / f"{self._target}-{owner}")
        return file

    def _show(self, owner: str, file: Path) -> None:
        outcome = results.read(file)
        judged = results.judge(owner, outcome, self._outside, self._open)
        counts = ", ".join(f"{judged.counts[word]} {word}" for word in _WORDS if judged.counts[word])
        print(
            f"{owner}: {counts or 'no test'}, {sum(result.seconds for result in outcome):.0f} s", flush=True
        )
        for result in judged.failed:
            print(f"  failed: {result.method}: {results.shortened(result.failure)}", flush=True)
        for entry in judged.closed:
            print(f"  passes, so take it out of open.txt: {entry.method}", flush=True)
        if not outcome:
            judged.counts["failed"] += 1
        self.counts += judged.counts
        self.closed += len(judged.closed)


if __name__ == "__main__":
    sys.exit(main())
