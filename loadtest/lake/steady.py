"""How far the archive is after in steady state: a broker that archives on its own, and a producer that never stops.

Run as `python -m loadtest.lake.steady [--seconds 120] [--rate 20000] [--interval-ms 10000]` from the repository. The
lag is what /metrics says of it, the age of the oldest record that is not archived, looked at twice a second once the
backlog of Spark's start is archived. Broker, embedded server, Spark and producer share this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

from tests.support import processes
from tests.support.broker import Broker, korvet_broker
from tests.support.ops import page, total
from tests.support.topic_client import Client

PARTITIONS = 4
VALUE_BYTES = 100
STEPS_PER_SECOND = 20
FIGURES_MS = 500
START_SECONDS_MAX = 300.0


def main() -> None:
    """Measure for both formats, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="of each measurement")
    parser.add_argument("--rate", type=int, default=20_000, help="records a second")
    parser.add_argument("--interval-ms", type=int, default=10_000, help="lake.interval.ms")
    parser.add_argument("--formats", default="batch,record")
    args = parser.parse_args()
    for storage_format in args.formats.split(","):
        with tempfile.TemporaryDirectory() as directory, _broker(Path(directory), args.interval_ms) as broker:
            with Client(broker.address) as client:
                client.create(
                    "orders", PARTITIONS, storage_format=storage_format, remote_storage_enable="true"
                )
            with _producing(broker, args.rate):
                caught_up = partial(_caught_up, broker, args.interval_ms)
                processes.wait_until(caught_up, "the end of the backlog of Spark's start", START_SECONDS_MAX)
                _measure(broker, storage_format, args.seconds, args.interval_ms)


@contextlib.contextmanager
def _broker(directory: Path, interval_ms: int) -> Iterator[Broker]:
    settings = (
        f"lake.path={directory / 'lake'}",
        f"lake.interval.ms={interval_ms}",
        f"log.figures.interval.ms={FIGURES_MS}",
    )
    flags = [word for each in settings for word in ("--set", each)]
    with korvet_broker(directory, *flags) as running:
        yield running


def _caught_up(broker: Broker, interval_ms: int) -> bool:
    """Return whether what was produced before Spark had started is archived."""
    lag = _largest(broker)
    archived = total(broker, "korvet_lake_archived_records_total") > 0
    return archived and lag is not None and lag * 1000 < interval_ms


@contextlib.contextmanager
def _producing(broker: Broker, rate: int) -> Iterator[None]:
    """Produce this number of records a second within the block."""
    ended = threading.Event()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})

    def produce() -> None:
        number, began = 0, time.monotonic()
        while not ended.wait(1 / STEPS_PER_SECOND):
            while number < (time.monotonic() - began) * rate:
                try:
                    producer.produce("orders", b"%0*d" % (VALUE_BYTES, number), partition=number % PARTITIONS)
                except BufferError:
                    producer.poll(0.1)
                else:
                    number += 1
            producer.poll(0)
        producer.flush(60)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _measure(broker: Broker, name: str, seconds: float, interval_ms: int) -> None:
    lags: list[float] = []
    before, began = total(broker, "korvet_lake_archived_records_total"), time.monotonic()
    while time.monotonic() < began + seconds:
        if (lag := _largest(broker)) is not None:
            lags.append(lag)
        time.sleep(0.5)
    rate = (total(broker, "korvet_lake_archived_records_total") - before) / (time.monotonic() - began)
    every = statistics.quantiles(lags, n=100)
    shares = ", ".join(
        f"{title} {value:.1f} s ({value * 1000 / interval_ms:.2f} intervals)"
        for title, value in (("p50", every[49]), ("p95", every[94]), ("most", max(lags)))
    )
    print(f"{name}: {rate:,.0f} records/s archived; lag {shares}", flush=True)


def _largest(broker: Broker) -> float | None:
    """Return the largest lag in seconds; None if the figures are too old."""
    lines = page(broker, "/metrics").splitlines()
    lags = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("korvet_lake_lag_seconds{")]
    return max(lags, default=None)


if __name__ == "__main__":
    main()
