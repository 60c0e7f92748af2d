"""A compacted topic, beside a model of its content: a list of records, and Kafka's rule for the ones that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from korvet.config.settings import Settings
from korvet.log.compaction import CompactionPlan, CompactionResult, Compactor
from korvet.log.compaction_store import CompactionStore
from korvet.log.packed import PackedLog
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.registry import TopicSpec
from korvet.topics.types import Partition
from tests.support import batches
from tests.support.batches import TIMESTAMP, Record
from tests.support.domain import Domain
from tests.support.log_bench import Layout, configs_of
from tests.support.partition_state import log_of

TOPIC = "tables"


class Held(NamedTuple):
    """A record of the log as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class CompactedLog:
    """One partition of such a topic, its model, and what compacts it.

    Records are long past, so a pass takes the tail too; whatever is dirty is due, unless the topic says otherwise.
    """

    def __init__(self, here: Domain, raw: Any, layout: Layout, **configs: str) -> None:
        overrides = configs_of(layout) | {"cleanup.policy": "compact"}
        overrides |= {"min.cleanable.dirty.ratio": "0"}
        overrides |= {name.replace("_", "."): value for name, value in configs.items()}
        self.here = here
        self.raw = raw
        self.topic = here.topics.create(TopicSpec(name=TOPIC, partitions=1, configs=overrides))
        self.partition: Partition = self.topic.partition(0)
        self.logs = LogStore(here.redis, here.redis, Keys("korvet"))
        self.store = CompactionStore(here.redis)
        self.compactor = self.compactor_on(here.redis)
        self.model: list[Held] = []

    def compactor_on(self, redis: Redis, buffer_bytes: int = 1 << 20) -> Compactor:
        """Return what a keeper has that was just started."""
        return Compactor(
            CompactionStore(redis),
            self.logs,
            buffer_bytes=buffer_bytes,
            decompressed_bytes_max=Settings().record_decompressed_max_bytes,
        )

    def append(self, *pairs: tuple[bytes | None, bytes | None], timestamp: int = TIMESTAMP) -> None:
        """Append a batch of keys and values."""
        records = [Record(value, key, timestamp) for key, value in pairs]
        base = self.here.append(TOPIC, *records)
        self.model += [
            Held(base + at, record.key, record.value, timestamp) for at, record in enumerate(records)
        ]

    def fill(self, batches: int, of: int = 5, keys: int = 7) -> None:
        """Append batches over `keys` keys, each value another one, with a tombstone now and then."""
        for _ in range(batches):
            numbers = range(len(self.model), len(self.model) + of)
            self.append(
                *((b"key-%d" % (n % keys), None if n % 11 == 10 else b"value-%d" % n) for n in numbers)
            )

    def external(self, **fields: str) -> None:
        """XADD as any Redis client may (format `record`), and let the log take it in."""
        made = self.raw.xadd(self.partition.stream, dict(fields))
        ms, sequence = (int(part) for part in bytes(made).split(b"-"))
        self.logs.external.step(self.partition)
        key, value = (fields[name].encode() if name in fields else None for name in ("key", "value"))
        self.model.append(Held((ms << self.partition.bits) + sequence, key, value, ms))

    def plans(self, compactor: Compactor | None = None) -> list[CompactionPlan]:
        result, errors = (compactor or self.compactor).plans(
            [(self.partition, self.topic.config)], lambda: None
        )
        assert not errors, errors
        return result

    def compact(
        self, compactor: Compactor | None = None, check: Callable[[], None] = lambda: None
    ) -> CompactionResult | None:
        """Do the pass that is due; None where none is."""
        plans = self.plans(compactor)
        return (compactor or self.compactor).compact(plans[0], check) if plans else None

    def compacted(self) -> CompactionResult:
        """Do the pass that must be due."""
        done = self.compact()
        assert done is not None
        return done

    def expected(self, compacted_end: int, gone: Callable[[Held], bool] = lambda _held: False) -> list[Held]:
        """Return what must be left of the model when all below `compacted_end` is compacted; `gone` says more of it."""
        latest = {held.key: held.offset for held in self.model if held.offset < compacted_end}
        last = self.model[-1].offset
        return [
            held
            for held in self.model
            if held.offset == last
            or held.offset >= compacted_end
            or (held.key is not None and latest[held.key] == held.offset and not gone(held))
        ]

    def read(self, offset: int = 0, bytes_max: int = 2000) -> list[Held]:
        """Read on from `offset` as a consumer does, in small fetches, up to the high watermark."""
        result: list[Held] = []
        while True:
            wanted = self.here.wanted(TOPIC, offset=offset, bytes_max=bytes_max)
            [answer] = self.here.fetch(wanted, bytes_max=bytes_max)
            assert not answer.error, answer
            records = [record for record in batches.read(b"".join(answer.chunks)) if record.offset >= offset]
            if not records:
                assert offset == answer.high_watermark
                return result
            result += [Held(item.offset, item.key, item.value, item.timestamp) for item in records]
            offset = records[-1].offset + 1

    @property
    def counters(self) -> PackedLog:
        return log_of(self.raw, self.partition.state)

    @property
    def end(self) -> int:
        return self.counters.next_offset

    def field(self, name: str) -> int:
        return int(self.raw.hget(self.partition.state, name) or 0)
