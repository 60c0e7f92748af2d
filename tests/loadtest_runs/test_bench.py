"""Short runs of `loadtest.bench` at a real Korvet: each scenario gives its figures, and what was sent is in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from loadtest import harness
from loadtest.bench import chart, cost, produce_loop, scale, toolchain
from loadtest.bench.load import Load
from loadtest.bench.peers import Kfake, KorvetBatch
from loadtest.bench.produce_loop import Bench, Requests
from loadtest.bench.results import Results
from loadtest.bench.run import Plan, Run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    toolchain.prepare()
    harness.allow_files()
    with Load(tmp_path_factory.mktemp("load")) as running:
        yield running


def run(directory: Path, load: Load, *scenarios: str) -> Results:
    """Run scenarios for one quick round with one peer, none of which may fail."""
    whole = Run(Plan(["korvet-batch"], scenarios, 1, 0.2, quick=True), directory, load)
    whole.whole()
    assert (whole.results.failures, whole.results.absent) == ([], {})
    return whole.results


def held(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """Return how many records each partition holds."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10)[1] for n in range(partitions)
    ]
    consumer.close()
    return ends


@pytest.mark.parametrize(
    "work", [Requests("few", 8, 3), Requests("all", 20, 3, 10, walk=True), Requests("large", 2, 2, 2450)]
)
def test_the_requests_that_are_counted_are_in_the_log(load: Load, tmp_path: Path, work: Requests) -> None:
    peer = KorvetBatch(tmp_path)
    peer.start()
    try:
        done = produce_loop.run(Bench(load, Results([]), tmp_path, 0.5), peer, work, 0.3)
        ends = held(peer.bootstrap, work.topic, work.partitions)
    finally:
        peer.stop()
    assert sum(ends) == done.sent > done.requests > 0
    again = sum(end > work.records for end in ends)
    assert again == (work.partitions if work.walk else work.connections)


def test_the_cost_has_its_figures_and_its_chart(load: Load, tmp_path: Path) -> None:
    results = run(tmp_path, load, "cost")
    sought = [
        sweep.figure(point, part)
        for sweep in cost.SWEEPS
        for point in sweep.points[:2]
        for part in (cost.BROKER, cost.REDIS)
    ]
    assert set(results.figures()) == set(sought)
    chart.draw_cost(results, tmp_path / "cost.svg")
    drawn = (tmp_path / "cost.svg").read_text()
    assert all(title in drawn for title in (*(sweep.title for sweep in cost.SWEEPS), "korvet-batch: Redis"))


def test_the_cores_have_a_rate_for_each_number_of_workers(load: Load, tmp_path: Path) -> None:
    results = run(tmp_path, load, "cores")
    rates = [figure for figure in results.figures() if figure.more]
    assert len(rates) == 2 * len(cost.CORES) * len(cost.WORKERS)


def test_many_partitions_many_producers_and_the_second_client_have_figures(
    load: Load, tmp_path: Path
) -> None:
    results = run(tmp_path, load, "consume", "librdkafka", "scale")
    names = {(figure.section, figure.name) for figure in results.figures()}
    assert {
        ("Produce", "1 KiB, librdkafka"),
        ("CPU of consume", "100 B, librdkafka"),
        ("CPU of consume", "100 B, from the start, 1,000 partitions"),
        ("Consume", "100 B, tailing a producer, 1,000 partitions"),
        (scale.SINGLE, "broker CPU at 1,000 connections"),
    } <= names


def test_kfake_takes_what_korvet_takes(load: Load, tmp_path: Path) -> None:
    peer = Kfake(tmp_path)
    peer.start()
    try:
        done = produce_loop.run(Bench(load, Results([]), tmp_path, 0.1), peer, Requests("few", 8, 8), 0.1)
        assert sum(held(peer.bootstrap, "few", 8)) == done.sent
    finally:
        peer.stop()
