"""Appends of a worker: their order in Redis, and an outcome for each batch.

What the core decides by itself is tested in core/proto/tests; here it has a real Redis.
"""

from __future__ import annotations

from typing import Any

import gevent

from korvet.errors import (
    ErrorCode,
    RecordsRefusedError,
)
from korvet.log.store import LogStore
from korvet.log.types import Appended
from tests.support.appends import config_of
from tests.support.batches import Record
from tests.support.log_bench import Bench
from tests.support.proxy import turn, until


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def base(outcome: object) -> int:
    assert isinstance(outcome, Appended), outcome
    return outcome.base_offset


def append(logs: LogStore, *batches: Any) -> list[int]:
    return [base(outcome) for outcome in logs.append(batches)]


def test_if_who_waits_for_an_append_is_stopped_the_others_get_theirs(bench: Bench) -> None:
    bench.append(b"first")
    waiting = [gevent.spawn(bench.append, value) for value in values(3)]
    turn()  # all of them are sent
    waiting[0].kill()
    bases = [item.get() for item in waiting[1:]]
    assert bases == sorted(bases)
    assert bench.values() == [b"first", *values(3)]


def test_of_an_append_for_which_nobody_waits_any_more_nothing_is_kept(bench: Bench) -> None:
    bench.append(b"first")
    waiting = gevent.spawn(bench.append, b"second")
    turn()
    waiting.kill()
    until(lambda: bench.logs.appends.core.count == 0)
    assert bench.values() == [b"first", b"second"]


def test_external_entries_are_settled_for_all(bench: Bench) -> None:
    bench.append(b"first")
    bench.external(2500 if bench.format == "batch" else 2100)
    bases = append(bench.logs, *(bench.made(value) for value in values(3)))
    assert len({*bases}) == 3
    assert {*bench.values()[-3:]} == {*values(3)}


def test_a_refusal_names_the_records_that_are_wrong_and_still_does_without_its_frames(bench: Bench) -> None:
    config = config_of(cleanup_policy="compact")
    keyless = Record(b"v", None)
    [refused, taken] = bench.logs.append(
        [bench.made(b"a", keyless, config=config), bench.made(b"b", config=config)]
    )
    assert isinstance(refused, RecordsRefusedError)
    assert refused.code == ErrorCode.INVALID_RECORD
    bare = refused.without_frames()
    assert (bare.__traceback__, bare.__context__) == (None, None)
    assert [at for at, _ in bare.records] == [at for at, _ in refused.records] == [1]
    assert base(taken) >= 0
    assert bench.values() == [b"b"]


def test_a_fault_of_one_who_hears_of_appends_leaves_nobody_waiting(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("a fault")

    bench.logs.appends.on_noted = fail
    with gevent.Timeout(10):
        assert bench.append(b"a") < bench.append(b"b")
