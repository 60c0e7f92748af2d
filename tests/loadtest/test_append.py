"""loadtest/append: what a row sends is written, and what was refused is no measurement."""

from __future__ import annotations

import struct

import pytest

from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.embedded import find_program
from korvet.topics.entry_ids import BATCH
from loadtest.append.__main__ import measure, summary
from loadtest.append.rows import ROWS, Call, calls_of
from loadtest.redis_server import WrongError
from tests.support.append_scripts import VerdictCode

_DUPLICATES = next(row for row in ROWS if row.repeat)._replace(calls=4, records=2, repeat=2)


@pytest.fixture
def calls() -> list[Call]:
    """Return calls of one batch each, of which every second is a duplicate; no server gets them."""
    redis = Redis("unix:///nowhere", timeout_ms=1, connect_timeout_ms=1)
    return calls_of(_DUPLICATES, LogStore(redis, redis, Keys("k")).partition("t", 0, "id", BATCH, "batch"))


def answered(code: VerdictCode) -> bytes:
    """Return the answer of a script to one batch."""
    return struct.pack(">BIQQBQ", 0, 0, 0, 0, code, 0)


def test_a_duplicate_is_sent_again_by_the_script_alone(calls: list[Call]) -> None:
    assert [(call.written, call.plain.replies) for call in calls] == [(1, 1), (0, 0), (1, 1), (0, 0)]
    assert [call.duplicates for call in calls] == [[False], [True]] * 2
    assert calls[0].script.packed[-300:] == calls[1].script.packed[-300:] != calls[2].script.packed[-300:]


def test_a_batch_that_was_not_written_is_no_measurement(calls: list[Call]) -> None:
    calls[0].check(answered(VerdictCode.APPENDED))
    calls[1].check(answered(VerdictCode.DUPLICATE))
    for call, code in (
        (calls[0], VerdictCode.DUPLICATE),
        (calls[1], VerdictCode.APPENDED),
        (calls[0], VerdictCode.OUT_OF_ORDER),
    ):
        with pytest.raises(WrongError):
            call.check(answered(code))


@pytest.mark.slow
def test_each_row_is_measured() -> None:
    rows = [row._replace(calls=4, records=min(row.records, 3), repeat=min(row.repeat, 2)) for row in ROWS]
    version, measured = measure(find_program(), rows, 1)
    assert {len(samples) for samples in measured.values()} == {3}
    assert all(sample.ratio > 0 < sample.script_us for samples in measured.values() for sample in samples)
    lines = summary(version, measured).splitlines()
    assert [line[:42].rstrip() for line in lines] == [version, *(row.name for row in ROWS)]
