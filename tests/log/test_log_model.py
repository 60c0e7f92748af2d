"""The log store against a model in memory: random appends, repeats, external entries and reads, in both formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode, KafkaError
from korvet.log.types import AppendBatch, Appended, AppendRecords
from korvet.redis.client import Redis
from korvet.topics.types import AtRest
from tests.support import redis_servers
from tests.support.batches import CODECS
from tests.support.log_bench import Bench, Format

NO_PRODUCER = -1
PRODUCERS = st.sampled_from([NO_PRODUCER, 5, 2**62])
AT_RESTS = st.sampled_from([AtRest("none"), AtRest("lz4", 50), AtRest("zstd", 50)])
# Behind whatever is there; far ahead; as explicit as an external client can be, refused where it is not the highest.
FOREIGN_IDS = st.sampled_from(["*", f"{2**60}-*", "0-1", "3-1", "5-0", "9-5000", f"{2**64 - 1}-*"])
APPENDS = st.tuples(st.just("append"), PRODUCERS, st.integers(1, 40), st.sampled_from(CODECS), AT_RESTS)
REPEATS = st.tuples(st.just("repeat"), PRODUCERS, st.integers(0, 6))
OPERATIONS = st.one_of(
    *[APPENDS] * 4,
    *[REPEATS] * 3,
    st.tuples(st.just("skip"), PRODUCERS, st.integers(1, 5)),
    st.tuples(st.just("external"), FOREIGN_IDS, st.integers(1, 400)),
    st.tuples(st.just("delete last"), st.just(0)),
    st.tuples(st.just("read"), st.floats(0, 1), st.integers(1, 50)),
    st.tuples(st.just("keep"), st.just(0)),
)


class Model:
    """What the log must be: values in order, and for each producer the batches it sent, with their offsets."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.values: list[bytes] = []
        self.sent: dict[int, list[tuple[AppendRecords | AppendBatch, int]]] = {}
        self.sequences: dict[int, int] = {}
        self.served: dict[int, bytes | None] = {}
        self.count = 0

    def fresh(self, count: int) -> list[bytes]:
        """Return values that were never written."""
        self.count += count
        return [b"%d " % n * (n % 40 + 1) for n in range(self.count - count, self.count)]

    def made(
        self, producer: int, sequence: int, *values: bytes, **options: Any
    ) -> AppendRecords | AppendBatch:
        """Return an append of a producer."""
        if producer == NO_PRODUCER:
            return self.bench.made(*values, **options)
        return self.bench.made(*values, producer=producer, epoch=0, sequence=sequence, **options)

    def append(self, producer: int, count: int, codec: int, at_rest: AtRest) -> None:
        values = self.fresh(count)
        sequence = self.sequences.get(producer, 0)
        made = self.made(producer, sequence, *values, codec=codec, at_rest=at_rest)
        [outcome] = self.bench.logs.append([made])
        assert isinstance(outcome, Appended), outcome
        assert not outcome.duplicate
        if self.bench.format == "batch":
            assert outcome.base_offset == len(self.values)
        self.values += values
        self.served |= {outcome.base_offset + n: value for n, value in enumerate(values)}
        self.sent.setdefault(producer, []).append((made, outcome.base_offset))
        self.sequences[producer] = sequence + count

    def repeat(self, producer: int, age: int) -> None:
        batches = self.sent.get(producer, [])
        if producer == NO_PRODUCER or age >= len(batches):
            return
        made, base = batches[-1 - age]
        [outcome] = self.bench.logs.append([made])
        if age < 5:
            assert isinstance(outcome, Appended)
            assert (outcome.base_offset, outcome.duplicate) == (base, True)
        else:
            assert isinstance(outcome, KafkaError)
            assert outcome.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER

    def skip(self, producer: int, gap: int) -> None:
        if producer in self.sequences and producer != NO_PRODUCER:
            [outcome] = self.bench.logs.append([self.made(producer, self.sequences[producer] + gap, b"gap")])
            assert isinstance(outcome, KafkaError)
            assert outcome.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def external(self, entry_id: str, count: int) -> None:
        values = self.fresh(count)
        with self.bench.raw.pipeline(transaction=False) as pipe:
            for value in values:
                pipe.xadd(self.bench.partition.stream, {"value": value}, id=entry_id)
            replies = pipe.execute(raise_on_error=False)
        written = [value for value, reply in zip(values, replies, strict=True) if isinstance(reply, bytes)]
        if self.bench.format == "record":
            self.values += written

    def delete_last(self, _: int) -> None:
        """Delete an entry that is not taken in yet, as an external client that changed its mind."""
        made = self.bench.raw.xadd(self.bench.partition.stream, {"value": "gone"}, id=f"{2**64 - 1}-*")
        self.bench.raw.xdel(self.bench.partition.stream, made)

    def read(self, place: float, count: int) -> None:
        offsets = sorted(self.served)
        offset = offsets[int(place * (len(offsets) - 1))] if offsets else 0
        found = self.bench.read_all(offset, count)
        assert [value for _, value in found] == self.values[len(self.values) - len(found) :]
        self.remember(found)

    def keep(self, _: int) -> None:
        """Do what the keeper does on its own."""
        self.bench.logs.external.step(self.bench.partition)

    def remember(self, found: list[tuple[int, bytes | None]]) -> None:
        """Check that nothing that was served or acknowledged has changed, and remember the rest."""
        for offset, value in found:
            assert self.served.setdefault(offset, value) == value

    def check(self) -> None:
        """Read it all."""
        found = self.bench.read_all()
        assert [value for _, value in found] == self.values
        self.remember(found)
        assert len(self.served) == len(found)
        bounds = self.bench.bounds()
        assert bounds.high_watermark == (found[-1][0] + 1 if found else bounds.high_watermark)
        assert bounds.first_offset == (found[0][0] if found else bounds.high_watermark)


@pytest.fixture(scope="module")
def connections(redis_server: str) -> Iterator[tuple[Redis, Any]]:
    client = Redis(redis_server, timeout_ms=60_000, connect_timeout_ms=10_000)
    with redis_servers.connected(redis_server) as raw:
        yield client, raw
    client.close()


@pytest.mark.parametrize("storage_format", ["record", "batch"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, min_size=20, max_size=60), bits=st.sampled_from([8, 10, 12]))
def test_whatever_happens_the_log_is_what_was_acknowledged(
    connections: tuple[Redis, Any], storage_format: Format, operations: list[tuple[Any, ...]], bits: int
) -> None:
    client, raw = connections
    raw.flushall()
    model = Model(Bench(client, raw, storage_format, bits))
    for name, *arguments in operations:
        getattr(model, name.replace(" ", "_"))(*arguments)
    model.check()
