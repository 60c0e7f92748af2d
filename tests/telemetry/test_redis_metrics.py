"""Metrics of connections to Redis: real connections to a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from korvet.redis.replies import RespError
from korvet.telemetry.request_metrics import RequestMetrics
from tests.support import redis_servers
from tests.support.proxy import until

TRIPS = "korvet_redis_round_trip_seconds_count"
COMMIT = scripts.get("group/commit")


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def observer() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
def redis(redis_url: str, observer: RequestMetrics) -> Iterator[Redis]:
    made = Redis(redis_url, timeout_ms=20_000, connect_timeout_ms=20_000, observer=observer, operation="test")
    yield made
    made.close()


def moved(observer: RequestMetrics, name: str, act: Callable[[], object], **labels: str) -> float:
    """Return by how much a metric moves while something is done."""
    observer.flush()
    before = sample(name, **labels)
    act()
    observer.flush()
    return sample(name, **labels) - before


def test_each_exchange_is_one_round_trip_by_its_script_or_connection(
    redis: Redis, observer: RequestMetrics, raw_redis: Any
) -> None:
    raw_redis.script_flush()
    assert moved(observer, TRIPS, lambda: redis.call("PING"), operation="test") == 1
    assert moved(observer, TRIPS, lambda: redis.pipeline([("PING",)] * 7), operation="test") == 1
    assert moved(observer, TRIPS, lambda: redis.transaction([("PING",)]), operation="test") == 1

    def look() -> None:
        with pytest.raises(RespError):
            redis.script(COMMIT, ["no-group"] * 4, [])

    # The first finds that Redis lacks the script; loading it counts as a command.
    assert moved(observer, TRIPS, look, operation="group/commit") == 1
    assert moved(observer, TRIPS, look, operation="group/commit") == 1


def test_round_trips_are_a_histogram(observer: RequestMetrics) -> None:
    name = "korvet_redis_round_trip_seconds"
    for seconds in (0.0001, 0.25, 60.0):
        observer.round_trip("a histogram", seconds)
    observer.flush()
    buckets = [
        sample(f"{name}_bucket", operation="a histogram", le=le) for le in ("0.0001", "0.1", "0.5", "+Inf")
    ]
    assert buckets == [1, 1, 2, 3]
    assert sample(f"{name}_sum", operation="a histogram") == 60.2501


def commit(redis: Redis, generation: int) -> None:
    keys = ["{g}:group", "{g}:members", "{g}:deadlines", "{g}:offsets"]
    redis.script(COMMIT, keys, ["g", 0, generation, "", "", 0, 0, 1])


def test_errors_of_scripts_are_counted_by_script_and_error(
    redis: Redis, observer: RequestMetrics, raw_redis: Any
) -> None:
    name = "korvet_redis_script_errors_total"

    def refused() -> None:
        with pytest.raises(KafkaError):
            commit(redis, 5)

    def broken() -> None:
        raw_redis.set("{g}:group", "no hash")
        with pytest.raises(RespError):
            commit(redis, 5)
        outcomes = redis.scripts([(COMMIT, ["{g}:group"] * 4, ["g", 0, 1, "", "", 0, 0, 1])] * 2)
        assert all(isinstance(outcome, RespError) for outcome in outcomes)

    labels = {"script": "group/commit"}
    assert moved(observer, name, refused, error="GROUP_ID_NOT_FOUND", **labels) == 1
    assert moved(observer, name, broken, error="WRONGTYPE", **labels) == 3
    raw_redis.delete("{g}:group")
    assert moved(observer, name, lambda: commit(redis, -1), error="GROUP_ID_NOT_FOUND", **labels) == 0


@pytest.mark.slow
def test_a_redis_without_memory_is_an_error_of_its_own(observer: RequestMetrics) -> None:
    create = scripts.get("topic/create")
    with redis_servers.server() as url:
        redis = Redis(url, timeout_ms=20_000, connect_timeout_ms=20_000, observer=observer)
        redis.call("CONFIG", "SET", "maxmemory", "1")

        def full() -> None:
            with pytest.raises(StorageUnavailableError):
                redis.script(create, ["{t}:topics", "{t}:changes"], ["t", "{}", 1000, 1000, 0])

        moves = moved(observer, "korvet_redis_script_errors_total", full, script="topic/create", error="OOM")
        redis.close()
    assert moves == 1


@pytest.mark.slow
def test_connections_that_replace_others_and_those_that_fail_are_counted(observer: RequestMetrics) -> None:
    reconnects, failures = "korvet_redis_reconnects_total", "korvet_redis_connect_failures_total"
    with redis_servers.server() as url:
        redis = Redis(url, timeout_ms=20_000, connect_timeout_ms=20_000, observer=observer)
        assert moved(observer, reconnects, lambda: redis.call("PING")) == 0
        redis.reconnect("the test wants another one")
        assert moved(observer, reconnects, lambda: redis.call("PING")) == 1

    def fail() -> None:
        with pytest.raises(StorageUnavailableError):
            redis.call("PING")

    redis.reconnect("its server has ended")
    assert moved(observer, failures, fail) == 1
    redis.close()


def test_subscriptions_count_reconnects(redis: Redis) -> None:
    listening = Subscriptions(redis, linger_ms=1000)
    heard: list[bytes | None] = []
    before = sample("korvet_redis_reconnects_total")
    listening.listen("channel", heard.append)
    assert sample("korvet_redis_reconnects_total") == before
    listening.reconnect("the test wants another one")
    # Listeners are called to read again once the new connection is confirmed.
    until(lambda: heard == [None])
    assert sample("korvet_redis_reconnects_total") == before + 1
    listening.close()
