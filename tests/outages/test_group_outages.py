"""Twelve real consumers go on in the same generation when workers, or the whole broker, that they talk to are killed.

A producer goes on all along. The generation is asked of brokers by bytes, and of clients as far as they tell it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import processes, reading
from tests.support.broker import Broker, korvet_cluster
from tests.support.connections import connected
from tests.support.crowd import Crowd
from tests.support.group_watch import GroupWatch, coordinator
from tests.support.load import Load
from tests.support.processes import wait_until

PARTITIONS = 24
PAUSE_MS = 20
SESSION_MS = 20_000
LEASE_MS = 2000
TOPIC = "orders"


@pytest.fixture
def brokers(tmp_path: Path, redis_url: str) -> Iterator[list[Broker]]:
    """Run two brokers of two workers on one Redis, and one topic."""
    flags = ("--set", "group.initial.rebalance.delay.ms=0", "--set", f"broker.lease.ms={LEASE_MS}")
    with korvet_cluster(tmp_path, redis_url, *flags, brokers=2, workers=2) as running:
        reading.create_topic(running[0].bootstrap, TOPIC, PARTITIONS)
        yield running


@pytest.mark.parametrize(
    ("kind", "assignor"),
    [
        pytest.param("confluent", "cooperative-sticky", marks=pytest.mark.smoke),
        ("kafka-python", "range"),
        ("aiokafka", "sticky"),
    ],
)
def test_killed_workers_and_a_killed_broker_cost_members_no_rebalance(
    brokers: list[Broker], kind: str, assignor: str
) -> None:
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    load = Load(bootstrap, TOPIC, PARTITIONS, pause_ms=PAUSE_MS)
    load.start()
    with (
        Crowd(bootstrap, TOPIC, session_ms=SESSION_MS, assignor=assignor) as crowd,
        GroupWatch(brokers, TOPIC, PARTITIONS) as watch,
    ):
        for host in ("a", "b", "c"):
            crowd.host(kind, *(f"{host}{number}" for number in range(4)))
        before = watch.settle(crowd)
        watch.go_on()
        generation, views = watch.generation(), crowd.views()
        kept = coordinator(brokers, TOPIC)

        def go_on_as_before() -> None:
            watch.go_on()
            assert watch.settle(crowd) == before
            assert (watch.generation(), crowd.views()) == (generation, views)

        for pid in kept.worker_pids():
            assert connected(pid, crowd.host_pids())
            processes.kill(pid)
            wait_until(lambda: len(kept.worker_pids()) == 2 and pid not in kept.worker_pids(), "another")  # noqa: B023 - called before the loop goes on
            go_on_as_before()
        watch.brokers = [broker for broker in brokers if broker is not kept]
        children = processes.children(kept.pid)
        kept.kill()
        wait_until(lambda: not any(processes.alive(pid) for pid in children), "all its processes are gone")
        go_on_as_before()
        watch.finish(crowd, load)
        assert watch.settle(crowd) == before
        assert (watch.generation(), crowd.views()) == (generation, views)
        crowd.check(load.sent)
