"""A log store on a topic with three partitions, in any layout, and an external client beside it.

What the store gives in any layout is read as a consumer reads it: records of `tests.support.batches`, each with its
offset, those before the requested one left out.
"""

from __future__ import annotations

from typing import Any, Literal

from korvet_core import Fetched

from korvet.errors import ErrorCode, KafkaError
from korvet.log.appends import BatchAppend
from korvet.log.store import LogStore
from korvet.log.types import Appended, Bounds, LogLimits, Read
from korvet.redis.client import Redis, RedisNode
from korvet.redis.keys import Keys
from korvet.topics.config import TopicConfig
from korvet.topics.entry_ids import DENSE, OFFSETS_END
from korvet.topics.store import TopicStore
from korvet.topics.types import Partition, TopicRow
from tests.support import batches
from tests.support.appends import append_of
from tests.support.batches import Record

Format = Literal["record", "batch"]
Layout = Literal["record", "dense", "batch"]
"""Format record with offsets that are times, the same with dense ones, format batch."""

LAYOUTS: tuple[Layout, ...] = ("record", "dense", "batch")

BITS = 10
TOPIC_ID = "id-1"
TIMESTAMP = 5
DECOMPRESSED_BYTES_MAX = 1 << 20


class Bench:
    """The store and its surroundings."""

    def __init__(
        self, redis: Redis, raw: Any, layout: Layout, bits: int = BITS, topic: str = "orders"
    ) -> None:
        self.raw = raw
        self.redis = redis
        self.layout = layout
        self.format: Format = "batch" if layout == "batch" else "record"
        self.topics = TopicStore(redis, Keys("korvet"))
        configs = configs_of(layout)
        self.topics.create(TopicRow(name=topic, id=TOPIC_ID, partitions=3, configs=configs))
        self.logs = LogStore(redis, redis, Keys("korvet"), limits=LogLimits(DECOMPRESSED_BYTES_MAX))
        self.bits = DENSE if layout == "dense" else bits
        self.topic = topic
        self.partitions = [self.at(index) for index in range(3)]
        self.partition = self.partitions[0]

    def at(self, index: int, topic: str = "", topic_id: str = TOPIC_ID) -> Partition:
        """Return a partition, of any incarnation."""
        return self.logs.partition(topic or self.topic, index, topic_id, self.bits, self.format)

    def made(
        self,
        *values: Record | bytes | None,
        partition: Partition | None = None,
        codec: int = batches.NONE,
        producer: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        number: int | None = None,
        config: TopicConfig | None = None,
    ) -> BatchAppend:
        """Return an append of these records, of the transaction `number` if they are of one."""
        records = [value if isinstance(value, Record) else Record(value, b"k", TIMESTAMP) for value in values]
        return append_of(
            partition or self.partition,
            *records,
            config=config,
            number=number,
            codec=codec,
            producer_id=producer,
            epoch=epoch,
            sequence=sequence,
        )

    def append(self, *values: Record | bytes | None, **options: Any) -> int:
        """Append, expect that to succeed, return the base offset."""
        [outcome] = self.logs.append([self.made(*values, **options)])
        assert isinstance(outcome, Appended), outcome
        return outcome.base_offset

    def read(self, offset: int, count: int = 1000, partition: Partition | None = None) -> Fetched:
        """Read, expect that to succeed."""
        [outcome] = self.logs.read([Read(partition or self.partition, offset, count)])
        assert isinstance(outcome, Fetched), outcome
        return outcome

    def nothing(self, offset: int) -> tuple[int, int, int]:
        """Read, expect nothing to be there, now or on; return log start, first offset and high watermark."""
        fetched = self.read(offset)
        assert not fetched.more
        assert not len(fetched)
        return fetched.log_start, fetched.first_offset, fetched.high_watermark

    def records(self, offset: int = 0, count: int = 1000, partition: Partition | None = None) -> list[Record]:
        """Read once, and return what a consumer makes of it."""
        return records_of(self.read(offset, count, partition), offset)

    def read_all(self, offset: int = 0, count: int = 1000) -> list[tuple[int, bytes | None]]:
        """Read on as a consumer does, until nothing comes."""
        result: list[tuple[int, bytes | None]] = []
        while True:
            fetched = self.read(offset, count)
            records = records_of(fetched, offset)
            if not records:
                assert not fetched.more
                return result
            result += [(record.offset, record.value) for record in records]
            offset = result[-1][0] + 1
            assert fetched.high_watermark >= offset

    def values(self) -> list[bytes | None]:
        """Read all, and return the values."""
        return [value for _, value in self.read_all()]

    def bounds(self) -> Bounds:
        """Ask for the bounds, expect an answer; without epochs."""
        [outcome] = self.all_bounds(self.partition)
        return outcome

    def all_bounds(self, *partitions: Partition) -> list[Bounds]:
        """Do so for several partitions."""
        results = self.logs.bounds(partitions)
        assert all(isinstance(result, Bounds) for result in results), results
        return [result._replace(epochs=()) for result in results if isinstance(result, Bounds)]

    @property
    def node(self) -> RedisNode:
        """The server that has the log."""
        return self.redis.node_of(self.partition.stream)

    @property
    def epoch(self) -> int:
        """The leader epoch that there is now."""
        return self.logs.epochs.current(self.partition.stream)

    def external(self, count: int, entry_id: str = "*") -> None:
        """XADD in one pipeline, as any Redis client may."""
        with self.raw.pipeline(transaction=False) as pipe:
            for n in range(count):
                pipe.xadd(self.partition.stream, {"value": str(n)}, id=entry_id)
            pipe.execute()

    def expect(self, code: ErrorCode, text: str) -> None:
        """Expect appending, reading and asking for the bounds to fail so, with `text` in the message."""
        for outcome in (
            *self.logs.append([self.made(b"a")]),
            *self.logs.read([Read(self.partition, 0, 5)]),
            *self.logs.bounds([self.partition]),
        ):
            assert code_of(outcome) == code
            assert isinstance(outcome, KafkaError)
            assert text in outcome.message


def configs_of(layout: Layout) -> dict[str, str]:
    """Return the configs of a topic with this layout."""
    encoding = "time" if layout == "record" else "dense"
    return {"storage.format": "batch" if layout == "batch" else "record", "offset.encoding": encoding}


def code_of(outcome: object) -> ErrorCode:
    """Return the code of an outcome that must be an error."""
    assert isinstance(outcome, KafkaError), outcome
    return outcome.code


def wire(result: Fetched) -> bytes:
    """Return batches as a consumer gets them, those of records too."""
    chunks, _ = result.collect([(0, OFFSETS_END)], codec=batches.NONE, log_append_time=False)
    return b"".join(chunks)


def records_of(fetched: Fetched, offset: int) -> list[Record]:
    """Return what a consumer that asked for `offset` makes of an answer; fails on a wrong CRC."""
    if fetched.size_bytes:
        result = batches.read(wire(fetched))
    else:
        result = [
            Record(value, key, timestamp, tuple(headers), at)
            for at, timestamp, key, value, headers in fetched.records()
        ]
    offsets = [record.offset for record in result]
    assert offsets == sorted(set(offsets))
    return [record for record in result if record.offset >= offset]
