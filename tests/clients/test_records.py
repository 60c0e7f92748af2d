"""Records of each library: it gets back exactly what it sent, finds its way around the log, and hears refusals."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from korvet.errors import ErrorCode
from tests.clients.client_library import END, Admin, Library, Written, read, written
from tests.support.broker import Broker
from tests.support.records import (
    CODECS,
    PARTITIONS,
    TIMESTAMP_FIRST_MS,
    Sample,
    check_exactly,
    samples,
    topic_name,
)
from tests.support.topic_client import Client

LONG_AGO, HOUR_MS = 1_500_000_000_000, 3_600_000
ATTRIBUTES_AT = 22
"""Where a batch names its codec."""
LARGE = bytes(range(256)) * 3600


def sample(value: bytes | None, key: bytes | None = b"k", timestamp: int = TIMESTAMP_FIRST_MS) -> Sample:
    """Return a record for partition 0."""
    return Sample(0, key, value, (), timestamp)


@pytest.fixture
def topic(admin: Admin, storage: str) -> str:
    return created(admin, storage)


def created(admin: Admin, storage: str, partitions: int = 1, **configs: str) -> str:
    """Create a topic, and return its name; `configs` have `_` for `.`."""
    topic = topic_name("records")
    given = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create(topic, partitions, {"storage.format": storage, **given})
    return topic


def send(
    library: Library, broker: Broker, topic: str, *records: Sample, **config: Any
) -> list[Written | int]:
    """Send records by a producer of its own; `config` has `_` for `.`."""
    given = {name.replace("_", "."): value for name, value in config.items()}
    with closing(library.producer(broker.bootstrap, given)) as producer:
        return producer.send(topic, records)


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_each_codec_come_back_exactly(
    broker: Broker, library: Library, admin: Admin, storage: str, codec: str
) -> None:
    kept = "producer" if storage == "batch" else codec.replace("none", "uncompressed")
    topic = created(admin, storage, PARTITIONS, compression_type=kept)
    sent = samples(0, 2000, null_headers=library.null_headers)
    offsets = written(send(library, broker, topic, *sent, compression_type=codec))
    with Client(broker.address) as client:
        fetched = client.fetch(topic).records[ATTRIBUTES_AT] & 7
    # The broker may compress what comes uncompressed.
    assert codec in ("none", CODECS[fetched])
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        consumer.assign(topic, dict.fromkeys(range(PARTITIONS)))
        check_exactly(sent, read(consumer, len(sent)), offsets)


def test_an_idempotent_producer_writes_every_record_once(
    broker: Broker, library: Library, admin: Admin
) -> None:
    topic = created(admin, "record", PARTITIONS)
    sent = samples(0, 5000, null_headers=library.null_headers)
    config = {"enable_idempotence": True, "batch_size": 16 * 1024}
    offsets = written(send(library, broker, topic, *sent, **config))
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        consumer.assign(topic, dict.fromkeys(range(PARTITIONS)))
        check_exactly(sent, read(consumer, len(sent)), offsets)


def test_offsets_are_found_by_end_and_by_time_and_can_be_sought(
    broker: Broker, library: Library, topic: str
) -> None:
    sent = [record._replace(partition=0) for record in samples(0, 3000, null_headers=library.null_headers)]
    offsets = [offset for _, offset in written(send(library, broker, topic, *sent))]
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        assert consumer.bounds(topic, 0) == (offsets[0], offsets[-1] + 1)
        for later, number in ((500, 1500), (-1, 0), (1000, None)):
            wanted = None if number is None else offsets[number]
            assert consumer.by_time(topic, 0, TIMESTAMP_FIRST_MS + later) == wanted
        consumer.assign(topic, {0: None})
        check_exactly(sent, read(consumer, 3000))
        # In the middle of a batch.
        consumer.assign(topic, {0: offsets[1490]})
        check_exactly(sent[1490:], read(consumer, 1510))


def test_a_consumer_that_waits_at_the_end_of_an_empty_topic_gets_the_first_record(
    broker: Broker, library: Library, topic: str
) -> None:
    with closing(library.consumer(broker.bootstrap, {"auto.offset.reset": "error"})) as consumer:
        consumer.assign(topic, {0: consumer.bounds(topic, 0)[1]})
        assert consumer.poll(0.5) == []
        [place] = written(send(library, broker, topic, sample(b"first")))
        check_exactly([sample(b"first")], read(consumer, 1), [place])


def test_a_record_of_900_kilobytes_passes_and_a_larger_batch_than_allowed_does_not(
    broker: Broker, library: Library, topic: str
) -> None:
    sent = [sample(LARGE, None), sample(b"small", b"")]
    written(send(library, broker, topic, *sent))
    large = {"message_max_bytes": 4_000_000, "batch_size": 1_000_000}
    assert send(library, broker, topic, sample(LARGE * 2), **large) == [ErrorCode.MESSAGE_TOO_LARGE]
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        consumer.assign(topic, {0: None})
        check_exactly(sent, read(consumer, 2))


def test_a_batch_of_too_many_records_is_split_by_one_and_fails_as_a_whole_in_the_others(
    broker: Broker, library: Library, admin: Admin
) -> None:
    topic = created(admin, "record", max_message_records="100")
    records = [sample(b"%d" % number) for number in range(1000)]
    outcomes = send(library, broker, topic, *records, linger_ms=1000, batch_size=1 << 20)
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        consumer.assign(topic, {0: None})
        if library.name == "kafka-python":
            check_exactly(records, read(consumer, 1000), written(outcomes))
        else:
            assert set(outcomes) == {ErrorCode.MESSAGE_TOO_LARGE}
            assert consumer.bounds(topic, 0) == (0, 0), "nothing is written without its producer's knowledge"


def test_an_unknown_topic_is_created_by_a_producer_but_not_by_who_only_looks(
    broker: Broker, library: Library, admin: Admin
) -> None:
    topic = topic_name("auto")
    assert admin.partitions(topic) == admin.partitions(topic) == 0
    written(send(library, broker, topic, sample(b"v")))
    assert admin.partitions(topic) == 3


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_producer_and_consumer_see_the_time_of_the_append(
    broker: Broker, library: Library, admin: Admin, storage: str, codec: str
) -> None:
    topic = created(admin, storage, message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    records = [sample(b"v", timestamp=LONG_AGO + number) for number in range(20)]
    outcomes = send(library, broker, topic, *records, compression_type=codec)
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        consumer.assign(topic, {0: None})
        received = [(item.partition, item.offset, item.timestamp) for item in read(consumer, 20)]
    assert received == outcomes
    assert before <= received[0][2] <= received[-1][2] <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_producer_hears_why_a_record_is_refused(
    broker: Broker, library: Library, admin: Admin, storage: str, codec: str
) -> None:
    topic = created(
        admin,
        storage,
        cleanup_policy="compact",
        message_timestamp_before_max_ms=str(HOUR_MS),
        retention_ms="-1",
    )
    now = time.time_ns() // 1_000_000
    for refused, code in (
        # aiokafka knows no error of this code.
        (sample(b"v", None, now), -1 if library.name == "aiokafka" else ErrorCode.INVALID_RECORD),
        (sample(b"v", b"k", now - 2 * HOUR_MS), ErrorCode.INVALID_TIMESTAMP),
    ):
        assert send(library, broker, topic, refused, compression_type=codec) == [code]
    written(send(library, broker, topic, sample(b"v", b"k", now), compression_type=codec))


def test_records_are_deleted_and_consumers_below_the_new_start_follow_their_policy(
    broker: Broker, library: Library, admin: Admin, topic: str
) -> None:
    sent = [sample(b"%d" % number) for number in range(6)]
    offsets = [offset for _, offset in written(send(library, broker, topic, *sent))]
    # In the middle of a batch.
    assert admin.delete_records(topic, 0, offsets[3]) == offsets[3]
    with closing(library.consumer(broker.bootstrap, {})) as consumer:
        assert consumer.bounds(topic, 0) == (offsets[3], offsets[5] + 1)
        consumer.assign(topic, {0: offsets[1]})
        check_exactly(sent[3:], read(consumer, 3))
    with closing(library.consumer(broker.bootstrap, {"auto.offset.reset": "error"})) as consumer:
        consumer.assign(topic, {0: offsets[1]})
        with pytest.raises(Exception, match=r"(?i)out.?of.?range|no offset"):
            read(consumer, 1)
        # It stands at the end of an emptied log, which is not out of range.
        consumer.assign(topic, {0: offsets[5] + 1})
        assert admin.delete_records(topic, 0, END) == offsets[5] + 1
        written(send(library, broker, topic, sample(b"next")))
        check_exactly([sample(b"next")], read(consumer, 1))
