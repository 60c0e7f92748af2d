"""A share group on a log that lies in Redis and in the lake: each record is delivered from where it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deltalake import DeltaTable

from korvet.share.types import RELEASE
from tests.log.lake import TOPIC, Tiers, tiers
from tests.share.test_fetch import Member, Worker
from tests.support.batches import Record
from tests.support.lake_service import LakeService, lake_service
from tests.support.virtual_clock import VirtualClock

pytestmark = pytest.mark.slow

COUNT, ARCHIVED, TRIMMED = 60, 40, 30


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeService]:
    with lake_service(tmp_path_factory.mktemp("lake"), tmp_path_factory.mktemp("socket")) as running:
        yield running


@pytest.fixture(params=["record", "batch"])
def two(request: pytest.FixtureRequest, redis_url: str, reader: LakeService) -> Iterator[Tiers]:
    """Make a log of 60 records, of which 40 are archived and 30 left in Redis."""
    with tiers(redis_url, reader, request.param) as made:
        offsets = [
            made.worker.append(TOPIC, *[Record(b"%d" % (first + at)) for at in range(5)])
            for first in range(0, COUNT, 5)
        ]
        made.archive(offsets[ARCHIVED // 5])
        made.trim(offsets[TRIMMED // 5])
        yield made


def drained(member: Member, **limits: int) -> list[tuple[Record, int]]:
    result: list[tuple[Record, int]] = []
    while some := member.poll(0, 7, **limits):
        assert len(some) <= 7
        result += some
    return result


def test_a_group_gets_both_tiers_without_a_seam(two: Tiers) -> None:
    result = drained(Worker(two.worker, VirtualClock()).member())
    assert [record.value for record, _ in result] == [b"%d" % number for number in range(COUNT)]


def test_what_is_released_is_delivered_again_from_the_lake(two: Tiers) -> None:
    worker = Worker(two.worker, VirtualClock())
    one, other = worker.member(), worker.member()
    results = drained(one)
    released = [results[at] for at in (0, 3, 28, 31, 59)]
    one.acknowledge(released, RELEASE)
    again = drained(other)
    assert again == [(record, 2) for record, _ in released]
    one.acknowledge([result for result in results if result not in released])
    other.acknowledge(again)
    assert drained(one) == []


def test_a_small_limit_of_bytes_is_kept_for_the_lake_too(two: Tiers) -> None:
    member = Worker(two.worker, VirtualClock()).member()
    assert len(member.poll(0, 500, bytes_max=1)) in (1, 5)
    assert drained(member, bytes_max=500)


def test_rows_that_a_user_has_deleted_from_the_table_are_passed_over(two: Tiers) -> None:
    DeltaTable(str(two.table)).delete("CAST(CAST(value AS STRING) AS INT) BETWEEN 15 AND 39")
    left = [*range(15), *range(TRIMMED, COUNT)]
    result = drained(Worker(two.worker, VirtualClock()).member())
    assert [record.value for record, _ in result] == [b"%d" % at for at in left]
