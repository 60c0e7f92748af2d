"""The fetcher for read_committed consumers: what lies below the last stable offset, and which of it was aborted.

On a real log; each rule by itself is in core/proto/tests/fetch_flow/committed.rs.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec
import pytest
import redis
from korvet_core import Fetched

from korvet.errors import ErrorCode
from korvet.log.offsets import OffsetFound, OffsetQuery
from korvet.log.types import Read
from korvet.protocol.types import SpecialTimestamp
from korvet.topics.registry import TopicSpec
from tests.support.batches import Record
from tests.support.domain import Domain
from tests.support.fetching import AbortedTransaction, FetchResult
from tests.support.log_bench import LAYOUTS, configs_of, wire
from tests.support.proxy import until
from tests.support.redis_servers import now_ms
from tests.support.transactions import Consumed, TransactionalProducer, consumed

pytestmark = pytest.mark.parametrize("storage_format", LAYOUTS, indirect=True)


@pytest.fixture
def storage_format(here: Domain, request: pytest.FixtureRequest) -> str:
    """Make a topic of each layout; returns its format."""
    here.topics.create(TopicSpec(name="orders", partitions=3, configs=configs_of(request.param)))
    return "batch" if request.param == "batch" else "record"


@pytest.fixture
def log(here: Domain, storage_format: str) -> Log:
    return Log(here, storage_format)


class Log(NamedTuple):
    """The log of partition 0, as one worker has it."""

    view: Domain
    format: str

    def fetch(
        self, offset: int = 0, *, committed: bool = True, bytes_max: int = 1 << 20, wait_ms: int = 0
    ) -> FetchResult:
        wanted = self.view.wanted("orders", offset=offset, bytes_max=bytes_max)
        wanted = msgspec.structs.replace(wanted, committed=committed)
        [result] = self.view.fetch(wanted, wait_ms=wait_ms)
        assert result.error is ErrorCode.NONE
        assert (result.aborted is not None) == committed or not result.chunks
        return result

    def consume(self, offset: int = 0, *, committed: bool = True, bytes_max: int = 1 << 20) -> Consumed:
        """Fetch once; return what a consumer makes of it."""
        result = self.fetch(offset, committed=committed, bytes_max=bytes_max)
        return consumed(b"".join(result.chunks), offset, result.aborted or (), committed=committed)

    def consume_all(self, offset: int = 0, *, committed: bool = True, bytes_max: int = 1 << 20) -> Consumed:
        """Go on until nothing more comes."""
        result: list[bytes | None] = []
        while True:
            some, position = self.consume(offset, committed=committed, bytes_max=bytes_max)
            if position == offset:
                return Consumed(result, offset)
            result += some
            offset = position

    def append(self, *values: Record | bytes | None) -> int:
        return self.view.append("orders", *values)


@pytest.mark.parametrize("bytes_max", [1, 300, 2000, 1 << 20])
def test_whatever_the_limits_a_committed_reader_gets_what_was_committed(log: Log, bytes_max: int) -> None:
    rng = random.Random(5)
    producers = [TransactionalProducer(log.view, producer_id=item) for item in range(4)]
    written: dict[int, list[bytes]] = {}
    committed: set[bytes] = set()
    order: list[bytes] = []
    for n in range(150):
        at = rng.randrange(5)
        value = b"%d" % n + b"x" * rng.randrange(200)
        if at == 4:
            log.append(value)
            committed.add(value)
            order.append(value)
        elif written.get(at) and rng.random() < 0.4:
            of = written.pop(at)
            if rng.random() < 0.5:
                producers[at].commit()
                committed.update(of)
            else:
                producers[at].abort()
        else:
            producers[at].write(value)
            written.setdefault(at, []).append(value)
            order.append(value)
    assert log.consume_all(committed=False, bytes_max=bytes_max).values == order
    stable = order.index(min((of[0] for of in written.values()), key=order.index))
    assert log.consume_all(bytes_max=bytes_max).values == [
        item for item in order[:stable] if item in committed
    ]
    for at, of in written.items():
        producers[at].commit()
        committed.update(of)
    expected = [item for item in order if item in committed]
    got, position = log.consume_all(bytes_max=bytes_max)
    assert got == expected
    assert position == log.fetch().high_watermark


def test_a_reader_of_all_that_is_stable_is_at_the_stable_offset(log: Log, raw_redis: redis.Redis) -> None:
    """Clients wait for that: it is the end of the log as ListOffsets answers it."""
    log.append(b"a")
    before = now_ms(raw_redis)
    until(lambda: now_ms(raw_redis) > before)  # format record: the next offset is not the next number
    TransactionalProducer(log.view, producer_id=7).write(b"b")
    values, position = log.consume()
    assert values == [b"a"]
    result = log.fetch(position)
    assert result.last_stable_offset == position
    query = OffsetQuery(log.view.wanted("orders").partition, SpecialTimestamp.LATEST, committed=True)
    [latest] = log.view.offsets.find([query])
    assert isinstance(latest, OffsetFound)
    assert latest.offset == position


@pytest.mark.parametrize("rows", [1, 2, 7, 50])
def test_of_many_aborted_transactions_some_are_read_at_once(log: Log, rows: int) -> None:
    held, other = (TransactionalProducer(log.view, producer_id=item) for item in (6, 7))
    expected: list[bytes | None] = []
    for n in range(30):
        if n == 10:
            held.write(b"held")
        if n == 20:
            held.abort()
        other.write(b"aborted")
        other.abort()
        expected.append(b"%d" % n)
        log.append(expected[-1])
    result: list[bytes | None] = []
    offset = steps = 0
    while True:
        spec = msgspec.structs.replace(log.view.wanted("orders", offset=offset), committed=True)
        [read] = log.view.log.read([Read(spec.partition, offset, 1000, committed=True, aborted_max=rows)])
        assert isinstance(read, Fetched)
        if not len(read):
            break
        aborted = [AbortedTransaction(*item) for item in read.aborted]
        values, position = consumed(wire(read), offset, aborted, committed=True)
        assert read.more == (position < read.stable_offset)
        result += values
        offset, steps = position, steps + 1
    assert result == expected
    assert (steps == 1) == (rows == 50)
