"""loadtest/bench: what is sent, where it runs, the second client, and peers that cannot be had."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from korvet.protocol.compile import decode
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.records.batch import each_record
from loadtest import harness
from loadtest.bench import frames, librdkafka, toolchain
from loadtest.bench.cost import BROKER, REDIS, SWEEPS
from loadtest.bench.peers import KorvetBatch
from loadtest.harness import NotAvailableError
from tests.support.broker import korvet_broker

_HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len("bench")


def test_a_request_holds_as_many_records_as_are_asked_for() -> None:
    frame = frames.produce("t", 3, b"x" * 100, 2450)
    [topic] = decode(ProduceRequest, 8, frame, _HEADER_BYTES).topic_data
    [data] = topic.partition_data
    records = each_record(data.records or b"", 0, 1 << 20)
    assert (data.index, [value for _, _, _, value, _ in records]) == (3, [b"x" * 100] * 2450)


def test_each_point_of_the_cost_has_figures_of_its_own() -> None:
    figures = [
        sweep.figure(point, part) for sweep in SWEEPS for point in sweep.points for part in (BROKER, REDIS)
    ]
    assert len(set(figures)) == len(figures) == 2 * (6 + 4 + 4 + 4)


@pytest.mark.slow
def test_what_is_started_pinned_stays_on_its_cores_and_its_starter_does_not() -> None:
    before = os.sched_getaffinity(0)
    core = {max(before)}
    with harness.pinned(core):
        child = subprocess.Popen(["sleep", "60"])
    try:
        assert (os.sched_getaffinity(child.pid), os.sched_getaffinity(0)) == (core, before)
        harness.pin(child.pid, before)
        assert os.sched_getaffinity(child.pid) == before
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_librdkafka_reads_all_that_it_wrote(tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("one\ntwo\nthree\n")
    with korvet_broker(tmp_path) as broker:
        address: dict[str, object] = {"bootstrap": broker.bootstrap}
        for verb in ("produce", "consume"):
            count, seconds = librdkafka.run(verb, address, "second", 20_000, payloads)
            assert count == 20_000
            assert seconds > 0
        config = {"bootstrap.servers": broker.bootstrap, "log_level": "0"}
        with pytest.raises(AssertionError, match="only 20000 of 20001 records came"):
            librdkafka.consume(config, "second", 20_001, silence_seconds=1)


@pytest.mark.slow
def test_a_second_client_that_fails_names_its_reason(tmp_path: Path) -> None:
    address: dict[str, object] = {"bootstrap": "127.0.0.1:1"}
    with pytest.raises(NotAvailableError, match="librdkafka: FileNotFoundError"):
        librdkafka.run("produce", address, "second", 1, tmp_path / "none")


@pytest.mark.parametrize(("build", "program"), [(toolchain.kfake, "go"), (toolchain.tansu, "cargo")])
def test_a_broker_whose_compiler_is_missing_cannot_be_had(
    build: Callable[[], Path], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailableError, match=f"{program} is not on PATH"):
        build()


@pytest.mark.slow
def test_a_broker_that_does_not_start_is_reported_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "START_SECONDS_MAX", 5.0)
    monkeypatch.setattr(KorvetBatch, "workers", -1)
    with pytest.raises(NotAvailableError, match=r"it did not start: .*workers"):
        KorvetBatch(tmp_path).start()
