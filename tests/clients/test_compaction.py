"""Compacted topics by each library, in both formats: what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from tests.clients.client_library import Library, read, written
from tests.support import processes, reading
from tests.support.broker import Broker, korvet_broker
from tests.support.partition_state import log_of
from tests.support.records import CODECS, Sample, topic_name

OLD_MS = 1_600_000_000_000
KEYS, COUNT = 50, 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker whose keeper compacts as soon as there is something to compact."""
    eager = ("--set", "log.cleaner.backoff.ms=50", "--set", "log.cleaner.min.cleanable.ratio=0")
    with korvet_broker(tmp_path_factory.mktemp("broker"), *eager, workers=2) as running:
        yield running


def compacted(
    library: Library,
    broker: Broker,
    stored: redis.Redis,
    topic: str,
    pairs: list[tuple[bytes, bytes]],
    codec: str,
) -> list[tuple[int, Sample]]:
    """Write records with times long past, and wait until all are compacted; returns them with their offsets."""
    records = [
        Sample(0, key, value, (("n", b"%d" % number),), OLD_MS + number)
        for number, (key, value) in enumerate(pairs)
    ]
    config = {"compression.type": codec, "batch.size": 16 * 1024}
    with closing(library.producer(broker.bootstrap, config)) as producer:
        offsets = [offset for _, offset in written(producer.send(topic, records))]

    def done() -> bool:
        state = f"{{korvet:{topic}:0}}:state"
        return log_of(stored, state).next_offset == int(stored.hget(state, "clean_end") or -1)

    processes.wait_until(done, f"{topic} is compacted")
    return list(zip(offsets, records, strict=True))


@pytest.mark.parametrize("codec", CODECS)
def test_of_each_key_the_latest_record_is_read_at_its_offset(
    broker: Broker, stored: redis.Redis, library: Library, storage: str, codec: str
) -> None:
    topic = topic_name("table")
    config = {"cleanup.policy": "compact", "storage.format": storage, "compression.type": "producer"}
    reading.create_topic(broker.bootstrap, topic, config=config)
    pairs = [(b"key-%d" % (number * 7 % KEYS), b"value-%d" % number) for number in range(COUNT)]
    sent = compacted(library, broker, stored, topic, pairs, codec)
    latest = sorted({record.key: (offset, record) for offset, record in sent}.values())
    assert len(latest) == KEYS
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        consumer.assign(topic, {0: sent[0][0]})
        received = read(consumer, KEYS)
    assert [(record.offset, Sample(record.partition, *record[2:])) for record in received] == latest
