"""Appending for producers: what is begun, in which order it is written, and what it takes of memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gevent
import pytest
import redis
from gevent import socket

from korvet import turns
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log import append
from korvet.log.append import COPIES, RECORD_BYTES, AppendResult, PendingAppends
from korvet.log.types import Appended
from korvet.topics.registry import TopicSpec
from korvet.topics.types import Partition, PartitionRef, TopicRef
from tests.support import redis_servers
from tests.support.batches import CODECS, LZ4, ZSTD, batch, forged, raw
from tests.support.domain import Domain, domain
from tests.support.log_bench import LAYOUTS, Layout, code_of, configs_of
from tests.support.processes import wait_until
from tests.support.proxy import turn, until

ORDERS = "orders"


def begin(view: Domain, sequence: int) -> PendingAppends:
    delivery = PartitionRef(TopicRef(ORDERS), 0, batch(b"v", producer_id=5, epoch=0, sequence=sequence))
    return view.appender.begin([delivery], zstd_known=True)


def begin_any(view: Domain, **options: Any) -> PendingAppends:
    """Begin an append without a sequence, which nothing keeps from being written out of turn."""
    return view.appender.begin([PartitionRef(TopicRef(ORDERS), 0, batch(b"v"))], zstd_known=True, **options)


def offset(delivering: PendingAppends) -> int:
    [result] = delivering.result()
    assert isinstance(result, Appended), result
    return result.base_offset


# More entries of others than an append deals with itself: in format record one that no offset names is enough.
@pytest.mark.parametrize(("storage_format", "external"), [("record", 1), ("batch", 1001)])
def test_what_had_to_be_sent_again_says_so_and_what_overtook_it_comes_after_it(
    here: Domain, raw_redis: redis.Redis, storage_format: str, external: int
) -> None:
    here.topics.create(TopicSpec(name=ORDERS, configs={"storage.format": storage_format}))
    first = offset(begin(here, 0))
    newest: Any = raw_redis.xrevrange("korvet:orders:0", count=1)
    ms = int(newest[0][0].split(b"-")[0])
    with raw_redis.pipeline() as pipeline:
        for number in range(external):
            pipeline.xadd("korvet:orders:0", {"value": "external"}, id=f"{ms}-{5000 + number}")
        pipeline.execute()
    second, third = begin(here, 1), begin(here, 2)
    assert [second.in_order, third.in_order] == [True, True]
    offsets = [first, offset(second)]
    assert [second.in_order] == [False]
    fourth = begin(here, 3)  # too early: the third has to be sent again
    offsets += [offset(third), offset(fourth)]
    assert offsets == sorted(set(offsets))


def test_nothing_begins_while_appends_whose_script_was_missing_are_under_way(
    here: Domain, raw_redis: redis.Redis
) -> None:
    here.topics.create(TopicSpec(name=ORDERS))
    first = offset(begin_any(here))
    raw_redis.script_flush()
    begun = [begin_any(here), begin_any(here)]
    offsets = [first, offset(begun[0])]
    # As a connection does: the next request begins at once if that keeps its order.
    if begun[0].in_order:
        begun.append(begin_any(here))
    offsets += [offset(each) for each in begun[1:]]
    assert offsets == sorted(offsets)
    assert [each.in_order for each in begun] == [False, False]


def test_nothing_begins_once_a_script_is_loaded_that_may_have_been_missing(
    here: Domain, raw_redis: redis.Redis
) -> None:
    here.topics.create(TopicSpec(name=ORDERS))
    offset(begin_any(here))
    raw_redis.script_flush()
    begun, another = begin_any(here), begin_any(here)
    before = begun.in_order
    offset(another)  # that of another connection
    assert (before, begun.in_order) == (True, False)
    offset(begun)


def test_what_is_prepared_while_a_missing_script_is_loaded_waits_for_its_turn(
    here: Domain, raw_redis: redis.Redis
) -> None:
    here.topics.create(TopicSpec(name=ORDERS))
    offset(begin_any(here))
    raw_redis.script_flush()
    another, first = begin_any(here), begin_any(here)

    def wait(_: Partition) -> None:
        if another.ready:
            offset(another)

    until(lambda: another.ready)
    second = begin_any(here, check_acks=wait, version=here.redis.order.version)
    assert [first.in_order, second.in_order] == [False, False]
    assert offset(first) < offset(second)


def test_an_append_that_others_outrun_is_refused(
    here: Domain, raw_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.log.group_commit.ROUNDS_MAX", 1)
    here.topics.create(TopicSpec(name=ORDERS))
    offset(begin_any(here))
    newest: Any = raw_redis.xrevrange("korvet:orders:0", count=1)
    ms = int(newest[0][0].split(b"-")[0])
    raw_redis.xadd("korvet:orders:0", {"value": "external"}, id=f"{ms}-5000")
    [refused] = begin_any(here).result()
    assert isinstance(refused, KafkaError)
    assert offset(begin_any(here))


def test_a_gap_is_no_fault_of_the_producer_while_redis_comes_back(
    here: Domain, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.topics.create(TopicSpec(name=ORDERS))
    offset(begin(here, 0))
    raw_redis.client_kill_filter(_type="normal", skipme=True)
    lost = begin(here, 1)
    [result] = lost.result()
    assert isinstance(result, KafkaError)
    [result] = begin(here, 2).result()
    assert isinstance(result, KafkaError)
    assert result.code == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.setattr(append, "RECOVERY_SECONDS", 0.0)
    [result] = begin(here, 2).result()
    assert code_of(result) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_stays_one_beside_a_log_that_cannot_be_read(here: Domain, raw_redis: Any) -> None:
    for name in (ORDERS, "damaged"):
        here.topics.create(TopicSpec(name=name))
    offset(begin(here, 0))
    raw_redis.delete("korvet:damaged:0")
    raw_redis.set("korvet:damaged:0", "no stream")
    [damaged] = here.appender.append([PartitionRef(TopicRef("damaged"), 0, batch())], zstd_known=True)
    assert code_of(damaged) == ErrorCode.KAFKA_STORAGE_ERROR
    [result] = begin(here, 2).result()
    assert code_of(result) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_after_a_refusal_for_want_of_replicas_is_no_fault_of_the_producer(
    here: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.topics.create(TopicSpec(name=ORDERS, configs={"min.insync.replicas": "2"}))
    refusals = iter([False, True])  # then none

    def check_acks(_partition: Partition) -> None:
        if next(refusals, False):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "")

    def append_at(sequence: int) -> AppendResult:
        delivery = PartitionRef(TopicRef(ORDERS), 0, batch(b"v", producer_id=5, epoch=0, sequence=sequence))
        pending = here.appender.begin([delivery], zstd_known=True, check_acks=check_acks)
        [result] = pending.result()
        return result

    assert isinstance(append_at(0), Appended)
    refused, early = append_at(1), append_at(2)
    assert code_of(refused) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert code_of(early) == ErrorCode.KAFKA_STORAGE_ERROR
    assert isinstance(append_at(1), Appended)


def test_what_is_decoded_is_reserved_before_others_have_their_turn(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    size = 100_000
    with domain(redis_url) as here:
        here.topics.create(TopicSpec(name=ORDERS, partitions=3))
        held = 0
        seen: list[int] = []

        def hold(more: int) -> None:
            nonlocal held
            held += more

        watching = gevent.spawn(lambda: seen.append(held))
        sent = batch(bytes(size), codec=LZ4)
        deliveries = [PartitionRef(TopicRef(ORDERS), index, sent) for index in range(3)]
        pending = here.appender.begin(deliveries, zstd_known=True, reserve_memory=hold)
        watching.join()
        assert seen[0] >= size
        assert [type(result) for result in pending.result()] == [Appended] * 3


def test_others_have_their_turn_between_batches_that_are_refused(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    with domain(redis_url) as here:
        here.topics.create(TopicSpec(name=ORDERS, partitions=3))
        wrong = raw(b"no frame", codec=LZ4)
        deliveries = [PartitionRef(TopicRef(ORDERS), index, wrong) for index in range(3)]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            other = gevent.spawn(ours.recv, 1)
            turn()
            theirs.send(b"a request")
            pending = here.appender.begin(deliveries, zstd_known=True)
            assert other.dead
        assert {code_of(result) for result in pending.result()} == {ErrorCode.INVALID_RECORD}


def test_the_most_replicas_are_known_once_all_batches_are_sent(redis_url: str) -> None:
    with domain(redis_url, Settings(record_decompressed_max_bytes=100_000)) as here:
        here.topics.create(TopicSpec(name=ORDERS))
        here.topics.create(TopicSpec(name="safe", configs={"min.insync.replicas": "3"}))
        sent = batch(bytes(90_000), codec=LZ4)
        deliveries = [PartitionRef(TopicRef(name), 0, sent) for name in (ORDERS, ORDERS, "safe")]
        pending = here.appender.begin(deliveries, zstd_known=True)
        assert pending.replicas == 0
        assert [type(result) for result in pending.result()] == [Appended] * 3
        assert pending.replicas == 2


def test_a_request_is_decoded_in_pieces_of_which_it_holds_one_at_a_time(redis_url: str) -> None:
    size, partitions, bytes_max = 50_000, 12, 100_000
    with domain(redis_url, Settings(record_decompressed_max_bytes=bytes_max)) as here:
        here.topics.create(TopicSpec(name=ORDERS, partitions=partitions))
        sent = batch(bytes(size), codec=LZ4)
        find = TopicRef(ORDERS)
        held, most = 0, 0

        def hold(more: int) -> None:
            nonlocal held, most
            held += more
            most = max(most, held)

        deliveries = [PartitionRef(find, index, sent) for index in range(partitions)]
        delivering = here.appender.begin(deliveries, zstd_known=True, reserve_memory=hold)
        assert not delivering.in_order
        assert held >= bytes_max
        assert [type(result) for result in delivering.result()] == [Appended] * partitions
        assert bytes_max <= most < bytes_max + COPIES * (size + 100) + RECORD_BYTES


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_that_is_too_large_once_decompressed_is_refused_in_every_layout(
    redis_url: str, codec: int, layout: Layout
) -> None:
    with domain(redis_url, Settings(record_decompressed_max_bytes=100_000)) as here:
        here.topics.create(TopicSpec(name=ORDERS, configs=configs_of(layout)))
        sent = (
            PartitionRef(TopicRef(ORDERS), 0, batch(bytes(size), codec=codec)) for size in (99_900, 100_000)
        )
        fits, refused = here.appender.append(list(sent), zstd_known=True)
        assert isinstance(fits, Appended)
        assert code_of(refused) == ErrorCode.MESSAGE_TOO_LARGE


def test_where_the_registry_cannot_be_read_after_a_fence_the_other_answers_stay(
    here: Domain, there: Domain, raw_redis: redis.Redis
) -> None:
    for name in (ORDERS, "others"):
        here.topics.create(TopicSpec(name=name))
    there.topics.delete([there.topics.get(ORDERS)])
    raw_redis.set("{korvet:topics}:changes", "no sorted set")
    deliveries = [PartitionRef(TopicRef(name), 0, batch()) for name in (ORDERS, "others")]
    fenced, written = here.appender.append(deliveries, zstd_known=True)
    assert isinstance(fenced, KafkaError)
    assert isinstance(written, Appended)


def test_too_many_records_for_one_script_are_refused_by_the_header(
    here: Domain, raw_redis: redis.Redis
) -> None:
    configs = {"max.message.records": "3"}
    here.topics.create(TopicSpec(name=ORDERS, configs=configs))
    here.topics.create(TopicSpec(name="whole", configs=configs | {"storage.format": "batch"}))
    four = batch(b"1", b"2", b"3", b"4")
    # What cannot be decompressed shows that the count is read first.
    claims = 2**31 - 1
    undecodable = forged(four, attributes=ZSTD, record_count=claims, last_offset_delta=claims - 1)
    sent = [
        PartitionRef(TopicRef(name), 0, records)
        for name, records in [
            (ORDERS, four),
            (ORDERS, undecodable),
            (ORDERS, batch(b"1", b"2", b"3")),
            ("whole", four),
        ]
    ]
    many, claimed, fits, whole = here.appender.append(sent, zstd_known=True)
    for refused in (many, claimed):
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.MESSAGE_TOO_LARGE
        assert "max.message.records = 3" in refused.message
    assert isinstance(fits, Appended)
    assert isinstance(whole, Appended)
    assert raw_redis.xlen("korvet:orders:0") == 3


@pytest.mark.slow
def test_a_redis_that_is_busy_with_a_script_has_written_nothing_and_says_so() -> None:
    with (
        redis_servers.embedded_server("--busy-reply-threshold", "1") as url,
        domain(url) as here,
        redis.Redis.from_url(url) as stored,
        ThreadPoolExecutor(1) as other,
    ):
        here.topics.create(TopicSpec(name=ORDERS))
        first = offset(begin(here, 0))
        running = other.submit(stored.eval, "while true do end", 0)
        with redis.Redis.from_url(url) as watcher:
            wait_until(lambda: _is_busy(watcher), "a script that blocks Redis")
            [refused] = begin(here, 1).result()
            watcher.script_kill()
            assert isinstance(running.exception(), redis.ResponseError)
            # Known to be not written: neither is the batch in the log, nor is its producer to find that out.
            assert type(refused) is StorageUnavailableError
            assert watcher.xlen("korvet:orders:0") == 1
        assert offset(begin(here, 1)) > first


def _is_busy(watcher: redis.Redis) -> bool:
    try:
        watcher.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error) or "busy" in str(error)
    return False
