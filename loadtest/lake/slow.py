"""What a slow lake costs those who do not need it: hot records of a worker that has cold readers.

Run as `python -m loadtest.lake.slow [--seconds 10] [--readers 8]` from the repository. A broker with one worker has a
topic whose records are in the lake only, and one that is hot. A client appends one record to the hot one and fetches
it, over and over, while others fetch cold records as fast as they come: first none do, then from a lake that answers,
then from one whose process is stopped for nine tenths of the time, then all of it. Cold readers are processes of their
own, so that the client that measures is not held up by them; all share this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from korvet.config.settings import Settings
from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.tasks import archive_ranges
from korvet.log.trim import Trim, TrimStore
from korvet.redis.client import Redis
from tests.support import processes, redis_servers
from tests.support.batches import Record, batch
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

BATCH_RECORDS = 1000
BATCHES = 200
VALUE = os.urandom(50).hex().encode()
STOPPED_SHARE = 0.9
PERIOD_S = 1.0


def main() -> None:
    """Measure, and print a line for each kind of lake."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--readers", type=int, default=8, help="of cold records")
    args = parser.parse_args()
    with (
        redis_servers.embedded_server() as url,
        tempfile.TemporaryDirectory() as directory,
        _broker(url, Path(directory)) as broker,
    ):
        end = _fill(broker, url, Path(directory))
        [lake] = broker.child_pids("lake")
        _measure(broker, "no cold readers", args.seconds)
        for name, share in (("the lake answers", 0.0), ("slow", STOPPED_SHARE), ("stopped", 1.0)):
            with _readers(broker, args.readers, end) as count, _stopped(lake, share):
                _measure(broker, f"{args.readers} cold readers, {name}", args.seconds)
                print(f"  {count():,} cold records read meanwhile", flush=True)


@contextlib.contextmanager
def _broker(url: str, directory: Path) -> Iterator[Broker]:
    settings = (f"lake.path={directory / 'lake'}", "lake.interval.ms=0", "lake.upkeep.interval.ms=0")
    flags = [word for each in settings for word in ("--set", each)]
    with korvet_broker(directory, "--redis-url", url, *flags, workers=1) as running:
        yield running


def _fill(broker: Broker, url: str, directory: Path) -> int:
    """Make both topics; returns the offset after the last cold record, all of which are in the lake only."""
    with Client(broker.address) as client:
        client.create("hot", storage_format="batch")
        client.create("cold", storage_format="batch", remote_storage_enable="true")
        records = batch(*(Record(VALUE, b"key-%d" % at) for at in range(BATCH_RECORDS)))
        for _ in range(BATCHES):
            assert client.produce("cold", records).error_code == 0
    source = LakeSource.of(Settings(lake_path=str(directory / "lake")), url)
    end = BATCHES * BATCH_RECORDS
    done = Archiver(source).round(partial(archive_ranges, source))
    assert (done.records, done.failures) == (end, []), done
    redis = Redis(url, timeout_ms=60_000, connect_timeout_ms=10_000)
    with source.opened() as stores:
        [partition] = stores.topic("cold").partitions
        TrimStore(redis).trim([Trim(partition, end, end)])
    redis.close()
    return end


def _measure(broker: Broker, name: str, seconds: float) -> None:
    produced, fetched = [], []
    with Client(broker.address) as client:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            offset = client.append("hot", Record(VALUE))
            between = time.perf_counter()
            assert client.fetch("hot", offset).records
            produced.append(between - began)
            fetched.append(time.perf_counter() - between)
    print(f"{name}: produce {_percentiles(produced)}, fetch {_percentiles(fetched)}", flush=True)


def _percentiles(seconds: Sequence[float]) -> str:
    every = statistics.quantiles(seconds, n=100)
    return f"p50 {every[49] * 1000:.1f} ms p99 {every[98] * 1000:.1f} ms"


@contextlib.contextmanager
def _readers(broker: Broker, count: int, end: int) -> Iterator[Callable[[], int]]:
    """Read cold records in `count` processes within the block; yields a function that returns the number read."""
    spawning = multiprocessing.get_context("spawn")
    read = spawning.Value("q", 0)
    readers = [
        spawning.Process(target=_read, args=(broker.address, end * at // count, end, read), daemon=True)
        for at in range(count)
    ]
    for reader in readers:
        reader.start()
    processes.wait_until(lambda: read.value, "cold records")
    yield lambda: read.value
    for reader in readers:
        reader.kill()
        reader.join()


def _read(address: tuple[str, int], offset: int, end: int, read: Synchronized[int]) -> None:
    with Client(address) as client:
        while True:
            response = client.fetch("cold", offset, max_wait_ms=500)
            if response.records:
                count = min(BATCH_RECORDS, end - offset)
                with read.get_lock():
                    read.value += count
                offset = (offset + count) % end


@contextlib.contextmanager
def _stopped(pid: int, share: float) -> Iterator[None]:
    """Stop a process for a share of the time within the block."""
    ended = threading.Event()

    def stop_and_go() -> None:
        while share and not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            if ended.wait(PERIOD_S * share) or share == 1:
                break
            os.kill(pid, signal.SIGCONT)
            ended.wait(PERIOD_S * (1 - share))
        ended.wait()
        os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
