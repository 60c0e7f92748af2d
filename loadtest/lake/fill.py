"""Topics of two partitions with records of 100 bytes, filled through the store."""

from __future__ import annotations

import random
from typing import Literal

from korvet.lake.source import LakeStores
from korvet.log.appends import BatchAppend
from korvet.topics.types import Partition, TopicRow
from tests.support.appends import append_of, logs_of
from tests.support.batches import Record

BATCH_RECORDS, BATCHES_AT_ONCE = 1000, 10
VALUE_BYTES = 100
PARTITIONS = 2
RECORDS_MIN = BATCH_RECORDS * BATCHES_AT_ONCE * PARTITIONS
FORMATS: tuple[Literal["record", "batch"], ...] = ("batch", "record")


def topic_id(name: str) -> str:
    """Return an id that 16 bytes have: the last character has no bits beyond them."""
    return f"{name:A>21}A"


def fill(stores: LakeStores, name: str, storage_format: Literal["record", "batch"], records: int) -> None:
    """Make a topic with this number of records, a multiple of RECORDS_MIN."""
    configs = {"storage.format": storage_format, "remote.storage.enable": "true"}
    stores.topics.create(TopicRow(name=name, id=topic_id(name), partitions=PARTITIONS, configs=configs))
    partitions = [
        stores.logs.partition(name, at, topic_id(name), 10, storage_format) for at in range(PARTITIONS)
    ]
    appends = [[_append(partition) for _ in range(BATCHES_AT_ONCE)] for partition in partitions]
    with logs_of(stores.source) as logs:
        for _ in range(records // RECORDS_MIN):
            for some in appends:
                for outcome in logs.append(some):
                    assert not isinstance(outcome, Exception), outcome


def _append(partition: Partition) -> BatchAppend:
    """Return a batch with values of which zstd saves about half."""
    values = [random.randbytes(VALUE_BYTES // 2).hex().encode() for _ in range(BATCH_RECORDS)]
    return append_of(
        partition, *(Record(value, b"key-%d" % at, 1_700_000_000_000 + at) for at, value in enumerate(values))
    )
