"""The index of a compacted log: right after each pass, right when it is rebuilt, and a base for the next pass."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.log.index import RowBuilder
from korvet.log.index_repair import IndexRepair
from korvet.log.offsets import OffsetFound, OffsetQuery
from korvet.protocol.types import SpecialTimestamp
from tests.log.compacting import CompactedLog
from tests.support.batches import TIMESTAMP
from tests.support.domain import Domain


@pytest.fixture(params=["record", "batch"])
def log(
    here: Domain, raw_redis: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CompactedLog:
    """Give a log whose rows stand close together."""
    monkeypatch.setattr(RowBuilder, "records_per_row", 5)
    return CompactedLog(here, raw_redis, request.param)


def fill(log: CompactedLog, batches: int, keys: int) -> None:
    """Append batches whose timestamps go up and down."""
    for n in range(batches):
        pairs = [(b"key-%d" % ((n * 5 + at) % keys), b"%d" % (n * 5 + at)) for at in range(5)]
        log.append(*pairs, timestamp=TIMESTAMP + (n * 37) % 50)


def mend(log: CompactedLog) -> list[Any]:
    return list(IndexRepair(log.here.redis).repair([log.partition], lambda: None))


def check_times(log: CompactedLog) -> None:
    """Ask for every timestamp, and for the largest; compare with what a consumer reads."""
    left = log.read()
    largest = max(held.timestamp for held in left)
    for wanted in range(TIMESTAMP - 1, TIMESTAMP + 52):
        [found] = log.here.offsets.find([OffsetQuery(log.partition, wanted)])
        expected = [held.offset for held in left if held.timestamp >= wanted]
        assert isinstance(found, OffsetFound)
        assert found.offset == (expected[0] if expected else -1)
    [found] = log.here.offsets.find([OffsetQuery(log.partition, SpecialTimestamp.MAX_TIMESTAMP)])
    assert isinstance(found, OffsetFound)
    assert found.offset == next(held.offset for held in left if held.timestamp == largest)


def records_by_the_state(log: CompactedLog) -> int:
    return log.field("next" if log.partition.format == "batch" else "records") - log.field("start_records")


def test_after_a_pass_the_index_is_right(log: CompactedLog) -> None:
    for keys in (70, 90, 30):
        fill(log, 20, keys)
        log.compacted()
        assert mend(log) == []
        assert records_by_the_state(log) == len(log.read())
        check_times(log)


def test_a_lost_index_is_rebuilt_for_what_is_left(log: CompactedLog) -> None:
    fill(log, 30, 60)
    log.compacted()
    fill(log, 4, 60)
    log.raw.delete(log.partition.index_key)
    log.raw.hset(log.partition.state, "reindex", "1")
    assert len(mend(log)) == 1
    assert mend(log) == []
    assert records_by_the_state(log) == len(log.read())
    check_times(log)
    done = log.compacted()
    assert log.read() == log.expected(done.compacted_end)
    assert records_by_the_state(log) == len(log.read())
    check_times(log)
