"""How near the store is to being full: the curve, when Redis is asked, and what the log says of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import redis as redis_py
from prometheus_client import REGISTRY

from korvet.cluster import backpressure
from korvet.cluster.backpressure import (
    NO_PRESSURE,
    Backpressure,
    BackpressureState,
    ServerBackpressure,
    Thresholds,
)
from korvet.cluster.usage import (
    DISK_FREE_BYTES_MIN,
    UNUSED,
    Disk,
    ServerUsage,
    Share,
    UsageStore,
    disk_share,
    memory_share,
)
from korvet.config.settings import Settings
from korvet.redis.client import Redis
from korvet.redis.observer import NO_OBSERVER, Observer
from korvet.telemetry import metrics
from tests.support.processes import wait_until
from tests.support.proxy import until
from tests.support.redis_cluster import SLOTS, RedisCluster
from tests.support.redis_cluster import redis_cluster as started_cluster
from tests.support.redis_servers import DurableServer
from tests.support.virtual_clock import VirtualClock

SETTINGS = Settings(memory_throttle_percent=80, memory_refuse_percent=90, throttle_max_ms=1000)
THRESHOLDS = Thresholds.of(SETTINGS)
FREE = 1 << 40
ONE_REDIS = {"node": ""}
# The memory of one node is filled; tests/server/test_nodes_of_redis.py fills that of one of several.
ONE_SERVER = pytest.mark.embedded


@contextlib.contextmanager
def worker_client(url: str, observer: Observer = NO_OBSERVER) -> Iterator[Redis]:
    client = Redis(url, timeout_ms=60_000, connect_timeout_ms=60_000, observer=observer)
    yield client
    client.close()


class Exchanges(Observer):
    """Counts how often a client of Redis waits for an answer: several commands that are sent at once are one."""

    count = 0

    def round_trip(self, operation: str, seconds: float) -> None:  # noqa: ARG002 - as Observer has it
        self.count += 1


@pytest.fixture
def exchanges() -> Exchanges:
    return Exchanges()


@pytest.fixture
def redis(redis_url: str, exchanges: Exchanges) -> Iterator[Redis]:
    with worker_client(redis_url, exchanges) as client:
        yield client


@pytest.fixture
def raw(raw_redis: Any) -> Iterator[Any]:
    """Give a plain client, on a server with much more in it than the buffers of the moment.

    Its memory is without a limit afterwards.
    """
    raw_redis.setrange("much", 50_000_000, "x")
    yield raw_redis
    raw_redis.config_set("maxmemory", 0)
    raw_redis.config_set("maxmemory-policy", "noeviction")


class Bench:
    """A worker's backpressure, on a clock of the test's own."""

    def __init__(self, redis: Redis, settings: Settings = SETTINGS, disk: Disk | None = None) -> None:
        self.clock = VirtualClock()
        usage = UsageStore(redis, with_file=disk is not None)
        self.pressure = ServerBackpressure(usage, settings, disk, clock=self.clock)

    def read(self, seconds: float = 2.0) -> BackpressureState:
        """Let a reading fall due and end; returns the state after it."""
        self.clock.advance(seconds)
        self.pressure.check()
        self.clock.run_until_idle()
        assert self.pressure._read_at == self.clock.monotonic()
        return self.pressure.check()


@pytest.fixture
def bench(redis: Redis) -> Bench:
    return Bench(redis)


def fill(raw: Any, share: float) -> None:
    """Set the limit so that about this share of it is used."""
    raw.config_set("maxmemory", int(raw.info("memory")["used_memory"] / share))


@pytest.mark.parametrize(
    ("used", "throttle_ms", "refusal"),
    [
        (0.0, 0, ""),
        (0.799, 0, ""),
        (0.8, 0, ""),
        (0.8001, 1, ""),
        (0.85, 500, ""),
        (0.8999, 999, ""),
        (0.9, 1000, "9 of 10"),
        (2.0, 1000, "9 of 10"),
    ],
)
def test_the_throttle_grows_evenly_up_to_the_refusal(used: float, throttle_ms: int, refusal: str) -> None:
    state = THRESHOLDS.state(Share(used, "9 of 10"))
    assert abs(state.throttle_ms - throttle_ms) <= 1
    assert state.refusal.split(":")[0] == refusal


def test_equal_thresholds_refuse_without_a_throttle_before() -> None:
    at_once = Thresholds(0.9, 0.9, 1000)
    assert at_once.state(Share(0.899, "")) == NO_PRESSURE
    assert at_once.state(Share(0.9, "full")).refusal


def test_without_a_limit_nothing_of_the_memory_counts_as_used() -> None:
    assert memory_share(ServerUsage(10**12, 0, "noeviction", 0, rewriting=False)) is UNUSED
    share = memory_share(ServerUsage(95, 100, "noeviction", 0, rewriting=False))
    assert share.used == 0.95
    assert "95 bytes" in share.reason
    assert "100" in share.reason


def test_of_the_disk_counts_what_is_nearer_to_its_end() -> None:
    assert disk_share(10**12, FREE, 0).used < 0.001
    assert disk_share(90, FREE, 100).used == 0.9
    assert "embedded.disk.max.bytes" in disk_share(90, FREE, 100).reason
    assert disk_share(90, DISK_FREE_BYTES_MIN, 10**12).used == 1.0
    assert "bytes left" in disk_share(90, 0, 100).reason


@ONE_SERVER
def test_the_first_request_is_not_throttled_but_the_next(bench: Bench, raw: Any) -> None:
    fill(raw, 0.85)
    assert bench.pressure.check() == NO_PRESSURE
    assert 0 < bench.read(0).throttle_ms < 1000
    fill(raw, 0.99)
    assert bench.read().refusal
    raw.config_set("maxmemory", 0)
    assert bench.read() == NO_PRESSURE
    assert REGISTRY.get_sample_value("korvet_redis_memory_used_ratio", ONE_REDIS) == 0.0


@ONE_SERVER
def test_redis_is_asked_once_a_second_and_more_often_near_the_limit(
    bench: Bench, raw: Any, exchanges: Exchanges
) -> None:
    def asked_in(seconds: float) -> int:
        before = exchanges.count
        for _ in range(round(seconds / 0.05)):
            bench.clock.advance(0.05)
            for _ in range(10):
                bench.pressure.check()
            bench.clock.run_until_idle()
        return exchanges.count - before

    bench.read()
    assert asked_in(0.9) == 0
    fill(raw, 0.75)
    bench.read()
    assert 4 < asked_in(0.95) < 11
    before = exchanges.count
    bench.clock.advance(3600)
    assert exchanges.count == before


@ONE_SERVER
def test_an_old_reading_refuses_nobody(bench: Bench, raw: Any) -> None:
    fill(raw, 0.99)
    assert bench.read().refusal
    bench.clock.advance(backpressure.VALID_SECONDS + 1)
    assert bench.pressure.check() == NO_PRESSURE
    assert bench.read().refusal


def test_a_failed_reading_throttles_nobody_and_is_repeated_after_a_pause() -> None:
    away = Redis("unix:///nowhere/redis.sock", timeout_ms=100, connect_timeout_ms=100)
    bench = Bench(away)
    assert bench.pressure.check() == NO_PRESSURE
    bench.clock.run_until_idle()
    assert bench.pressure._due == bench.clock.monotonic() + backpressure.PAUSE_SECONDS_FAILED
    assert bench.pressure.check() == NO_PRESSURE


@ONE_SERVER
def test_a_refusal_by_redis_itself_throttles_and_has_the_usage_read_soon(
    bench: Bench, redis: Redis, raw: Any
) -> None:
    assert Backpressure(redis, SETTINGS).full_throttle_ms == 1000
    bench.read()
    fill(raw, 1.5)
    bench.pressure.memory_full()
    assert bench.read(backpressure.READ_EVERY_SECONDS_NEAR).refusal


@ONE_SERVER
@pytest.mark.parametrize("throttle_max_ms", [0, 1000])
def test_a_shortage_and_its_end_are_logged_once(
    redis: Redis, raw: Any, caplog: pytest.LogCaptureFixture, throttle_max_ms: int
) -> None:
    bench = Bench(redis, dataclasses.replace(SETTINGS, throttle_max_ms=throttle_max_ms))
    with caplog.at_level("INFO"):
        for share in (0.5, 0.85, 0.82, 0.99, 0.85, 0.78, 0.85, 0.5, 0.5):
            fill(raw, share)
            assert bench.read().throttle_ms <= throttle_max_ms
    throttled = ["producers are throttled"] if throttle_max_ms else []
    ends = ["producers are refused", "producer throttling ended"]
    assert [record.message for record in caplog.records] == throttled + ends


def test_a_policy_that_evicts_is_an_error_in_the_log_for_as_long(
    bench: Bench, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for policy, evicts in (("noeviction", False), ("allkeys-lru", True), ("volatile-ttl", True)):
            raw.config_set("maxmemory-policy", policy)
            bench.read()
            assert REGISTRY.get_sample_value("korvet_redis_evicts", ONE_REDIS) == evicts
        raw.config_set("maxmemory-policy", "noeviction")
        bench.read()
        assert REGISTRY.get_sample_value("korvet_redis_evicts", ONE_REDIS) == 0
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.slow
def test_a_refusal_by_a_node_throttles_nobody_and_has_its_own_usage_read_soon(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "READ_EVERY_SECONDS", 3600.0)
    with worker_client(redis_cluster.url) as redis:
        pressure = Backpressure(redis, SETTINGS)
        assert pressure.full_throttle_ms == 0
        read: dict[int, tuple[int, str | None, float]] = {}
        core: Any = SimpleNamespace(
            set_full_throttle=lambda _ms: None,
            put_pressure=lambda node, ms, refusal, due, _until: read.update({node: (ms, refusal, due)}),
        )
        pressure.report_to(core)
        numbers = [node.number for node in redis.nodes()]
        assert [pressure.look(number) for number in numbers] == [NO_PRESSURE] * 3
        until(lambda: len(read) == 3)
        before = dict(read)
        name = redis.node_numbered(numbers[0]).name
        [full] = [node for node in redis_cluster.nodes if node.address == name]
        with redis_cluster.configured("maxmemory", "0"):
            full.client.config_set("maxmemory", 1)
            pressure.look(numbers[0], is_full=True)
            assert [number for number in numbers if read[number] != before[number]] == numbers[:1]

            def refuses() -> bool:
                pressure.look(numbers[0])
                return bool(read[numbers[0]][1])

            until(refuses)
            assert read[numbers[0]][0] == 0
            assert all(pressure.look(number) == NO_PRESSURE for number in numbers[1:])


@pytest.mark.slow
def test_a_node_that_left_the_cluster_is_reported_no_more() -> None:
    with started_cluster(2) as cluster, worker_client(cluster.url) as redis:
        stays, leaves = cluster.nodes
        leaves.client.config_set("maxmemory", 1 << 30)
        leaves.client.config_set("maxmemory-policy", "allkeys-lru")

        def reported() -> list[float | None]:
            names = ("korvet_redis_evicts", "korvet_redis_memory_used_ratio")
            return [REGISTRY.get_sample_value(name, {"node": leaves.address}) for name in names]

        pressure = Backpressure(redis, SETTINGS)
        numbers = {node.name: node.number for node in redis.nodes()}
        for number in numbers.values():
            pressure.look(number)
        until(lambda: all(reported()))
        half = (SLOTS // 2, SLOTS - 1)
        leaves.call("CLUSTER", "DELSLOTSRANGE", *half)
        stays.call("CLUSTER", "DELSLOTSRANGE", *half)
        stays.call("CLUSTER", "ADDSLOTSRANGE", *half)
        cluster.wait_ok()
        for key in map(str, range(10)):
            assert redis.call("GET", key) is None
        until(lambda: [node.name for node in redis.nodes()] == [stays.address])
        pressure.look(numbers[stays.address])
        assert reported() == [0, 0]


@ONE_SERVER
def test_a_full_disk_has_the_server_rewrite_its_file_if_that_pays(
    redis: Redis, exchanges: Exchanges, raw_redis: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    bench = Bench(redis, Settings(embedded_disk_max_bytes=1000), Disk(tmp_path))
    raw_redis.config_set("auto-aof-rewrite-percentage", 0)
    raw_redis.config_set("appendonly", "yes")
    try:
        for _ in range(20):
            raw_redis.set("churn", b"x" * 1_000_000)
        raw_redis.delete("churn")
        with gevent.Timeout(30):
            # Switching it on wrote the file too: that rewrite may have to end first.
            while raw_redis.info("persistence")["aof_current_size"] > 1000:
                assert bench.read(backpressure.REWRITE_EVERY_SECONDS).refusal
        assert metrics.EMBEDDED_DISK_USED_RATIO._value.get() >= 1
        before = exchanges.count
        bench.read(backpressure.REWRITE_EVERY_SECONDS)
        assert exchanges.count == before + 1, "it is only asked for its usage"
    finally:
        raw_redis.config_set("appendonly", "no")
        raw_redis.config_set("auto-aof-rewrite-percentage", 100)


def test_other_thresholds_count_from_the_next_reading_on(bench: Bench, raw: Any) -> None:
    fill(raw, 0.5)
    assert bench.read() == NO_PRESSURE
    bench.pressure.use(Settings(memory_throttle_percent=10, memory_refuse_percent=20, throttle_max_ms=7))
    state = bench.read()
    assert state.throttle_ms == 7
    assert state.refusal
    bench.pressure.use(SETTINGS)
    assert bench.read() == NO_PRESSURE


@pytest.mark.slow
@pytest.mark.parametrize("under_way", [False, True])
def test_a_file_that_took_part_of_a_write_is_rewritten(tmp_path: Path, *, under_way: bool) -> None:
    """A server does not start with a file that it has begun by a rewrite and could write in part only.

    A rewrite that is `under_way` all the time has begun the file, and mends nothing.
    """
    with (
        DurableServer("--appendfsync", "everysec") as server,
        redis_py.Redis.from_url(server.url) as client,
        worker_client(server.url) as redis,
    ):
        raw: Any = client

        def settled() -> bool:
            result = raw.info("persistence")
            return not (result["aof_rewrite_in_progress"] or result["aof_buffer_length"])

        bench = Bench(redis, disk=Disk(tmp_path))
        raw.set("before", "x")
        raw.config_set("rdb-key-save-delay", 5_000_000 if under_way else 0)
        raw.bgrewriteaof()
        if not under_way:
            wait_until(settled, "the file is begun by a rewrite")
        server.limit_files(server.append_only_file().stat().st_size + 500)

        def refused() -> bool:
            try:
                raw.append("filling", "y" * 300)
            except redis_py.ResponseError as error:
                return "MISCONF" in str(error)
            return False

        wait_until(refused, "writes are refused")
        bench.read()
        server.limit_files()
        wait_until(lambda: raw.info("persistence")["aof_last_write_status"] == "ok", "it takes writes again")
        raw.set("after", "acknowledged")
        bench.read()
        raw.config_set("rdb-key-save-delay", 0)
        if under_way:
            wait_until(settled, "the rewrite has ended")
            bench.read(backpressure.REWRITE_EVERY_SECONDS)
        wait_until(settled, "the file is rewritten")
        server.crash()
        assert raw.get("after") == b"acknowledged"
