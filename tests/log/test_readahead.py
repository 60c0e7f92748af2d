"""Reading ahead: what is read before it is asked for, when it is served, and what it may not hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import redis

from korvet.errors import ErrorCode, KafkaError
from korvet.log.collect import FetchResult, PreparedCollector
from korvet.log.fetch import PREPARED_BYTES_MIN, Fetcher
from korvet.log.readahead import HELD_BYTES_MAX, HELD_SECONDS_MAX, ReadAhead
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Fetched, FetchLimits, Read
from korvet.protocol.records.compression import Codec
from korvet.redis.keys import Keys
from korvet.topics.registry import Topic, TopicSpec
from korvet.topics.types import Partition
from tests.support.batches import headers_of, values
from tests.support.commands import commands_of
from tests.support.domain import NO_LAKE, Domain
from tests.support.partition_state import change_log
from tests.support.proxy import until

RECORDS, SIZE, AT_ONCE = 400, 1000, 20_000
BOTH = pytest.mark.parametrize("storage_format", ["record", "batch"])


def filled(view: Domain, storage_format: str) -> Topic:
    topic = view.topics.create(TopicSpec(name="orders", configs={"storage.format": storage_format}))
    for number in range(0, RECORDS, 4):
        view.append("orders", *[b"%d" % each + b"x" * SIZE for each in range(number, number + 4)])
    return topic


def fetch(view: Domain, offset: int, bytes_max: int = AT_ONCE) -> FetchResult:
    [found] = view.fetch(view.wanted("orders", offset=offset, bytes_max=bytes_max))
    return found


def after(found: FetchResult) -> int:
    """Return the offset after the last record that was found."""
    last = headers_of(b"".join(found.chunks))[-1]
    return last.base_offset + last.last_offset_delta + 1


def end_reading_ahead(view: Domain) -> None:
    """Wait until what is held is read."""
    pieces: Any = view.fetcher._reader._ahead._pieces.values()
    until(
        lambda: all(
            (piece.begun.replies._waiter if piece.preparing is None else piece.preparing).ready()
            for piece in pieces
            if piece.begun is not None
        )
    )


@pytest.fixture
def partition(here: Domain) -> Partition:
    """Give a log of format `batch`, whose batches are of four records."""
    return filled(here, "batch").partitions[0]


@pytest.fixture
def store(here: Domain) -> LogStore:
    return LogStore(here.redis, here.redis, Keys("korvet"))


@pytest.fixture
def ahead(store: LogStore) -> ReadAhead:
    return ReadAhead(store)


@BOTH
def test_a_consumer_that_catches_up_finds_everything_once_and_in_order(
    here: Domain, storage_format: str
) -> None:
    filled(here, storage_format)
    read: list[bytes | None] = []
    offset, fetches = fetch(here, 0).log_start, 0
    while len(read) < RECORDS:
        found = fetch(here, offset)
        assert not found.error
        read += values(b"".join(found.chunks))
        offset = after(found)
        fetches += 1
    assert [int((value or b"").rstrip(b"x")) for value in read] == list(range(RECORDS))
    assert fetches > 10
    assert fetch(here, offset).chunks == []


@BOTH
def test_what_comes_next_is_read_before_it_is_asked_for_and_not_again(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    filled(here, storage_format)
    first = fetch(here, 0)
    second = fetch(here, after(first))
    end_reading_ahead(here)
    with commands_of(raw_redis) as ran:
        third = fetch(here, after(second))
        end_reading_ahead(here)
    assert third.size_bytes > AT_ONCE / 2
    looked_at_the_first_entry = storage_format == "record"
    assert ran["xrange"] == 1 + looked_at_the_first_entry


@BOTH
def test_what_one_consumer_got_is_not_read_again_for_those_that_follow(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    filled(here, storage_format)
    offsets = [after(fetch(here, fetch(here, 0).log_start))] * 3
    looked_at_the_first_entry = storage_format == "record"
    read: list[list[bytes | None]] = [[], [], []]
    costs: list[int] = []
    for _ in range(6):
        for consumer, offset in enumerate(offsets):
            with commands_of(raw_redis) as ran:
                found = fetch(here, offset)
                end_reading_ahead(here)
            costs.append(ran["xrange"])
            read[consumer] += values(b"".join(found.chunks))
            offsets[consumer] = after(found)
    assert read[0] == read[1] == read[2]
    assert len(read[0]) > 6 * AT_ONCE / SIZE / 2
    # After the first round only the consumer ahead of the others has anything read of the log.
    assert costs[6:] == 4 * [
        1 + looked_at_the_first_entry,
        looked_at_the_first_entry,
        looked_at_the_first_entry,
    ]


@BOTH
def test_what_another_consumer_got_hides_no_moved_start(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    state = filled(here, storage_format).partitions[0].state
    offsets = [after(fetch(here, fetch(here, 0).log_start))] * 2
    for _ in range(3):
        offsets = [after(fetch(here, offset)) for offset in offsets]
    ahead = after(fetch(here, offsets[0]))
    [piece] = [each for each in here.fetcher._reader._ahead._pieces.values() if each.found is not None][-1:]
    assert piece.read.offset == offsets[1]
    change_log(raw_redis, state, start=ahead, first=ahead)
    assert fetch(here, offsets[1]).error is ErrorCode.OFFSET_OUT_OF_RANGE
    found = fetch(here, ahead)
    assert (found.error, found.log_start) == (ErrorCode.NONE, ahead)


def test_an_end_that_was_read_ahead_is_not_held_for_others(
    here: Domain, ahead: ReadAhead, partition: Partition
) -> None:
    """They would find nothing there again and again, whatever has come since."""
    for _ in range(2):
        ahead.begin(Read(partition, RECORDS, 9), 100)
    here.append("orders", b"later")
    [outcome] = ahead.read([Read(partition, RECORDS, 9)], ahead.now())
    assert isinstance(outcome, Fetched)
    assert (outcome.holds_any, outcome.more) == (False, True)
    [outcome] = ahead.read([Read(partition, RECORDS, 9)], ahead.now())
    assert isinstance(outcome, Fetched)
    assert outcome.next_offset == RECORDS + 1


def test_a_consumer_alone_shares_nothing(ahead: ReadAhead, partition: Partition) -> None:
    for begun, following in ((8, 8), (12, 16), (24, 20)):
        # For the next round of a fetch, which is not made; and for the next fetch.
        ahead.begin(Read(partition, begun, 1), 100, for_next=False)
        ahead.begin(Read(partition, following, 1), 100)
        ahead.read([Read(partition, following, 1)], since=ahead.now())
        assert ahead._pieces == {}
    ahead.begin(Read(partition, 28, 1), 100)
    ahead.begin(Read(partition, 28, 1), 100)  # of another consumer
    [found] = ahead.read([Read(partition, 28, 1)], since=ahead.now())
    assert [piece.found == found for piece in ahead._pieces.values()] == [True]


def test_a_read_of_less_does_not_get_what_was_read_ahead(ahead: ReadAhead, partition: Partition) -> None:
    ahead.begin(Read(partition, 8, 10), 100)
    [outcome] = ahead.read([Read(partition, 8, 10, end=12)], ahead.now())
    assert isinstance(outcome, Fetched)
    assert outcome.next_offset == 12
    assert len(ahead._pieces) == 1


def test_what_consumers_got_is_forgotten_if_nothing_else_is_begun(
    store: LogStore, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.log.readahead.HELD_SECONDS_MAX", 0.01)
    times = [0.0]
    ahead = ReadAhead(store, clock=lambda: times[0])
    for _ in range(2):
        ahead.begin(Read(partition, 8, 1), 100)
    piece = ahead._taken(Read(partition, 8, 1))
    assert piece is not None
    times[0] = 1.0
    until(lambda: not ahead._fronts)
    ahead._shared.add(partition.stream)
    assert ahead._held(piece) is not None
    assert ahead._held_bytes == 100
    times[0] = 2.0
    until(lambda: ahead._expiring is None)
    assert (ahead._held_bytes, ahead._pieces, ahead._shared, ahead._fronts) == (0, {}, set(), {})


def test_what_consumers_got_makes_room_for_what_is_read_ahead(
    ahead: ReadAhead, partition: Partition, raw_redis: redis.Redis
) -> None:
    ahead._shared.add(partition.stream)
    half = HELD_BYTES_MAX // 2
    for offset in range(2):
        ahead.begin(Read(partition, offset, 1), half)
        ahead._shared.add(partition.stream)
        ahead.read([Read(partition, offset, 1)], since=0.0)
    assert [piece.found is not None for piece in ahead._pieces.values()] == [True, True]
    ahead.begin(Read(partition, 2, 1), half)
    assert [piece.read.offset for piece in ahead._pieces.values()] == [1, 2]
    assert ahead._held_bytes == HELD_BYTES_MAX
    ahead.begin(Read(partition, 3, 1), half)
    assert [piece.read.offset for piece in ahead._pieces.values()] == [2, 3]
    ahead.begin(Read(partition, 4, 1), 1)
    assert [piece.read.offset for piece in ahead._pieces.values()] == [2, 3]


@BOTH
def test_the_answer_is_prepared_before_it_is_asked_for(here: Domain, storage_format: str) -> None:
    filled(here, storage_format)
    at_once = max(AT_ONCE, PREPARED_BYTES_MIN[storage_format])
    first = fetch(here, 0, at_once)
    end_reading_ahead(here)
    [piece] = here.fetcher._reader._ahead._pieces.values()
    assert piece.preparing is not None
    outcome = piece.preparing.value
    assert isinstance(outcome, Fetched)
    assert isinstance(outcome.prepared, PreparedCollector)
    second = fetch(here, after(first), at_once)
    assert second.record_count == outcome.prepared.collector.record_count > 10
    assert second.chunks == outcome.prepared.collector.finish()


@BOTH
@pytest.mark.parametrize("bytes_max", [1, SIZE, AT_ONCE // 3, AT_ONCE * 3])
def test_a_fetch_of_another_size_gets_what_it_asks_for(
    here: Domain, bytes_max: int, storage_format: str
) -> None:
    filled(here, storage_format)
    offset = after(fetch(here, 0))
    end_reading_ahead(here)
    [found] = here.fetch(here.wanted("orders", offset=offset, bytes_max=bytes_max))
    [expected] = Fetcher(here.log, here.subscriptions, NO_LAKE).fetch(
        [here.wanted("orders", offset=offset, bytes_max=bytes_max)], FetchLimits(0, 1, 50 << 20)
    )
    assert values(b"".join(found.chunks)) == values(b"".join(expected.chunks)) != []
    assert found.size_bytes <= max(bytes_max, 5 * SIZE)


def test_what_was_prepared_for_another_configuration_is_not_served(here: Domain) -> None:
    topic = filled(here, "record")
    offset = after(fetch(here, 0))
    end_reading_ahead(here)
    changed = msgspec.structs.replace(topic, config=msgspec.structs.replace(topic.config, codec=Codec.gzip))
    wanted = here.wanted("orders", offset=offset, bytes_max=AT_ONCE)
    [found] = here.fetch(msgspec.structs.replace(wanted, topic=changed))
    assert {header.codec for header in headers_of(b"".join(found.chunks))} == {Codec.gzip}


@BOTH
def test_what_was_read_ahead_hides_neither_a_moved_start_nor_a_deletion(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    topic = filled(here, storage_format)
    fetch(here, 0)
    found = fetch(here, 0)
    offset = after(found)
    end_reading_ahead(here)
    state = topic.partitions[0].state
    change_log(raw_redis, state, start=offset + 1, first=offset + 1)
    assert fetch(here, offset).error is ErrorCode.OFFSET_OUT_OF_RANGE
    change_log(raw_redis, state, start=0, first=0)
    found = fetch(here, offset)
    end_reading_ahead(here)
    raw_redis.delete(state)
    offset = after(found)
    assert fetch(here, offset).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@BOTH
def test_a_fetch_at_the_end_of_a_log_reads_nothing_ahead(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    """What would be read there is too little: it would only make the answers smaller."""
    here.topics.create(TopicSpec(name="orders", configs={"storage.format": storage_format}))
    offset = here.append("orders", b"0")
    for number in range(1, 5):
        assert values(b"".join(fetch(here, offset).chunks)) == [b"%d" % (number - 1)]
        offset = here.append("orders", b"%d" % number)
        with commands_of(raw_redis) as ran:
            fetch(here, offset)
            end_reading_ahead(here)
        assert ran["xrange"] == 1


def test_only_so_much_is_held(ahead: ReadAhead, partition: Partition, raw_redis: redis.Redis) -> None:
    with commands_of(raw_redis) as ran:
        ahead.begin(Read(partition, 4, 1), HELD_BYTES_MAX + 1)
        for offset in (8, 12, 16):  # of a partition the last only
            ahead.begin(Read(partition, offset, 1), HELD_BYTES_MAX)
        [outcome] = ahead.read([Read(partition, 16, 1)], ahead.now())
    assert isinstance(outcome, Fetched)
    assert outcome.next_offset == 20
    assert ran["xrange"] == 3
    with commands_of(raw_redis) as ran:
        ahead.read([Read(partition, 12, 1)], ahead.now())
    assert ran["xrange"] == 1


def test_what_nobody_comes_for_is_forgotten(
    store: LogStore, partition: Partition, raw_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.log.readahead.HELD_SECONDS_MAX", 0.01)
    times = [0.0]
    ahead = ReadAhead(store, clock=lambda: times[0])
    with commands_of(raw_redis) as ran:
        ahead.begin(Read(partition, 4, 1), HELD_BYTES_MAX)
        times[0] = HELD_SECONDS_MAX
        until(lambda: not ahead._pieces)
        ahead.begin(Read(partition, 8, 1), HELD_BYTES_MAX)
        ahead.read([Read(partition, 4, 1)], 0.0)
    assert ran["xrange"] == 3


def test_a_read_that_is_made_again_has_its_own_bounds(
    here: Domain, ahead: ReadAhead, store: LogStore, partition: Partition
) -> None:
    ahead.begin(Read(partition, 4, 1), 100)
    here.redis.node_of(partition.stream).reconnect("for the test")
    bounds = store.bounds

    def before_others_append(partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        found = bounds(partitions)
        here.append("orders", b"later")
        return found

    store.bounds = before_others_append  # type: ignore[method-assign]  # what another worker does meanwhile
    [outcome] = ahead.read([Read(partition, 4, 1)], ahead.now())
    assert isinstance(outcome, Fetched)
    assert outcome.high_watermark == RECORDS + 1


def test_an_end_read_ahead_is_that_of_the_epoch_in_which_it_was_read(
    here: Domain, ahead: ReadAhead, store: LogStore, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    node = here.redis.node_of(partition.stream)
    epochs = store.epochs
    epochs.of(node)
    store.read([Read(partition, 4, 1)])
    ahead.begin(Read(partition, 8, 1), 100)
    here.append("orders", b"later")
    store.read([Read(partition, 4, 1)])
    epochs.refresh(
        node, epochs.known(node) + 1000
    )  # in the same history, as where a slot brings later epochs
    [outcome] = ahead.read([Read(partition, 8, 1)], 0.0)
    assert isinstance(outcome, Fetched)
    assert "lost records" not in caplog.text


def test_nothing_is_read_ahead_while_redis_is_away(
    here: Domain, ahead: ReadAhead, partition: Partition, raw_redis: redis.Redis
) -> None:
    here.redis.node_of(partition.stream).reconnect("for the test")
    with commands_of(raw_redis) as ran:
        ahead.begin(Read(partition, 4, 1), 100)
        [outcome] = ahead.read([Read(partition, 4, 1)], ahead.now())
    assert isinstance(outcome, Fetched)
    assert ran["xrange"] == 1
