"""The log store in format `record`: records as entries, and entries of others as records."""

from __future__ import annotations

import logging

import pytest

from korvet.log.external_entries import ExternalStep
from korvet.log.types import Bounds
from tests.support.log_bench import BITS, Bench
from tests.support.partition_state import change_log


@pytest.fixture
def bench(record_bench: Bench) -> Bench:
    return record_bench


def test_an_offset_beyond_the_end_is_read_again_after_external_entries(bench: Bench) -> None:
    bench.append(b"a")
    bench.external(3)
    last = bench.raw.xrevrange(bench.partition.stream, count=1)[0][0].decode().split("-")
    offset = (int(last[0]) << BITS) + int(last[1])
    assert bench.read(offset + 1).high_watermark == offset + 1
    assert bench.records(offset)[0].value == b"2"


def test_an_external_entry_is_a_record_with_the_time_of_its_id(bench: Bench) -> None:
    entry_id = bench.raw.xadd(bench.partition.stream, {"value": "hello", "unit": "C"}).decode()
    ms, sequence = (int(part) for part in entry_id.split("-"))
    offset = (ms << BITS) + sequence
    result = bench.read(0)
    assert (result.log_start, result.first_offset, result.high_watermark) == (0, offset, offset + 1)
    assert (result.records(), result.more) == ([(offset, ms, None, b"hello", [("unit", b"C")])], False)
    assert bench.bounds() == Bounds(0, offset, offset + 1, ms)


def test_records_are_still_served_when_a_step_was_cut_short(bench: Bench) -> None:
    bench.append(b"own")
    bench.raw.xadd(bench.partition.stream, {"value": "waits"}, id=f"{2**60}-0")
    bench.raw.xadd(bench.partition.moving, {"id": f"{2**59}-0", "value": "was first"})
    change_log(bench.raw, bench.partition.state, moving=1)
    bench.raw.xdel(bench.partition.stream, f"{2**60}-0")
    bench.raw.xadd(bench.partition.moving, {"id": f"{2**60}-0", "value": "waits"})
    assert [value for _, value in bench.read_all()] == [b"own", b"was first", b"waits"]


def test_a_step_returns_and_logs_what_it_did(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert bench.logs.external.step(bench.partition) == ExternalStep(0, 0, more=False)
    bench.external(1500, f"{2**60}-*")
    first = bench.logs.external.step(bench.partition)
    assert (first.moved, first.high_watermark, first.more) == (0, 0, True)
    second = bench.logs.external.step(bench.partition)
    assert second.moved + bench.logs.external.step(bench.partition).moved == 1500
    assert "external entries got new offsets" in caplog.text


def test_a_damaged_value_is_logged_once_per_partition(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        bench.raw.xadd(bench.partition.stream, {"value": "plain", "korvet.encoding": "lz4"})
    assert [value for _, value in bench.read_all()] == [b"plain"] * 3
    assert bench.read_all()
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert bench.partition.stream in caplog.text
