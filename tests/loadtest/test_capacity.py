"""loadtest/capacity.py: what a load takes of brokers and nodes, by measured costs; the command of docs/capacity.md."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from korvet.redis.keys import Keys
from korvet.redis.slots import SLOTS, slot_of
from loadtest import capacity
from loadtest.capacity import Load, Site, most_mib_s, predict, shares

LOAD = Load()

# Requests a second, and the CPU seconds a second of the worker and of each node: the check of docs/capacity.md.
MEASURED = {1: (449, [0.280, 0.119]), 2: (449, [0.266, 0.053, 0.056]), 3: (442, [0.270, 0.053, 0.047, 0.033])}


@pytest.mark.parametrize("masters", MEASURED)
def test_it_predicts_what_was_measured(masters: int) -> None:
    rate, measured = MEASURED[masters]
    load = Load(
        topics=1,
        partitions=12,
        mib_s=rate * 2 / 3 / 64,
        at_rest=1.0,
        fanout=0.5,
        fetch_kib=16.0,
        waits=0.0,
        groups=0,
        topic_changes_s=0.0,
    )
    result = predict(Site(workers=1, nodes=masters), load, "bench")
    assert [result.worker_s, *result.node_s] == pytest.approx(measured, rel=0.35)


def test_keys_lie_where_their_slots_are() -> None:
    keys = Keys("korvet")
    on_nodes = [slot_of(keys.state(f"topic-{n}", p)) * 3 // SLOTS for n in range(4) for p in range(5)]
    assert shares("korvet:topic-{0}:{1}", 4, 5, 3) == [on_nodes.count(node) / 20 for node in range(3)]


def test_few_partitions_lie_unevenly() -> None:
    few, many = (shares("korvet:topic-{0}:{1}", topics, 10, 20) for topics in (5, 5000))
    assert max(few) * 20 > 1.5
    assert max(many) * 20 < 1.05


def test_nodes_share_the_work_of_redis() -> None:
    one, ten = (predict(Site(brokers=4, nodes=nodes), replace(LOAD, topics=1000)) for nodes in (1, 10))
    assert max(ten.node_s) < max(one.node_s) / 4
    assert sum(ten.node_s) > sum(one.node_s)  # fewer requests share a system call


@pytest.mark.parametrize(
    ("site", "load"),
    [
        (Site(replicas=1), LOAD),
        (Site(tls=True), LOAD),
        (Site(speed=0.5), LOAD),
        (Site(), replace(LOAD, record_format=True)),
        (Site(), replace(LOAD, batch_kib=1.0)),
        (Site(), replace(LOAD, fanout=2.0)),
        (Site(), replace(LOAD, members=1000)),
    ],
    ids=["replicas", "tls", "slow cores", "format record", "small batches", "two readers", "groups"],
)
def test_what_makes_work_costs_cpu(site: Site, load: Load) -> None:
    assert predict(site, load).worker_s > predict(Site(), LOAD).worker_s


def test_the_first_limit_is_named() -> None:
    assert predict(Site(), replace(LOAD, retention_s=86_400.0)).limit.name == "busiest node's memory"
    assert predict(Site(brokers=2500), LOAD).limit.name == "connections to a node"
    too_much = predict(Site(), replace(LOAD, mib_s=1000.0, retention_s=1.0))
    assert too_much.limit.name == "workers' CPU"
    assert too_much.produce_ms == (math.inf, math.inf)


def test_the_most_is_where_the_first_limit_is_reached() -> None:
    most = most_mib_s(Site(), LOAD)
    assert predict(Site(), replace(LOAD, mib_s=most)).limit.share == pytest.approx(1, abs=0.01)
    assert most_mib_s(Site(node_gib=0.001), LOAD) == pytest.approx(0, abs=0.01)


def test_the_command_prints_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "capacity --brokers 10 --nodes 20 --mib-s 200 --topics 500"
    monkeypatch.setattr("sys.argv", command.split())
    capacity.main()
    printed = capsys.readouterr().out
    assert "10 brokers x 2 workers, 20 nodes; 5,000 partitions, 200 MiB/s" in printed
    assert "breaks first: " in printed
