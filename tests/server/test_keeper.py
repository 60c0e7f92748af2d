"""The keeper: who acts, what a round does, and what stops it. Real Redis; the clock is an argument."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from korvet.cluster.leases import LeaseStore
from korvet.cluster.pipelines import (
    LEASE_MS,
    LostOffsets,
    PipelineStatus,
    PipelineStore,
    QueryPosition,
    QueryStatus,
)
from korvet.config.settings import Settings
from korvet.log.packed import LOG_FIELD, ProducerRow
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server import keeper as keeper_tasks
from korvet.server.keeper.context import LeaseLostError
from korvet.server.keeper.keeper import Keeper, KeeperLease
from korvet.server.keeper.log_tasks import finish_deletions
from korvet.telemetry.snapshot import LakeLagSnapshot, PipelinesSnapshot, read
from korvet.topics import deletion as topic_deletion
from korvet.topics.registry import TopicSpec, id_text
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from tests.lua.support import unchanged
from tests.support import processes, redis_servers
from tests.support.broker import Broker, echo_broker
from tests.support.commands import commands_of
from tests.support.domain import Domain
from tests.support.partition_state import producers_of, set_producer
from tests.support.virtual_clock import VirtualClock

STREAM, STATE = "korvet:orders:1", "{korvet:orders:1}:state"
INDEX = "{korvet:orders:1}:index"
SILENT = ProducerRow(epoch=0, next_sequence=1, last_ms=1000)


def client(settings: Settings) -> Redis:
    return Redis(settings.redis_url, timeout_ms=5000, connect_timeout_ms=5000)


def keeper_lease(settings: Settings) -> LeaseStore:
    keys = Keys(settings.namespace)
    return LeaseStore(client(settings), keys.keeper_lease, keys.keeper_fence)


@pytest.fixture
def keeper(settings: Settings) -> Keeper:
    create_topic(settings)
    return Keeper(settings)


def create_topic(settings: Settings) -> None:
    row = TopicRow(name="orders", id=id_text(uuid.uuid4().bytes), partitions=2)
    TopicStore(client(settings), Keys("korvet")).create(row)


def test_a_round_forgets_silent_producers_and_keeps_the_others(keeper: Keeper, raw_redis: Any) -> None:
    now_ms = int(time.time() * 1000)
    for producer_id, last_ms in ((1, 1000), (2, now_ms)):
        set_producer(raw_redis, STATE, producer_id, ProducerRow(0, 1, last_ms))
    assert keeper.lease.renew()
    keeper.round()
    assert list(producers_of(raw_redis, STATE)) == [2]


def test_a_round_takes_in_foreign_entries_that_no_offset_can_name(
    keeper: Keeper, settings: Settings, raw_redis: Any
) -> None:
    ahead_ms = int(time.time() * 1000) + 3_600_000
    for sequence in (1, 5000, 6000):
        raw_redis.xadd(STREAM, {"value": f"v{sequence}"}, id=f"{ahead_ms}-{sequence}")
    assert keeper.lease.renew()
    keeper.round()
    entries = raw_redis.xrange(STREAM)
    assert [fields[b"value"] for _, fields in entries] == [b"v1", b"v5000", b"v6000"]
    assert all(int(entry_id.split(b"-")[1]) < 1024 for entry_id, _ in entries)


def test_after_a_round_redis_takes_the_next_id_again_in_a_log_with_dense_ids(
    keeper: Keeper, here: Domain, raw_redis: Any
) -> None:
    here.topics.create(TopicSpec(name="bills", partitions=1, configs={"offset.encoding": "dense"}))
    [task] = [task for task in keeper_tasks.every(keeper.context.settings) if task.name == "take_in_dense"]
    raw_redis.xadd("korvet:bills:0", {"value": "first"})
    with pytest.raises(redis.ResponseError, match="equal or smaller"):
        raw_redis.xadd("korvet:bills:0", {"value": "refused"}, id="0-*")
    assert keeper.lease.renew()
    look = task.make()
    look(keeper.context, lambda: None)
    assert raw_redis.xadd("korvet:bills:0", {"value": "second"}, id="0-*") == b"0-2"
    look(keeper.context, lambda: None)
    with commands_of(raw_redis) as used:
        look(keeper.context, lambda: None)
    assert "evalsha" not in used  # nothing has come since


def test_a_round_rebuilds_an_index(keeper: Keeper, raw_redis: Any) -> None:
    now_ms = int(time.time() * 1000)
    for n in range(5000):
        raw_redis.xadd(STREAM, {"value": "v"}, id=f"{now_ms + n}-0")
    assert keeper.lease.renew()
    keeper.round()
    ends = [(number, now_ms + number - 1) for number in (2048, 4096, 5000)]
    *rows, last = [(f"{number}:{number * 6}:{ms}:{ms}".encode(), (ms << 10) + 1.0) for number, ms in ends]
    assert raw_redis.zrange(INDEX, 0, -1, withscores=True) == [(b"0:0:-1:-1", 0.0), *rows]
    raw_redis.delete(INDEX)
    keeper.round()
    assert raw_redis.zrange(INDEX, 0, -1, withscores=True) == [*rows, last]


def test_a_keeper_without_the_lease_does_nothing(keeper: Keeper, settings: Settings, raw_redis: Any) -> None:
    set_producer(raw_redis, STATE, 1, SILENT)
    keeper_lease(settings).acquire("somebody else", 60_000)
    assert not keeper.lease.renew()
    keeper.round()
    assert producers_of(raw_redis, STATE) == {1: SILENT}


def test_every_task_stops_with_the_token_of_an_earlier_holding(
    keeper: Keeper, settings: Settings, tmp_path: Path, here: Domain, raw_redis: Any
) -> None:
    configs = {"cleanup.policy": "compact,delete", "offset.encoding": "dense"}
    here.topics.create(TopicSpec(name="both", partitions=1, configs=configs))
    raw_redis.zadd("korvet:groups", {"overdue": 1})
    set_producer(raw_redis, STATE, 1, SILENT)
    raw_redis.zadd(INDEX, {"to be mended": 1})
    assert keeper.lease.renew()
    token = keeper.lease.token
    assert token is not None
    with unchanged(raw_redis):
        for task in keeper_tasks.every(settings, tmp_path):
            with pytest.raises(LeaseLostError):
                task.make()(keeper.context, partial(keeper.lease.check, token - 1))


def test_a_damaged_key_is_logged_and_does_not_keep_a_round_from_the_rest(
    keeper: Keeper, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw_redis.set("{korvet:orders:0}:index", "no index")
    raw_redis.hset("{korvet:orders:0}:state", LOG_FIELD, "no log")
    set_producer(raw_redis, STATE, 1, SILENT)
    assert keeper.lease.renew()
    keeper.round()
    assert not producers_of(raw_redis, STATE)
    lines = {(record.getMessage(), vars(record)["korvet_fields"]["key"]) for record in caplog.records}
    assert lines == {
        ("external entries not renumbered", "korvet:orders:0"),
        ("index repair failed", "{korvet:orders:0}:index"),
        ("log not trimmed", "korvet:orders:0"),
    }


def test_a_deletion_stops_at_the_step_at_which_the_lease_is_lost_and_a_round_finishes_it(
    here: Domain, keeper: Keeper, raw_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_deletion, "_CLEARED_PER_STEP", 1)
    topic = here.topics.create(TopicSpec(name="bills", partitions=5))
    for index in range(5):
        here.append("bills", b"v", partition=index)
    here.topics.delete([topic], until=0)
    before = len(raw_redis.keys("*korvet:bills:*"))
    checks = iter([None, None])
    with pytest.raises(StopIteration):
        finish_deletions(keeper.context, lambda: next(checks))
    assert 0 < len(raw_redis.keys("*korvet:bills:*")) < before
    assert keeper.lease.renew()
    keeper.round()
    assert not raw_redis.keys("*korvet:bills:*")


def test_a_topic_that_cannot_be_cleared_away_is_named_and_tried_again(
    here: Domain, keeper: Keeper, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here.topics.create(TopicSpec(name="bills"))
    for name in ("bills", "orders"):
        here.topics.delete([here.topics.get(name)], until=0)
    raw_redis.set("korvet:groups", "no list of groups")
    finish_deletions(keeper.context, lambda: None)
    assert [record.message for record in caplog.records] == ["cannot remove a deleted topic"] * 2
    assert not raw_redis.keys("*korvet:orders:*")
    assert raw_redis.hlen("korvet:topics") == 2
    raw_redis.delete("korvet:groups")
    finish_deletions(keeper.context, lambda: None)
    assert raw_redis.hlen("korvet:topics") == 0


def test_a_lease_that_was_not_renewed_in_time_is_not_held_whatever_redis_says(settings: Settings) -> None:
    clock = VirtualClock()
    lease = KeeperLease(keeper_lease(settings), 3, 10_000, clock=clock)
    assert lease.renew()
    token = lease.token
    assert token is not None
    lease.check(token)
    clock.advance(10)
    assert not lease.held
    with pytest.raises(LeaseLostError):
        lease.check(token)


def tokens(broker: Broker) -> list[int]:
    return [int(token) for token in re.findall(r"keeper lease held=true token=(\d+)", broker.log())]


@pytest.mark.slow
def test_a_keeper_goes_on_after_redis_was_away(tmp_path: Path) -> None:
    # Noticed long after the lease has passed, however late it was renewed: else the keeper would go on with its token.
    with echo_broker(tmp_path, "keeper.lease.ms=300", "redis.timeout.ms=1500", workers=1) as broker:
        processes.wait_until(lambda: tokens(broker), "the keeper acts")
        with redis_servers.connected(broker.redis_url) as client:
            # While the disk is busy a server may have answered what is not written: the next token would be the same.
            client.config_set("appendfsync", "always")
            client.set("written", "all before this")
        # First it hangs for longer than the lease, then it dies.
        processes.kill(broker.server_pid(), signal.SIGSTOP)
        processes.wait_until(lambda: "keeper cannot reach Redis" in broker.log(), "it notices")
        before = len(tokens(broker))
        processes.kill(broker.server_pid())
        # Not just the next number: on a busy machine a lease so short may pass by unused.
        processes.wait_until(lambda: len(tokens(broker)) > before, "it acts again")
        assert tokens(broker) == sorted(set(tokens(broker)))
        assert broker.log().count("keeper cannot reach Redis") == 1
        assert "keeper keeper" not in broker.log()
        assert broker.log().count("started child=keeper") == 1
        assert broker.stop() == 0


def test_a_round_publishes_how_far_logs_with_a_remote_tier_are_archived(
    tmp_path: Path, settings: Settings, here: Domain, raw_redis: Any
) -> None:
    for name in ("archived", "other"):
        here.topics.create(TopicSpec(name=name, partitions=2))
        here.append(name, b"a", partition=1)
    row = json.loads(raw_redis.hget("korvet:topics", "archived"))
    row["configs"] = {"remote.storage.enable": "true"}
    raw_redis.hset("korvet:topics", "archived", json.dumps(row))
    keeper = Keeper(settings, tmp_path)
    assert keeper.lease.renew()
    keeper.round()
    result = read(tmp_path / LakeLagSnapshot.FILE, LakeLagSnapshot)
    assert result is not None
    assert {(lag.topic, lag.partition, lag.records) for lag in result.lags} == {
        ("archived", 0, 0),
        ("archived", 1, 1),
    }


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_round_publishes_what_pipelines_report_and_what_they_have_not_read(
    tmp_path: Path, settings: Settings, here: Domain, raw_redis: Any, storage_format: str
) -> None:
    configs = {"storage.format": storage_format, "retention.ms": "-1"}
    topic = here.topics.create(TopicSpec(name="orders", partitions=2, configs=configs))
    first = here.append("orders", b"a")
    here.append("orders", b"b", b"c")
    last = here.append("orders", b"d", b"e")
    here.append("orders", b"f", partition=1)
    store = PipelineStore(here.redis, Keys("korvet"))
    known = {"orders": QueryPosition(id_text(topic.id), {0: first + 1})}
    row = PipelineStatus(name="a", state="running", since_ms=1, started_ms=1, holder="h/1/m/1", records=1)
    lost = {"orders": {0: LostOffsets(7, 1, 5)}}
    query = QueryStatus(batch=4, ended_ms=2000, duration_ms=300, positions=known, lost=lost)
    store.write(msgspec.structs.replace(row, queries={"main": query}))
    assert store.lease("a").acquire(row.holder, LEASE_MS)
    another = {"orders": QueryPosition("the id of another", {0: last}), "gone": QueryPosition("x", {0: 0})}
    queries = {"main": QueryStatus(positions=another)}
    counts = {"dead_letters": 3, "restarts": 2, "unread_fields": {"x": 4, "y": 5}, "unmet": {"x": 6}}
    store.write(msgspec.structs.replace(row, name="b", queries=queries, **counts))
    raw_redis.hset("korvet:pipelines", "c", "{")
    keeper = Keeper(settings, tmp_path)
    assert keeper.lease.renew()
    keeper.round()
    result = read(tmp_path / PipelinesSnapshot.FILE, PipelinesSnapshot)
    assert result is not None
    lagging, other = result.pipelines
    # A partition that the pipeline has not seen yet counts whole.
    assert (lagging.pipeline, lagging.state, lagging.records, lagging.lag_records) == ("a", "running", 1, 5)
    assert (lagging.batch_ended_ms, lagging.batch_ms) == (2000, 300)
    assert (other.pipeline, other.state, other.lag_records, other.lag_ms) == ("b", "lost", 0, 0)
    assert (other.dead_letters, other.restarts, other.unread_fields, other.unmet) == (3, 2, 9, 6)
    assert other.batch_ended_ms is None
    # Each partition is there before it has lost anything.
    lost_offsets = [(loss.pipeline, loss.topic, loss.partition, loss.offsets) for loss in result.losses]
    assert lost_offsets == [("a", "orders", 0, 7), ("b", "orders", 0, 0), ("b", "gone", 0, 0)]


def test_the_more_partitions_there_are_the_longer_the_pause_between_collections(
    keeper: Keeper, settings: Settings, tmp_path: Path
) -> None:
    [interval_ms] = [
        item.interval_ms for item in keeper_tasks.every(settings, tmp_path) if item.name == "figures"
    ]
    topics = keeper.context.topics
    topics.create(TopicSpec(name="many", partitions=1498))  # and orders has two
    assert interval_ms(keeper.context) == settings.log_figures_interval_ms == 15_000
    topics.create(TopicSpec(name="more", partitions=100))
    assert interval_ms(keeper.context) == 16_000
