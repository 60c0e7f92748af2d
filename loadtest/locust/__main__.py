"""The run as a whole: a broker unless one is given, locust, the check of all records, the verdict.

`make loadtest`, or `python -m loadtest.locust --help`. Does not import locust, which runs as a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from loadtest import harness
from loadtest.harness import NotAvailableError
from loadtest.locust import ledger, readback, thresholds, topics
from loadtest.locust.shapes import SHAPES
from loadtest.locust.thresholds import BadThresholdsError, Limits
from loadtest.locust.watch import Broker, Watch

_HERE = Path(__file__).parent
_LOOKS_MAX, _LOOK_SECONDS_MIN = 500, 1.0
_STOP_SECONDS = 60
_LATE_SECONDS_MAX = 120.0


def main() -> int:
    """Run and return the exit code: 1 where anything is broken, 2 for flags that cannot be."""
    flags, rest = _flags()
    try:
        limits = thresholds.load(flags.thresholds, flags.shape)
    except BadThresholdsError as why:
        print(f"loadtest: {why}", file=sys.stderr)
        return 2
    # Both: a shell starts what runs in its background with Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, harness.interrupt)
    directory = Path(tempfile.mkdtemp(prefix="korvet-loadtest-", dir=flags.directory))
    try:
        faults = Run(flags, rest, limits, directory).whole()
    except NotAvailableError as why:
        faults = [str(why)]
    except KeyboardInterrupt:
        print("loadtest: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for fault in faults:
        print(f"loadtest: {fault}", file=sys.stderr)
    print("FAILED" if faults else "PASSED")
    return 1 if faults else 0


class Run:
    """One run of locust, and what is found wrong with it."""

    def __init__(self, flags: argparse.Namespace, rest: list[str], limits: Limits, directory: Path) -> None:
        self._flags, self._rest, self._limits = flags, rest, limits
        self._directory = directory
        self._ledger = directory / "ledger"
        self._ledger.mkdir()
        self._prefix = time.strftime("loadtest-%Y%m%d-%H%M%S")

    def whole(self) -> list[str]:
        """Run all of it; returns what is wrong. Raises NotAvailableError."""
        if self._flags.web and _in_use(self._flags.web_port):
            raise NotAvailableError(f"port {self._flags.web_port} is in use; --web-port takes another one")
        with self._broker() as broker:
            address = broker.bootstrap if broker else self._flags.host
            watch = Watch(broker) if broker else None
            faults = self._load(address, watch)
            faults += self._check(address)
            if watch is not None:
                watch.await_empty(self._limits.redis_left_mib)
                faults += watch.faults(self._limits.process_growth_mib, self._limits.redis_left_mib)
                print(f"The broker\n{watch.summary()}")
            return faults

    @contextlib.contextmanager
    def _broker(self) -> Iterator[Broker | None]:
        if self._flags.host:
            yield None
            return
        with Broker(self._directory, self._flags.set) as broker:
            yield broker

    def _load(self, address: str, watch: Watch | None) -> list[str]:
        """Run locust and look at the broker meanwhile."""
        seconds = self._flags.minutes * 60
        # Ctrl-C is for this process, which passes it on once: locust takes a second one for a reason to drop all.
        process = harness.spawn(self._command(address))
        deadline = float("inf") if self._flags.web else time.monotonic() + seconds + _LATE_SECONDS_MAX
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return [f"locust did not end in {_LATE_SECONDS_MAX:.0f} s after the run"]
                try:
                    if watch is not None:
                        watch.look()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(seconds / _LOOKS_MAX, _LOOK_SECONDS_MIN))
                except KeyboardInterrupt:
                    # Locust ends the run, and what was written until then is checked.
                    process.send_signal(signal.SIGINT)
                    deadline = time.monotonic() + _LATE_SECONDS_MAX
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return [f"locust ended with exit code {process.returncode}"] if process.returncode else []

    def _command(self, address: str) -> list[str]:
        flags = {
            "--host": address,
            "--shape": self._flags.shape,
            "--users": self._flags.users,
            "--spawn-rate": max(self._flags.users // 4, 1),
            "--run-time": f"{self._flags.minutes * 60:.0f}s",
            "--stop-timeout": _STOP_SECONDS,
            "--prefix": self._prefix,
            "--ledger": self._ledger,
            "--thresholds": self._flags.thresholds.resolve(),
        }
        words = [
            sys.executable,
            "-m",
            "locust",
            "--locustfile",
            str(_HERE / "locustfile.py"),
            "--keep-topics",
        ]
        words += [str(word) for pair in flags.items() for word in pair]
        page = ["--web-host", "127.0.0.1", "--web-port", str(self._flags.web_port)]
        return [*words, *(page if self._flags.web else ["--headless", "--only-summary"]), *self._rest]

    def _check(self, address: str) -> list[str]:
        """Read everything back, and delete it."""
        written = ledger.read(self._ledger)
        if not written:
            return ["no producer has put down what it wrote"]
        began = time.monotonic()
        try:
            result = readback.check(address, written)
        except NotAvailableError as why:
            return [str(why)]
        unsure = sum(len(item.unsure) for item in written.values())
        print(
            f"Sequences: {result.records:,} records of {len(written):,} keys read back in"
            f" {time.monotonic() - began:.1f} s, {unsure:,} of those sent never acknowledged:"
            f" {', '.join(f'{count:,} {kind}' for kind, count in result.faults.items()) or 'no fault'}"
        )
        for example in result.examples:
            print(f"  {example}")
        try:
            topics.delete_everything(address, self._prefix)
        except KafkaException as error:
            return [f"the topics cannot be deleted: {error.args[0]}"]
        return [f"{count:,} records {kind}" for kind, count in result.faults.items()]


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _above_zero(text: str, kind: type[int | float] = float) -> float:
    number = kind(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def _flags() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="make loadtest",
        description="Run locust against Korvet, check every record and the thresholds.",
        epilog="All other flags are those of the load and of locust: see loadtest/README.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", help="a running broker, HOST:PORT; by default one is started, and watched")
    parser.add_argument("--shape", choices=list(SHAPES), default="steady", help="steady by default")
    parser.add_argument(
        "--users", type=partial(_above_zero, kind=int), default=24, help="users at most, 24 by default"
    )
    parser.add_argument("--minutes", type=_above_zero, default=1.0, help="length of the run, 1 by default")
    parser.add_argument("--web", action="store_true", help="locust's page on 127.0.0.1, until Ctrl-C")
    parser.add_argument("--web-port", type=int, default=8089, help="where that page is, 8089 by default")
    parser.add_argument("--thresholds", type=Path, default=_HERE / "thresholds.toml", help="a TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the started broker"
    )
    parser.add_argument("--directory", type=Path, help="where the started broker keeps its data")
    return parser.parse_known_args()


if __name__ == "__main__":
    sys.exit(main())
