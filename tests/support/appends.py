"""Arguments of `LogStore.append` made of records, their form in Redis, and batches that no producer could append."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import lz4.frame
import zstandard
from msgspec.structs import replace

from korvet.config.settings import Settings
from korvet.lake.source import LakeSource
from korvet.log.appends import BatchAppend
from korvet.log.epochs import LeaderEpochs
from korvet.log.store import LogStore
from korvet.protocol.records.record import StoredRecord
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.config import TopicConfig, effective
from korvet.topics.types import AtRest, Partition
from tests.support.append_scripts import Answer, Batch, VerdictCode, call_of
from tests.support.batches import Record, batch, headers_of


def append_of(
    partition: Partition,
    *records: Record | bytes | None,
    config: TopicConfig | None = None,
    number: int | None = None,
    **options: Any,
) -> BatchAppend:
    """Return an append of records, in the transaction `number` if it is given; `options` go to `batch`."""
    data = batch(*records, transactional=number is not None, **options)
    return BatchAppend(partition, data, config, number)


def config_of(**configs: str) -> TopicConfig:
    """Return the configs of a topic; the names have `_` for `.`."""
    return effective({name.replace("_", "."): value for name, value in configs.items()}, Settings())


def at_rest(codec: Literal["none", "lz4", "zstd"], min_bytes: int = 1024) -> TopicConfig:
    """Return the configs of a topic with this compression at rest, which limit neither batches nor times."""
    unlimited = config_of(max_message_bytes=str(2**31 - 1), message_timestamp_after_max_ms=str(2**63 - 1))
    return replace(unlimited, at_rest=AtRest(codec, min_bytes))


@contextmanager
def logs_of(source: LakeSource) -> Iterator[LogStore]:
    """Give logs to append to; the stores of a lake only read them."""
    redis = Redis(
        source.redis_url, timeout_ms=source.timeout_ms, connect_timeout_ms=source.connect_timeout_ms
    )
    try:
        yield LogStore(redis, redis, Keys(source.namespace))
    finally:
        redis.close()


def put_batch(redis: Redis, partition: Partition, data: bytes) -> int:
    """Append a batch past the checks of what a producer sends, also one that does not decode; returns its offset."""
    header = headers_of(data)[0]
    made = Batch([data], header.record_count, len(data), max_timestamp=header.max_timestamp)
    epoch = LeaderEpochs(redis, Keys("korvet")).current(partition.stream)
    [(code, offset)] = Answer.read(redis.script(*call_of(partition, epoch, [made]))).verdicts
    assert code == VerdictCode.APPENDED, code
    return offset


def entry_of(record: StoredRecord, codec: str = "none", producer: str = "") -> list[bytes]:
    """Return the fields and values of a record's entry; its value is compressed, and `producer` has a transaction."""
    _, timestamp, key, value, headers = record
    fields = [] if key is None else [b"key", key]
    if value is not None:
        frame = {"none": bytes, "lz4": lz4.frame.compress, "zstd": zstandard.compress}[codec](value)
        fields += [b"value", frame]
    fields += [b"timestamp", b"%d" % timestamp]
    if value is not None and codec != "none":
        fields += [b"korvet.encoding", codec.encode()]
    for name, content in headers:
        fields += [(b"nullheader." if content is None else b"header.") + name.encode(), content or b""]
    return fields + ([b"korvet.producer", producer.encode()] if producer else [])
