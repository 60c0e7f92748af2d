"""The statistics that the keeper publishes, as a broker's /metrics shows them. Real brokers on one Redis."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from korvet.config.settings import Settings
from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.redis.keys import Keys
from korvet.server.keeper.keeper import Keeper
from korvet.telemetry.snapshot import LogStatsSnapshot, read
from tests.support import processes
from tests.support.batches import Record
from tests.support.broker import echo_broker, korvet_broker
from tests.support.log_bench import TOPIC_ID, Bench
from tests.support.ops import samples
from tests.support.partition_state import write_format
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client


def values(redis_url: str) -> tuple[str, ...]:
    return f"redis.url={redis_url}", "log.figures.interval.ms=100"


@pytest.mark.slow
def test_a_log_is_shown_until_its_topic_is_deleted(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    end = bench.append(b"a", b"b") + 2
    write_format(bench.raw)
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:
        processes.wait_until(lambda: samples(broker, "korvet_log_end_offset"), "the log is shown")
        # Prometheus' numbers are floating-point ones, which hold every offset exactly.
        assert samples(broker, "korvet_log_end_offset")["0", "orders"] == end
        assert len(samples(broker, "korvet_log_oldest_record_age_seconds")) == 1
        assert len(samples(broker, "korvet_log_size_bytes")) == 3
        bench.topics.deletion.delete({"orders": TOPIC_ID})
        processes.wait_until(lambda: not samples(broker, "korvet_log_size_bytes"), "it is shown no more")
        assert samples(broker, "korvet_log_figures_timestamp_seconds")


@pytest.mark.slow
def test_the_keeper_that_holds_the_lease_publishes(
    tmp_path: Path, redis_url: str, record_bench: Bench
) -> None:
    write_format(record_bench.raw)
    record_bench.append(b"a")
    name, settings = "korvet_log_records", (*values(redis_url), "keeper.lease.ms=6000")
    with (
        echo_broker(tmp_path / "one", *settings, workers=1) as one,
        echo_broker(tmp_path / "two", *settings, "broker.id=1", workers=1) as two,
    ):
        processes.wait_until(lambda: samples(one, name) or samples(two, name), "one publishes")
        acting, other = (one, two) if samples(one, name) else (two, one)
        assert samples(other, name) == {}
        # A keeper that hangs loses the lease. When it notices, it withdraws what it has published.
        [keeper] = acting.child_pids("keeper")
        processes.kill(keeper, signal.SIGSTOP)
        processes.wait_until(lambda: samples(other, name), "the other publishes")
        processes.kill(keeper, signal.SIGCONT)
        processes.wait_until(lambda: not samples(acting, name), "the first one has withdrawn")


@pytest.fixture
def figures(tmp_path: Path, redis_url: str) -> Iterator[Callable[[], LogStatsSnapshot]]:
    """Give a function that returns what a keeper's next round publishes."""
    keeper = Keeper(Settings(redis_url=redis_url, log_retention_ms=-1), tmp_path)
    assert keeper.lease.renew()

    def published() -> LogStatsSnapshot:
        keeper.round()
        result = read(tmp_path / LogStatsSnapshot.FILE, LogStatsSnapshot)
        assert result is not None
        return result

    yield published
    keeper.context.close()


def test_the_lag_of_a_group_follows_its_commits(
    figures: Callable[[], LogStatsSnapshot], bench: Bench
) -> None:
    """In records, and exact: offsets of format record are far apart."""
    offsets = [bench.append(b"a"), bench.append(b"b"), bench.append(b"c")]
    store = OffsetStore(bench.redis, Keys("korvet"), mirror=True)

    def lag() -> list[tuple[str, int | None, str, int]]:
        return [(item.group, item.partition, item.topic, item.records) for item in figures().lags]

    store.commit(Committer("billing"), [Commit(bench.partition, offsets[1], -1, "")])
    assert lag() == [("billing", 0, "orders", 2)]
    store.commit(Committer("billing"), [Commit(bench.partition, offsets[2] + 1, -1, "")])
    assert lag() == [("billing", 0, "orders", 0)]
    bench.append(b"d")
    assert lag() == [("billing", 0, "orders", 1)]
    bench.topics.deletion.delete({"orders": TOPIC_ID})
    assert lag() == []


@pytest.mark.slow
def test_the_lag_of_a_share_group_is_what_it_is_not_done_with(tmp_path: Path, redis_url: str) -> None:
    flags = ("--redis-url", redis_url, "--set", "log.figures.interval.ms=100")
    with korvet_broker(tmp_path, *flags, workers=1) as broker, Client(broker.address) as client:

        def lag() -> dict[tuple[str, ...], float]:
            return samples(broker, "korvet_consumer_group_lag_records")

        labels = ("jobs", "0", "queue")
        topic_id = client.create("queue")
        consumer = ShareConsumer(client, "jobs", "queue").on(topic_id)
        assert consumer.poll() == []
        processes.wait_until(lambda: lag() == {labels: 0}, "the group has begun")
        hour_ago = int(time.time() * 1000) - 3_600_000
        client.append("queue", *(Record(value=b"%d" % n, timestamp=hour_ago) for n in range(3)))
        processes.wait_until(lambda: lag() == {labels: 3}, "the lag follows an append")
        assert samples(broker, "korvet_consumer_group_lag_seconds")[labels] >= 3600
        consumer.accept(consumer.poll()[1:])
        processes.wait_until(lambda: lag() == {labels: 1}, "the lag follows an acknowledgement")
        consumer.leave()
        [deleted] = client.call(DeleteGroupsRequest(groups_names=["jobs"]), 2).results
        assert deleted.error_code == 0
        processes.wait_until(lambda: lag() == {}, "the group is shown no more")


def test_a_group_is_shown_with_members_generation_and_the_age_of_its_lag(
    figures: Callable[[], LogStatsSnapshot], bench: Bench
) -> None:
    keys = Keys("korvet")
    first = bench.append(Record(timestamp=int(time.time() * 1000) - 3_600_000))
    name = 'a "group"\n\\ of {many} names, é'
    store = OffsetStore(bench.redis, keys, mirror=True)
    store.commit(Committer(name), [Commit(bench.partition, first, -1, "")])
    bench.raw.hset(keys.group_state(name), mapping={"state": "Stable", "generation": 8, "size": 3})
    result = figures()
    [group], [lag] = result.groups, result.lags
    assert (group.group, group.members, group.generation) == (name, 3, 8)
    assert result.states["Stable"] == 1
    assert (lag.group, lag.age_ms >= 3_600_000) == (name, True)
    bench.raw.hset(keys.group_state(name), mapping={"state": "Empty", "generation": 9, "size": 0})
    store.commit(Committer(name), [Commit(bench.partition, first + 1, -1, "")])
    result = figures()
    [group], [lag] = result.groups, result.lags
    assert (group.members, group.generation, lag.records, lag.age_ms) == (0, 9, 0, 0)


@pytest.mark.slow
def test_the_keeper_reports_its_lease_and_the_runs_of_its_tasks(tmp_path: Path, redis_url: str) -> None:
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:
        counted = "korvet_keeper_turns_total"
        processes.wait_until(
            lambda: samples(broker, counted).get(("done", "figures"), 0) >= 2, "the task has run twice"
        )
        assert samples(broker, "korvet_keeper_leases_total") == {(): 1}
        assert samples(broker, "korvet_keeper_turn_duration_seconds_count")["figures",] >= 2
        assert samples(broker, "korvet_keeper_last_done_timestamp_seconds")["figures",] > 1_700_000_000
        # Its round trips to Redis are counted as those of workers are.
        assert samples(broker, "korvet_redis_round_trip_seconds_count")["keeper/lease",] > 0
