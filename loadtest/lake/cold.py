"""What a fetch of archived records takes beside one of records in Redis: 1 MiB each, in turn, at random offsets.

Run as `python -m loadtest.lake.cold [--fetches 300] [--records 400000]` from the repository. A broker with one worker
has two topics of records of 100 bytes: Redis holds all of one, the lake alone those of the other. One client fetches
from both in turn, so that other work on the machine slows both alike; the first tenth of the fetches is not counted.
CPU time is that of the broker's processes and Redis, for a fetch.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from korvet.config.settings import Settings
from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.tasks import archive_ranges
from korvet.log.trim import Trim, TrimStore
from korvet.redis.client import Redis
from tests.support import redis_servers
from tests.support.batches import Record
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import descendants
from tests.support.topic_client import Client

BATCH_RECORDS = 150
"""16 KiB of them, as Kafka's producers send by default."""

VALUE_BYTES = 100
FETCH_BYTES = 1 << 20
FORMATS = ("batch", "record")
TIERS = ("hot", "cold")


def main() -> None:
    """Measure, and print two lines for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetches", type=int, default=300, help="of each kind")
    parser.add_argument("--records", type=int, default=400_000, help="in each topic")
    parser.add_argument("--formats", default=",".join(FORMATS))
    args = parser.parse_args()
    for storage_format in args.formats.split(","):
        measure(storage_format, args.records, args.fetches)


def measure(storage_format: str, records: int, fetches: int) -> None:
    """Measure fetches of one format."""
    with (
        redis_servers.embedded_server() as url,
        tempfile.TemporaryDirectory() as directory,
        _broker(url, Path(directory)) as broker,
    ):
        offsets = {each: _fill(broker, each, storage_format, records) for each in TIERS}
        _archive(url, Path(directory), "cold")
        pids = descendants(os.getpid())
        times: dict[str, list[float]] = {each: [] for each in TIERS}
        cpu = dict.fromkeys(TIERS, 0.0)
        with Client(broker.address) as client:
            for at in range(fetches + fetches // 10):
                for tier in TIERS:
                    offset = random.choice(offsets[tier])
                    before, began = _cpu_seconds(pids), time.perf_counter()
                    # The lake may take longer than remote.fetch.max.wait.ms: a consumer asks again then.
                    while not (found := client.fetch(tier, offset, max_wait_ms=5000).records):
                        pass
                    seconds = time.perf_counter() - began
                    assert len(found) > FETCH_BYTES * 0.9, (tier, offset, len(found))
                    if at >= fetches // 10:
                        times[tier].append(seconds)
                        cpu[tier] += _cpu_seconds(pids) - before
        _print(storage_format, times, cpu)


@contextmanager
def _broker(url: str, directory: Path) -> Iterator[Broker]:
    settings = (f"lake.path={directory / 'lake'}", "lake.interval.ms=0", "lake.upkeep.interval.ms=0")
    flags = [word for each in settings for word in ("--set", each)]
    with korvet_broker(directory, "--redis-url", url, *flags, workers=1) as running:
        yield running


def _fill(broker: Broker, topic: str, storage_format: str, records: int) -> list[int]:
    """Make a topic; returns offsets that a fetch may begin at, with 1 MiB and more after each."""
    with Client(broker.address) as client:
        client.create(topic, storage_format=storage_format, remote_storage_enable="true")
        firsts = []
        for _ in range(records // BATCH_RECORDS):
            values = (random.randbytes(VALUE_BYTES // 2).hex().encode() for _ in range(BATCH_RECORDS))
            firsts.append(
                client.append(topic, *(Record(each, b"key-%d" % at) for at, each in enumerate(values)))
            )
    return firsts[: -2 * FETCH_BYTES // VALUE_BYTES // BATCH_RECORDS]


def _archive(url: str, directory: Path, topic: str) -> None:
    """Archive a topic, and let Redis forget it."""
    source = LakeSource.of(Settings(lake_path=str(directory / "lake")), url)
    done = Archiver(source, names=[topic]).round(partial(archive_ranges, source))
    assert done.failures == [], done
    redis = Redis(url, timeout_ms=60_000, connect_timeout_ms=10_000)
    with source.opened() as stores:
        [partition] = stores.topic(topic).partitions
        end = stores.bounds(partition).archived
        more = True
        while more:
            [trimmed] = TrimStore(redis).trim([Trim(partition, end, end)])
            assert not isinstance(trimmed, Exception), trimmed
            more = trimmed.more
    redis.close()


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Return what some processes have used."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


def _print(storage_format: str, times: Mapping[str, Sequence[float]], cpu: Mapping[str, float]) -> None:
    found = {
        tier: (statistics.median(each), statistics.quantiles(each, n=100)[98]) for tier, each in times.items()
    }
    for tier, (half, most) in found.items():
        each_ms = cpu[tier] / len(times[tier]) * 1000
        print(
            f"{storage_format:6} {tier:4} p50 {half * 1000:7.1f} ms  p99 {most * 1000:7.1f} ms"
            f"  CPU {each_ms:6.2f} ms a fetch",
            flush=True,
        )
    (hot_half, hot_most), (cold_half, cold_most) = (found[tier] for tier in TIERS)
    print(
        f"{storage_format:6} cold/hot: p50 {cold_half / hot_half:.1f}, p99 {cold_most / hot_most:.1f},"
        f" CPU {cpu['cold'] / cpu['hot']:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
