"""What a fetch of archived records takes beside one of records in Redis: 1 MiB each, in turn, at random offsets.

A broker with one worker has two topics of records of 100 bytes: Redis holds all of one, the lake alone those of the
other. One client fetches from both in turn, so that other work on the machine slows both alike; the first tenth of the
fetches is not counted. CPU time is that of the broker's processes and Redis, for a fetch.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from korvet.config.settings import Settings
from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.tasks import archive_ranges
from korvet.log.trim import Trim, TrimStore
from korvet.redis.client import Redis
from loadtest.harness import ran_seconds, table, tree
from loadtest.lake.fill import VALUE_BYTES
from tests.support import redis_servers
from tests.support.batches import Record
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

BATCH_RECORDS = 150
"""16 KiB of them, as Kafka's producers send by default."""

FETCH_BYTES = 1 << 20
HOT, COLD = "hot", "cold"


def measure(storage_format: str, records: int, fetches: int) -> None:
    """Measure fetches of one format, and print a table."""
    with redis_servers.embedded_server() as url, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = (f"lake.path={directory / 'lake'}", "lake.interval.ms=0", "lake.upkeep.interval.ms=0")
        flags = [word for setting in settings for word in ("--set", setting)]
        with (
            korvet_broker(directory, "--redis-url", url, *flags, workers=1) as broker,
            Client(broker.address) as client,
        ):
            offsets = {tier: _fill(broker, tier, storage_format, records) for tier in (HOT, COLD)}
            _archive(url, directory, COLD)
            pids = tree(os.getpid()).keys() - {os.getpid()}
            costs: dict[str, list[tuple[float, float]]] = {HOT: [], COLD: []}
            for _ in range(fetches + fetches // 10):
                for tier, taken in costs.items():
                    before, began = ran_seconds(pids), time.perf_counter()
                    _fetch(client, tier, random.choice(offsets[tier]))
                    taken.append((time.perf_counter() - began, ran_seconds(pids) - before))
    _print(storage_format, {tier: taken[fetches // 10 :] for tier, taken in costs.items()})


def _fill(broker: Broker, topic: str, storage_format: str, records: int) -> list[int]:
    """Make a topic; returns offsets that a fetch may begin at, with 1 MiB and more after each."""
    with Client(broker.address) as client:
        client.create(topic, storage_format=storage_format, remote_storage_enable="true")
        firsts = []
        for _ in range(records // BATCH_RECORDS):
            values = (random.randbytes(VALUE_BYTES // 2).hex().encode() for _ in range(BATCH_RECORDS))
            batch = [Record(value, b"key-%d" % at) for at, value in enumerate(values)]
            firsts.append(client.append(topic, *batch))
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


def _fetch(client: Client, topic: str, offset: int) -> None:
    # The lake may take longer than remote.fetch.max.wait.ms: a consumer asks again then.
    while not (records := client.fetch(topic, offset, max_wait_ms=5000).records):
        pass
    assert len(records) > FETCH_BYTES * 0.9, (topic, offset, len(records))


def _print(storage_format: str, costs: dict[str, list[tuple[float, float]]]) -> None:
    figures: dict[str, list[float]] = {}
    for tier, taken in costs.items():
        seconds, cpu = zip(*taken, strict=True)
        whole = (statistics.median(seconds), statistics.quantiles(seconds, n=100)[98], statistics.mean(cpu))
        figures[tier] = [value * 1000 for value in whole]
    figures["cold/hot"] = [cold / hot for cold, hot in zip(figures[COLD], figures[HOT], strict=True)]
    rows: list[list[str | float]] = [[f"{storage_format}, {tier}", *row] for tier, row in figures.items()]
    print(table(("fetches of 1 MiB", "p50 ms", "p99 ms", "CPU ms"), rows), flush=True)
