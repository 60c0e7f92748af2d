"""Fetch on a real log: errors, and whose turn it is; core/proto/tests/fetch_flow has budgets, bounds and waiting."""

from __future__ import annotations

import gevent
import pytest

from korvet.errors import ErrorCode
from korvet.topics.registry import TopicSpec
from tests.support.batches import values
from tests.support.domain import Domain
from tests.support.fetching import FetchResult

LONG_MS = 30_000


def values_of(result: FetchResult) -> list[bytes | None]:
    return values(b"".join(result.chunks))


def filled(view: Domain, partitions: int, records: int, size: int, storage_format: str = "record") -> None:
    configs = {"storage.format": storage_format}
    view.topics.create(TopicSpec(name="orders", partitions=partitions, configs=configs))
    for partition in range(partitions):
        for _ in range(records):
            view.append("orders", b"x" * size, partition=partition)


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
        [result] = here.fetch(here.wanted("orders"))
    assert result.error == ErrorCode.UNKNOWN_SERVER_ERROR


def test_errors_stand_beside_the_others(here: Domain) -> None:
    filled(here, 3, 1, 10)
    wanted = [here.wanted("orders", 0), here.wanted("orders", 1, offset=2**53), here.wanted("orders", 2)]
    results = here.fetch(*wanted, wait_ms=LONG_MS, bytes_min=10_000)
    assert [result.error for result in results] == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NONE,
    ]
    assert [len(values_of(result)) for result in results] == [1, 0, 1]


def test_a_fetch_over_partitions_that_were_read_by_others_waits_for_the_right_one(
    here: Domain, there: Domain
) -> None:
    filled(here, 5, 0, 0)
    wanted = [here.wanted("orders", partition) for partition in range(5)]
    for partition in (3, 0, 4):
        ends = [here.fetch(item)[0].high_watermark for item in wanted]
        at_end = [here.wanted("orders", place, offset=end) for place, end in enumerate(ends)]
        waiting = here.begin_fetch(*at_end)
        there.append("orders", b"news", partition=partition)
        results = waiting.get(timeout=30)
        assert [len(values_of(result)) for result in results] == [
            int(place == partition) for place in range(5)
        ]
