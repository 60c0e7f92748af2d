"""A log to measure: a private embedded server, and batches in each form that an append may have."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator
from typing import Literal

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.log.appends import BatchAppend
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.worker import GC_THRESHOLD
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.support import redis_servers
from tests.support.appends import at_rest

VALUE_BYTES = 100
BITS = 10
TIMESTAMP = 1_700_000_000_000

FORMS = ("record", "record, mixed", "record, empty", "batch", "batch, lz4")
"""Records that share their fields; records with a header, which do not; records without key and with an empty value;
whole batches; compressed at rest."""


def collect_as_a_worker() -> None:
    """Let the garbage collector run as rarely as in a worker, or it is what is measured."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 1000)


@contextlib.contextmanager
def server() -> Iterator[Redis]:
    """Run a server, and give a connection to it."""
    with redis_servers.embedded_server() as url:
        redis = Redis(url, timeout_ms=60_000, connect_timeout_ms=5000)
        yield redis
        redis.close()


def value_of(number: int) -> bytes:
    """Return a value of hexadecimal noise, which a compressor halves."""
    return random.Random(number % 1000).randbytes(VALUE_BYTES // 2).hex().encode()


def batch(count: int, *, headers: bool = False, empty: bool = False, first_key: int = 0) -> bytes:
    """Return a batch of records with a key of 8 and a value of 100 bytes; keys count up from `first_key`."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    given = [("h", b"1")] if headers else []
    for n in range(count):
        key, value = (None, b"") if empty else (b"%08d" % (first_key + n), value_of(n))
        builder.append(n, timestamp=TIMESTAMP, key=key, value=value, headers=given)
    return bytes(builder.build())


class Log:
    """One partition in one of FORMS, on an empty server."""

    def __init__(self, redis: Redis, form: str, reads: Redis | None = None) -> None:
        self.form = form
        self.format: Literal["record", "batch"] = "batch" if form.startswith("batch") else "record"
        redis.call("FLUSHALL")
        keys = Keys("korvet")
        configs: dict[str, str] = {"storage.format": self.format}
        TopicStore(redis, keys).create(TopicRow(name="t", id="id", partitions=1, configs=configs))
        self.store = LogStore(redis, reads or redis, keys)
        self.partition = self.store.partition("t", 0, "id", BITS, self.format)

    def append_of(self, count: int, first_key: int = 0) -> BatchAppend:
        """Return an append of `count` records."""
        data = batch(
            count,
            headers=self.form == "record, mixed",
            empty=self.form == "record, empty",
            first_key=first_key,
        )
        config = at_rest("lz4" if self.format == "record" or self.form == "batch, lz4" else "none")
        return BatchAppend(self.partition, data, config)
