"""Fetch on a real log: budgets over many partitions, bounds, and waiting."""

from __future__ import annotations

import gevent
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode
from korvet.redis.pubsub import Watch
from korvet.topics.registry import TopicSpec
from tests.support.batches import values
from tests.support.commands import commands_of
from tests.support.domain import Domain
from tests.support.fetching import FetchResult
from tests.support.proxy import until

LONG_MS = 30_000
END_COUNT = 32
"""Entries asked for at the end of a log that has been quiet."""


def values_of(found: FetchResult) -> list[bytes | None]:
    return values(b"".join(found.chunks))


def filled(view: Domain, partitions: int, records: int, size: int, storage_format: str = "record") -> None:
    configs = {"storage.format": storage_format}
    view.topics.create(TopicSpec(name="orders", partitions=partitions, configs=configs))
    for partition in range(partitions):
        for _ in range(records):
            view.append("orders", b"x" * size, partition=partition)


@pytest.mark.parametrize("storage_format", ["record", "batch"])
@pytest.mark.parametrize("bytes_max", [1, 500, 5_000, 20_000, 1_000_000])
def test_the_budget_of_a_request_holds_from_the_first_fetch_on(
    here: Domain, bytes_max: int, storage_format: str
) -> None:
    filled(here, 20, 5, 300, storage_format)
    wanted = [here.wanted("orders", partition) for partition in range(20)]
    for _ in range(3):
        found = here.fetch(*wanted, bytes_max=bytes_max)
        sizes = [sum(map(len, each.chunks)) for each in found]
        counts = [len(values_of(each)) for each in found]
        assert sum(sizes) <= max(bytes_max, 400)
        assert sizes == [each.size_bytes for each in found]
        assert counts == sorted(counts, reverse=True)  # in the order of the request
        assert counts[0] >= 1
        assert all(each.high_watermark > each.log_start >= 0 for each in found)


def test_an_empty_partition_does_not_use_up_the_one_record(here: Domain) -> None:
    filled(here, 4, 0, 0)
    here.append("orders", b"x" * 1000, partition=2)
    found = here.fetch(*(here.wanted("orders", partition) for partition in range(4)), bytes_max=1)
    assert [len(values_of(each)) for each in found] == [0, 0, 1, 0]


def test_batches_for_which_nothing_is_left_stay_in_redis(here: Domain, raw_redis: redis.Redis) -> None:
    configs = {"storage.format": "batch", "storage.compression": "none"}
    here.topics.create(TopicSpec(name="orders", partitions=30, configs=configs))
    for partition in range(30):
        here.append("orders", b"x" * 100_000, partition=partition)
    wanted = [here.wanted("orders", partition) for partition in range(30)]
    here.fetch(*wanted)  # now it is known what they weigh
    before = raw_redis.info("stats")["total_net_output_bytes"]
    found = here.fetch(*wanted, bytes_max=250_000)
    assert [bool(each.chunks) for each in found] == [True] * 2 + [False] * 28
    assert {(each.high_watermark, each.log_start) for each in found} == {(1, 0)}
    assert raw_redis.info("stats")["total_net_output_bytes"] - before < 1_000_000


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    each=st.integers(-1, 3000),
    bytes_max=st.integers(-1, 8000),
    order=st.permutations(range(6)),
    count=st.integers(1, 6),
)
def test_whatever_the_limits_a_consumer_gets_on_and_they_hold(
    here: Domain, each: int, bytes_max: int, order: list[int], count: int
) -> None:
    if not here.topics.list_all():
        filled(here, 6, 4, 500)
    wanted = [here.wanted("orders", partition, bytes_max=each) for partition in order[:count]]
    found = here.fetch(*wanted, bytes_max=bytes_max)
    sizes = [one.size_bytes for one in found]
    assert sizes[0] > 0
    assert sum(sizes) <= max(bytes_max, sizes[0])
    assert all(size <= max(each, 600) for size in sizes)
    assert sizes[0] <= max(min(each, bytes_max), 600)


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_what_comes_at_the_end_of_a_log_is_read_in_one_round_as_before(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    here.topics.create(TopicSpec(name="orders", configs={"storage.format": storage_format}))
    appends, records = (1, 3 * END_COUNT) if storage_format == "record" else (3 * END_COUNT, 1)
    rounds = []
    for _ in range(3):
        offset = min(here.append("orders", *[b"x"] * records) for _ in range(appends))
        with commands_of(raw_redis) as ran:
            [found] = here.fetch(here.wanted("orders", offset=offset))
        assert found.record_count == 3 * END_COUNT
        rounds.append(ran["exec"])
    assert rounds[2] == 1


@pytest.mark.parametrize("configs", [{"offset.encoding": "dense"}, {"storage.format": "batch"}])
def test_the_50_offsets_before_a_dense_end_are_the_newest_50_records(
    here: Domain, configs: dict[str, str]
) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=1, configs=configs))
    sent = [b"%d" % number for number in range(120)]
    for first in range(0, 120, 8):
        here.append("orders", *sent[first : first + 8])
    [at_start] = here.fetch(here.wanted("orders"))
    [newest] = here.fetch(here.wanted("orders", offset=at_start.high_watermark - 50))
    # A batch stored as it came comes whole; its consumer drops the records before the offset.
    assert values_of(newest)[-50:] == sent[-50:]
    assert len(values_of(newest)) == (50 if "offset.encoding" in configs else 56)


def test_a_decision_that_is_none_is_an_error_of_its_partition(
    here: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(here, 1, 1, 10)
    monkeypatch.setattr(
        here.fetches.clients, "decide", lambda _client, _word, some: [("nonsense",)] * len(some)
    )
    with gevent.Timeout(10):
        [found] = here.fetch(here.wanted("orders"))
    assert found.error == ErrorCode.UNKNOWN_SERVER_ERROR


def test_errors_stand_beside_the_others(here: Domain) -> None:
    filled(here, 3, 1, 10)
    wanted = [here.wanted("orders", 0), here.wanted("orders", 1, offset=2**53), here.wanted("orders", 2)]
    found = here.fetch(*wanted, wait_ms=LONG_MS, bytes_min=10_000)
    assert [each.error for each in found] == [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE]
    assert [len(values_of(each)) for each in found] == [1, 0, 1]


def test_a_fetch_over_partitions_that_were_read_by_others_waits_for_the_right_one(
    here: Domain, there: Domain
) -> None:
    filled(here, 5, 0, 0)
    wanted = [here.wanted("orders", partition) for partition in range(5)]
    for partition in (3, 0, 4):
        ends = [here.fetch(each)[0].high_watermark for each in wanted]
        at_end = [here.wanted("orders", place, offset=end) for place, end in enumerate(ends)]
        waiting = here.begin_fetch(*at_end)
        there.append("orders", b"news", partition=partition)
        found = waiting.get(timeout=30)
        assert [len(values_of(each)) for each in found] == [int(place == partition) for place in range(5)]


def test_a_drain_ends_every_wait(here: Domain) -> None:
    filled(here, 1, 0, 0)
    waiting = [here.begin_fetch(here.wanted("orders")) for _ in range(5)]
    assert not any(each.dead for each in waiting)
    here.log.appends.core.drain()
    for each in waiting:
        assert each.get(timeout=10)[0].error == ErrorCode.NONE
    assert here.fetch(here.wanted("orders"), wait_ms=LONG_MS)[0].chunks == []


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_wait_in_vain_ends_without_another_read_of_quiet_partitions(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    filled(here, 50, 1, 10, storage_format)
    ends = [here.fetch(here.wanted("orders", n))[0].high_watermark for n in range(50)]
    wanted = [here.wanted("orders", n, offset=end) for n, end in enumerate(ends)]
    with Watch(here.subscriptions, [spec.partition.channel for spec in wanted]) as subscribed:
        subscribed.listen()
        # It keeps the channels listened to, also if the machine is busy.
        other = here.begin_fetch(*wanted)
        with commands_of(raw_redis) as ran:
            found = here.fetch(*wanted, wait_ms=100)
        other.kill()
    assert ran["hmget"] == 50
    assert [each.high_watermark for each in found] == ends


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_an_entry_that_nobody_has_announced_is_found_at_the_end_of_a_wait(
    here: Domain, raw_redis: redis.Redis, storage_format: str
) -> None:
    filled(here, 50, 1, 10, storage_format)
    ends = [here.fetch(here.wanted("orders", n))[0].high_watermark for n in range(50)]
    wanted = [here.wanted("orders", n, offset=end) for n, end in enumerate(ends)]
    core = here.log.appends.core
    waiting = gevent.spawn(here.fetch, *wanted, wait_ms=500)
    until(lambda: core.parked)
    with commands_of(raw_redis) as ran:
        raw_redis.xadd("korvet:orders:7", {"value": "external"})
        found = waiting.get(timeout=30)
    counts = [len(values_of(each)) for each in found]
    assert counts == [int(n == 7 and storage_format == "record") for n in range(50)]
    assert ran["hmget"] < 10  # the others were not read
