"""What Redis tells of itself in /metrics: a real one, one that refuses, and one that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from korvet.telemetry.redis_metrics import RedisCollector, redis_families
from tests.support.processes import wait_until


def told(client: redis.Redis, collector: RedisCollector | None = None) -> dict[str, float]:
    """Return every sample, by its name and the values of its labels."""
    registry = CollectorRegistry()
    registry.register(collector or RedisCollector(client))
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, socket_timeout=30) as made:
        yield made


def test_figures_are_those_of_info(client: redis.Redis, raw_redis: Any) -> None:
    raw_redis.config_set("maxmemory", 123_456_789)
    before = raw_redis.info()
    found = told(client)
    after = raw_redis.info()
    raw_redis.config_set("maxmemory", 0)
    assert found["korvet_redis_up"] == 1
    assert found["korvet_redis_memory_max_bytes"] == 123_456_789
    assert found["korvet_redis_is_master"] == 1
    assert found["korvet_redis_connected_replicas"] == 0
    assert found["korvet_redis_evicted_keys_total"] == 0
    grown = "total_commands_processed"
    assert before[grown] < found["korvet_redis_commands_total"] <= after[grown]
    # Valkey tells of both names, and is the one that it is.
    server = "valkey" if "valkey_version" in before else "redis"
    assert found[f"korvet_redis_info/{server}/{before[f'{server}_version']}"] == 1
    assert {name.partition("/")[2] for name in found if name.startswith("korvet_redis_persistence_ok")} == {
        "snapshot",
        "aof_write",
        "aof_rewrite",
    }


def test_a_snapshot_is_told_with_the_fork_it_took(client: redis.Redis, raw_redis: Any) -> None:
    raw_redis.bgsave()
    wait_until(lambda: not raw_redis.info("persistence")["rdb_bgsave_in_progress"], "it is saved")
    raw_redis.set("one", "change")
    found = told(client)
    assert found["korvet_redis_unsaved_changes"] >= 1
    assert found["korvet_redis_last_save_timestamp_seconds"] == raw_redis.info()["rdb_last_save_time"]
    # In microseconds there, in seconds here.
    taken = raw_redis.info()["latest_fork_usec"]
    assert taken > 0
    assert found["korvet_redis_last_fork_seconds"] == pytest.approx(taken / 1e6)


def test_what_failed_for_the_last_time_is_told() -> None:
    info = {"rdb_last_bgsave_status": "err", "aof_last_write_status": "ok", "role": "slave"}
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in redis_families(info, None)
        for sample in family.samples
    }
    assert samples == {
        ("korvet_redis_up",): 1,
        ("korvet_redis_is_master",): 0,
        ("korvet_redis_persistence_ok", "snapshot"): 0,
        ("korvet_redis_persistence_ok", "aof_write"): 1,
    }


def test_slow_commands_are_counted_on_though_redis_keeps_only_some(
    client: redis.Redis, raw_redis: Any
) -> None:
    raw_redis.config_set("slowlog-log-slower-than", -1)
    raw_redis.config_set("slowlog-max-len", 2)
    before = told(client)["korvet_redis_slow_commands_total"]
    raw_redis.config_set("slowlog-log-slower-than", 0)
    raw_redis.config_set("slowlog-log-slower-than", -1)
    # The command that began it and the one that ended it.
    grown = told(client)["korvet_redis_slow_commands_total"] - before
    assert grown >= 1
    raw_redis.config_set("slowlog-log-slower-than", 0)
    for _ in range(10):
        raw_redis.ping()
    raw_redis.config_set("slowlog-log-slower-than", -1)
    assert told(client)["korvet_redis_slow_commands_total"] - before >= grown + 10
    raw_redis.config_set("slowlog-log-slower-than", 10_000)


def test_slow_commands_do_not_become_fewer_where_their_log_is_emptied(
    client: redis.Redis, raw_redis: Any
) -> None:
    raw_redis.config_set("slowlog-log-slower-than", 0)
    raw_redis.config_set("slowlog-log-slower-than", 10_000_000)
    collector = RedisCollector(client)
    before = told(client, collector)["korvet_redis_slow_commands_total"]
    assert before > 0
    raw_redis.slowlog_reset()
    assert told(client, collector)["korvet_redis_slow_commands_total"] == before
    raw_redis.config_set("slowlog-log-slower-than", 10_000)


@pytest.mark.parametrize(
    ("may", "expected", "missing"),
    [
        ("+info", "korvet_redis_memory_used_bytes", "korvet_redis_slow_commands_total"),
        ("+slowlog|get", "korvet_redis_slow_commands_total", "korvet_redis_memory_used_bytes"),
    ],
)
def test_a_user_who_may_ask_for_half_is_told_half(
    redis_url: str, raw_redis: Any, may: str, expected: str, missing: str
) -> None:
    raw_redis.execute_command(
        "ACL", "SETUSER", "half", "on", ">secret", "-@all", "+auth", "+client|setinfo", may
    )
    try:
        with redis.Redis.from_url(redis_url.replace("//", "//half:secret@")) as half:
            found = told(half)
    finally:
        raw_redis.execute_command("ACL", "DELUSER", "half")
    assert found["korvet_redis_up"] == 1
    assert expected in found
    assert missing not in found


def test_of_a_redis_that_is_away_only_that_is_told() -> None:
    with redis.Redis("127.0.0.1", 1) as away:
        assert told(away) == {"korvet_redis_up": 0}
