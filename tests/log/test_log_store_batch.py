"""The log store in format `batch`: whole batches at dense offsets, and nothing of what others write."""

from __future__ import annotations

import logging

import pytest
from korvet_core import Fetched

from korvet.errors import ErrorCode, KafkaError
from korvet.log.external_entries import ExternalStep
from korvet.log.types import Read
from tests.support.log_bench import Bench, code_of
from tests.support.partition_state import change_log


@pytest.fixture
def bench(batch_bench: Bench) -> Bench:
    return batch_bench


# What others write.


def test_removed_entries_are_counted_and_warned_about(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.append(b"a")
    bench.external(1500)
    assert bench.logs.external.step(bench.partition) == ExternalStep(1000, 1, more=True)
    assert bench.logs.external.step(bench.partition) == ExternalStep(500, 1, more=False)
    assert bench.logs.external.step(bench.partition) == ExternalStep(0, 1, more=False)
    stream = bench.partition.stream
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", f"{stream}: 1000 entries that are no batches were removed"),
        ("WARNING", f"{stream}: 500 entries that are no batches were removed"),
    ]


def test_what_an_append_removes_is_warned_about_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for count in (1, 2):
        bench.external(count)
        bench.append(b"a")
    stream = bench.partition.stream
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", f"{stream}: 1 entry that is no batch was removed"),
        ("WARNING", f"{stream}: 2 entries that are no batches were removed"),
    ]


def test_external_entries_below_the_end_are_left_out_and_warned_about(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.append(b"a")
    bench.external(1, "0-3")
    # As only a client can that writes Korvet's own keys.
    change_log(bench.raw, bench.partition.state, next_offset=5)
    assert bench.append(b"b") == 5
    assert [record.value for record in bench.records()] == [b"a", b"b"]
    [(level, text)] = {(one.levelno, one.getMessage()) for one in caplog.records}
    assert level == logging.WARNING
    assert text == f"{bench.partition.stream}: 1 entry is no batch: not served"


# Damage.


def test_a_damaged_entry_is_one_clear_error_and_what_follows_can_be_read(bench: Bench) -> None:
    bench.append(b"a")
    bench.append(b"b")
    [(_, first), _] = bench.raw.xrange(bench.partition.stream)
    bench.raw.delete(bench.partition.stream)
    bench.raw.xadd(bench.partition.stream, first, id="0-1")
    bench.raw.xadd(bench.partition.stream, {"batch": "garbage"}, id="0-2")
    assert bench.append(b"c") == 2
    [damaged] = bench.logs.read([Read(bench.partition, 1, 10)])
    assert code_of(damaged) == ErrorCode.CORRUPT_MESSAGE
    assert isinstance(damaged, KafkaError)
    assert damaged.message.startswith(f"{bench.partition.stream}: an entry (0-2: ")
    [before] = bench.logs.read([Read(bench.partition, 0, 10)])
    assert isinstance(before, Fetched)
    assert (before.next_offset, before.more) == (1, True)
    assert [record.value for record in bench.records(0, count=1)] == [b"a"]
    assert [record.value for record in bench.records(2)] == [b"c"]
