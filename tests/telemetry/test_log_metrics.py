"""The acting keeper's figures of the logs, as a broker's /metrics tells them. Real brokers on one Redis."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from tests.support import processes
from tests.support.batches import Record
from tests.support.broker import Broker, echo_broker
from tests.support.log_bench import TOPIC_ID, Bench
from tests.support.ops import page


@pytest.fixture(params=["record", "batch"])
def bench(redis_url: str, raw_redis: Any, request: pytest.FixtureRequest) -> Iterator[Bench]:
    redis = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield Bench(redis, raw_redis, request.param)
    redis.close()


def values(redis_url: str) -> tuple[str, ...]:
    return (f"redis.url={redis_url}", "log.figures.interval.ms=100", "keeper.lease.ms=1500")


def figures(broker: Broker, name: str) -> list[str]:
    """Return the lines of one gauge."""
    return [line for line in page(broker, "/metrics").splitlines() if line.startswith(f"korvet_log_{name}{{")]


def test_a_log_is_told_of_until_its_topic_is_deleted(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    end = bench.append(b"a", b"b") + 2
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:
        processes.wait_until(lambda: figures(broker, "end_offset"), "the log is told of")
        labels, _, value = figures(broker, "end_offset")[0].partition(" ")
        assert labels == 'korvet_log_end_offset{partition="0",topic="orders"}'
        # Prometheus' numbers are floating-point ones, which hold every offset exactly.
        assert int(float(value)) == end
        assert len(figures(broker, "oldest_record_age_seconds")) == 1
        assert len(figures(broker, "size_bytes")) == 3
        bench.topics.removal.delete("orders", TOPIC_ID)
        processes.wait_until(lambda: not figures(broker, "size_bytes"), "the topic is forgotten")
        assert "korvet_log_figures_timestamp_seconds " in page(broker, "/metrics")


def test_more_partitions_than_wanted_are_summed(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    bench.append(b"a")
    with echo_broker(tmp_path, *values(redis_url), "metrics.partitions.max=2", workers=1) as broker:
        processes.wait_until(lambda: figures(broker, "size_bytes"), "the topic is told of")
        [line] = figures(broker, "size_bytes")
        assert line.startswith('korvet_log_size_bytes{partition="",topic="orders"} ')
        assert figures(broker, "start_offset") == []


def test_of_two_brokers_the_one_whose_keeper_acts_tells(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    bench.append(b"a")
    with (
        echo_broker(tmp_path / "one", *values(redis_url), workers=1) as one,
        echo_broker(tmp_path / "two", *values(redis_url), "broker.id=1", workers=1) as two,
    ):
        processes.wait_until(lambda: figures(one, "records") or figures(two, "records"), "one of them tells")
        acting, other = (one, two) if figures(one, "records") else (two, one)
        assert figures(other, "records") == []
        # A keeper that hangs loses the lease: the other one tells, and it does not once it has noticed.
        [keeper] = acting.child_pids("keeper")
        processes.kill(keeper, signal.SIGSTOP)
        processes.wait_until(lambda: figures(other, "records"), "the other tells")
        processes.wait_until(lambda: not figures(acting, "records"), "what is old is told no more")
        processes.kill(keeper, signal.SIGCONT)
        processes.wait_until(lambda: "held=false" in acting.log(), "it notices")
        assert figures(acting, "records") == []


def test_the_lag_of_a_group_follows_its_commits(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    """In records, and exact: offsets of format record are far apart."""
    offsets = [bench.append(b"a"), bench.append(b"b"), bench.append(b"c")]
    store = OffsetStore(bench.redis, Keys("korvet"), mirror=True)
    store.commit(Committer("billing"), [Commit(bench.partition, offsets[1], -1, "")])
    name = 'korvet_consumer_group_lag_records{group="billing",partition="0",topic="orders"}'

    def lag() -> list[str]:
        lines = page(broker, "/metrics").splitlines()
        return [
            line.removeprefix(name + " ")
            for line in lines
            if line.startswith("korvet_consumer_group_lag_records")
        ]

    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:
        processes.wait_until(lambda: lag() == ["2.0"], "the lag is told")
        store.commit(Committer("billing"), [Commit(bench.partition, offsets[2] + 1, -1, "")])
        processes.wait_until(lambda: lag() == ["0.0"], "the lag follows a commit")
        bench.append(b"d")
        processes.wait_until(lambda: lag() == ["1.0"], "the lag follows an append")
        bench.topics.removal.delete("orders", TOPIC_ID)
        processes.wait_until(lambda: lag() == [], "the topic is forgotten")


def test_a_group_is_told_with_its_members_generation_and_the_age_of_what_it_lacks(
    tmp_path: Path, redis_url: str, bench: Bench
) -> None:
    keys = Keys("korvet")
    now_ms = int(time.time() * 1000)
    first = bench.append(Record(timestamp=now_ms - 3_600_000))
    name = 'a "group"\n\\ of {many} names, é'
    store = OffsetStore(bench.redis, keys, mirror=True)
    store.commit(Committer(name), [Commit(bench.partition, first, -1, "")])
    bench.raw.hset(keys.group_state(name), mapping={"state": "Stable", "generation": 8, "size": 3})
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:

        def told(metric: str) -> dict[tuple[str, ...], float]:
            families = text_string_to_metric_families(page(broker, "/metrics"))
            samples = [sample for family in families for sample in family.samples if sample.name == metric]
            return {tuple(value for _, value in sorted(each.labels.items())): each.value for each in samples}

        processes.wait_until(lambda: told("korvet_consumer_group_members"), "the group is told of")
        assert told("korvet_consumer_group_members") == {(name,): 3}
        assert told("korvet_consumer_group_generation") == {(name,): 8}
        assert told("korvet_consumer_group_rebalances_total") == {(name,): 8}
        states = told("korvet_consumer_groups")
        assert states == {
            ("Stable",): 1,
            ("Empty",): 0,
            ("PreparingRebalance",): 0,
            ("CompletingRebalance",): 0,
        }
        [(labels, seconds)] = told("korvet_consumer_group_lag_seconds").items()
        assert labels == (name, "0", "orders")
        assert seconds >= 3600
        bench.raw.hset(keys.group_state(name), mapping={"state": "Empty", "generation": 9, "size": 0})
        store.commit(Committer(name), [Commit(bench.partition, first + 1, -1, "")])
        processes.wait_until(
            lambda: told("korvet_consumer_group_lag_seconds") == {labels: 0.0}, "it has caught up"
        )
        assert told("korvet_consumer_group_members") == {(name,): 0}


def test_the_keeper_tells_of_its_lease_and_of_its_turns(tmp_path: Path, redis_url: str) -> None:
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:
        counted = 'korvet_keeper_turns_total{outcome="done",task="figures"} '

        def turns() -> float:
            lines = page(broker, "/metrics").splitlines()
            return sum(float(line.removeprefix(counted)) for line in lines if line.startswith(counted))

        processes.wait_until(lambda: turns() >= 2, "figures were taken twice")
        lines = page(broker, "/metrics").splitlines()
        assert "korvet_keeper_leases_total 1.0" in lines
        durations = 'korvet_keeper_turn_duration_seconds_count{task="figures"} '
        assert [line for line in lines if line.startswith(durations)]
        done = 'korvet_keeper_last_done_timestamp_seconds{task="figures"} '
        [line] = [line for line in lines if line.startswith(done)]
        assert float(line.removeprefix(done)) > 1_700_000_000
        # Its questions to Redis are counted as those of workers are.
        trips = 'korvet_redis_round_trip_seconds_count{operation="keeper/lease"} '
        assert [line for line in lines if line.startswith(trips)]
