"""What processes take of the machine, from /proc of real ones."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from korvet.telemetry.process_metrics import ProcessCollector, usage_of
from korvet.telemetry.process_table import (
    ARCHIVER_ROW,
    KEEPER_ROW,
    LAKE_ROW,
    OPS_ROW,
    ProcessState,
    ProcessTable,
)
from tests.support.broker import korvet_broker
from tests.support.ops import page


def test_a_process_is_told_with_its_start_memory_files_and_cpu(tmp_path: Path) -> None:
    usage = usage_of(os.getpid())
    assert usage is not None
    opened = [(tmp_path / str(number)).open("w") for number in range(50)]
    began, spent = time.process_time(), 0.0
    while spent < 0.1:
        spent = time.process_time() - began
    later = usage_of(os.getpid())
    for file in opened:
        file.close()
    assert later is not None
    assert later.cpu_seconds - usage.cpu_seconds >= 0.05  # it is counted in hundredths of a second
    assert later.open_files >= 50
    assert later.started_at == usage.started_at
    assert usage.resident_bytes > 1 << 20


def test_a_process_that_is_gone_is_told_nothing_of() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert usage_of(ended.pid) is None
    assert usage_of(0) is None


def test_a_name_with_blanks_and_brackets_misleads_nobody(tmp_path: Path) -> None:
    fields = ["S", *(str(number) for number in range(4, 53))]
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "0").touch()
    (process / "stat").write_text(f"7 (a ) S (b) {' '.join(fields)}\n")
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\nprocesses 5\n")
    usage = usage_of(7, tmp_path)
    assert usage is not None
    ticks, page_size = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    # The fields hold their own numbers, as proc(5) counts them.
    assert usage == ((14 + 15) / ticks, 1_700_000_000 + 22 / ticks, 24 * page_size, 1)


def test_every_child_that_there_may_be_is_told_while_it_is_there() -> None:
    table = ProcessTable()
    for row in (OPS_ROW, KEEPER_ROW, LAKE_ROW, ARCHIVER_ROW, 3, 4):
        table.start(row)
        table.started(row, os.getpid())
    table.set(4, ProcessState.DEAD)
    families = {family.name: family for family in ProcessCollector(table, os.getpid()).collect()}
    named = [sample.labels["process"] for sample in families["korvet_process_resident_bytes"].samples]
    assert sorted(named) == ["archiver", "keeper", "lake", "ops", "supervisor", "worker-3"]


def test_every_process_of_a_broker_is_told_by_name(tmp_path: Path) -> None:
    with korvet_broker(tmp_path) as broker:
        samples = {}
        for family in text_string_to_metric_families(page(broker, "/metrics")):
            for sample in family.samples:
                samples[sample.name, sample.labels.get("process")] = sample.value
        named = {process for name, process in samples if name == "korvet_process_resident_bytes"}
        assert named == {"supervisor", "keeper", "ops", "worker-0", "worker-1"}
        started = samples["korvet_start_time_seconds", None]
        assert started == samples["korvet_process_start_time_seconds", "supervisor"]
        assert samples["korvet_process_start_time_seconds", "worker-0"] >= started
