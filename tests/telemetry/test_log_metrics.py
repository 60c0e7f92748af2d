"""The statistics that the keeper publishes, as a broker's /metrics shows them. Real brokers on one Redis."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from korvet.groups.offsets import Commit, Committer, OffsetStore
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.redis.keys import Keys
from tests.support import processes
from tests.support.batches import Record
from tests.support.broker import echo_broker, korvet_broker
from tests.support.log_bench import TOPIC_ID, Bench
from tests.support.ops import samples
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client

OTHER_STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady")


def values(redis_url: str) -> tuple[str, ...]:
    return f"redis.url={redis_url}", "log.figures.interval.ms=100"


def test_a_log_is_shown_until_its_topic_is_deleted(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    end = bench.append(b"a", b"b") + 2
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:
        processes.wait_until(lambda: samples(broker, "korvet_log_end_offset"), "the log is shown")
        # Prometheus' numbers are floating-point ones, which hold every offset exactly.
        assert samples(broker, "korvet_log_end_offset")["0", "orders"] == end
        assert len(samples(broker, "korvet_log_oldest_record_age_seconds")) == 1
        assert len(samples(broker, "korvet_log_size_bytes")) == 3
        bench.topics.deletion.delete("orders", TOPIC_ID)
        processes.wait_until(lambda: not samples(broker, "korvet_log_size_bytes"), "it is shown no more")
        assert samples(broker, "korvet_log_figures_timestamp_seconds")


def test_the_keeper_that_holds_the_lease_publishes(
    tmp_path: Path, redis_url: str, record_bench: Bench
) -> None:
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


def test_the_lag_of_a_group_follows_its_commits(tmp_path: Path, redis_url: str, bench: Bench) -> None:
    """In records, and exact: offsets of format record are far apart."""
    offsets = [bench.append(b"a"), bench.append(b"b"), bench.append(b"c")]
    store = OffsetStore(bench.redis, Keys("korvet"), mirror=True)
    store.commit(Committer("billing"), [Commit(bench.partition, offsets[1], -1, "")])
    with echo_broker(tmp_path, *values(redis_url), workers=1) as broker:

        def lag() -> dict[tuple[str, ...], float]:
            return samples(broker, "korvet_consumer_group_lag_records")

        labels = ("billing", "0", "orders")
        processes.wait_until(lambda: lag() == {labels: 2}, "the lag is shown")
        store.commit(Committer("billing"), [Commit(bench.partition, offsets[2] + 1, -1, "")])
        processes.wait_until(lambda: lag() == {labels: 0}, "the lag follows a commit")
        bench.append(b"d")
        processes.wait_until(lambda: lag() == {labels: 1}, "the lag follows an append")
        bench.topics.deletion.delete("orders", TOPIC_ID)
        processes.wait_until(lambda: lag() == {}, "the topic is shown no more")


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
        members = "korvet_consumer_group_members"
        processes.wait_until(lambda: samples(broker, members), "the group is shown")
        assert samples(broker, members) == {(name,): 3}
        assert samples(broker, "korvet_consumer_group_generation") == {(name,): 8}
        assert samples(broker, "korvet_consumer_group_rebalances_total") == {(name,): 8}
        counts = {"Stable": 1} | dict.fromkeys(OTHER_STATES, 0)
        assert samples(broker, "korvet_consumer_groups") == {(state,): n for state, n in counts.items()}
        [(labels, seconds)] = samples(broker, "korvet_consumer_group_lag_seconds").items()
        assert labels == (name, "0", "orders")
        assert seconds >= 3600
        bench.raw.hset(keys.group_state(name), mapping={"state": "Empty", "generation": 9, "size": 0})
        store.commit(Committer(name), [Commit(bench.partition, first + 1, -1, "")])
        processes.wait_until(
            lambda: (
                samples(broker, "korvet_consumer_group_lag_seconds") == {labels: 0.0}
                and samples(broker, members) == {(name,): 0}
            ),
            "it has caught up, without members",
        )


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
