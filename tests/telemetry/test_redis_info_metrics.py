"""Metrics that Redis reports about itself: a real one, one that refuses, and none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from korvet.config.settings import Settings
from korvet.redis.blocking import Masters
from korvet.telemetry.redis_metrics import RedisCollector, ServerState, redis_families, redis_state
from tests.support.processes import wait_until
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_cluster import redis_cluster as run_cluster

# One Redis, whose samples name no node; tests of a cluster start their own.
pytestmark = pytest.mark.embedded


def samples(client: Masters, collector: RedisCollector | None = None) -> dict[str, float]:
    """Return every sample, by its name and the values of its labels."""
    registry = CollectorRegistry()
    registry.register(collector or RedisCollector(client))
    return {
        "/".join([sample.name, *filter(None, sample.labels.values())]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.fixture
def client(redis_url: str) -> Iterator[Masters]:
    with closing(Masters(Settings(redis_url=redis_url))) as made:
        yield made


def test_values_are_those_of_info(client: Masters, raw_redis: Any) -> None:
    raw_redis.config_set("maxmemory", 123_456_789)
    before = raw_redis.info()
    result = samples(client)
    after = raw_redis.info()
    raw_redis.config_set("maxmemory", 0)
    assert result["korvet_redis_up"] == 1
    assert result["korvet_redis_memory_max_bytes"] == 123_456_789
    assert result["korvet_redis_is_master"] == 1
    assert result["korvet_redis_connected_replicas"] == 0
    assert result["korvet_redis_evicted_keys_total"] == 0
    grown = "total_commands_processed"
    assert before[grown] < result["korvet_redis_commands_total"] <= after[grown]
    # Valkey reports both names.
    server = "valkey" if "valkey_version" in before else "redis"
    assert result[f"korvet_redis_info/{server}/{before[f'{server}_version']}"] == 1
    assert {name.partition("/")[2] for name in result if name.startswith("korvet_redis_persistence_ok")} == {
        "snapshot",
        "aof_write",
        "aof_rewrite",
    }


def test_a_snapshot_is_shown_with_its_fork(client: Masters, raw_redis: Any) -> None:
    raw_redis.bgsave()
    wait_until(lambda: not raw_redis.info("persistence")["rdb_bgsave_in_progress"], "it is saved")
    raw_redis.set("one", "change")
    result = samples(client)
    assert result["korvet_redis_unsaved_changes"] >= 1
    assert result["korvet_redis_last_save_timestamp_seconds"] == raw_redis.info()["rdb_last_save_time"]
    # In microseconds there, in seconds here.
    taken = raw_redis.info()["latest_fork_usec"]
    assert taken > 0
    assert result["korvet_redis_last_fork_seconds"] == pytest.approx(taken / 1e6)


def test_a_failed_snapshot_is_shown() -> None:
    info = {"rdb_last_bgsave_status": "err", "aof_last_write_status": "ok", "role": "slave"}
    result = {
        (sample.name, *filter(None, sample.labels.values())): sample.value
        for family in redis_families([ServerState("", info)])
        for sample in family.samples
    }
    assert result == {
        ("korvet_redis_up",): 1,
        ("korvet_redis_is_master",): 0,
        ("korvet_redis_replicas_wanted",): 0,
        ("korvet_redis_persistence_ok", "snapshot"): 0,
        ("korvet_redis_persistence_ok", "aof_write"): 1,
    }


def test_slow_commands_are_counted_beyond_what_the_slow_log_keeps(client: Masters, raw_redis: Any) -> None:
    raw_redis.config_set("slowlog-log-slower-than", -1)
    raw_redis.config_set("slowlog-max-len", 2)
    before = samples(client)["korvet_redis_slow_commands_total"]
    raw_redis.config_set("slowlog-log-slower-than", 0)
    raw_redis.config_set("slowlog-log-slower-than", -1)
    # The command that began it and the one that ended it.
    grown = samples(client)["korvet_redis_slow_commands_total"] - before
    assert grown >= 1
    raw_redis.config_set("slowlog-log-slower-than", 0)
    for _ in range(10):
        raw_redis.ping()
    raw_redis.config_set("slowlog-log-slower-than", -1)
    assert samples(client)["korvet_redis_slow_commands_total"] - before >= grown + 10
    raw_redis.config_set("slowlog-log-slower-than", 10_000)


def test_the_count_of_slow_commands_survives_a_reset_of_the_slow_log(client: Masters, raw_redis: Any) -> None:
    raw_redis.config_set("slowlog-log-slower-than", 0)
    raw_redis.config_set("slowlog-log-slower-than", 10_000_000)
    collector = RedisCollector(client)
    before = samples(client, collector)["korvet_redis_slow_commands_total"]
    assert before > 0
    raw_redis.slowlog_reset()
    assert samples(client, collector)["korvet_redis_slow_commands_total"] == before
    raw_redis.config_set("slowlog-log-slower-than", 10_000)


@pytest.mark.parametrize(
    ("may", "expected", "missing"),
    [
        ("+info", "korvet_redis_memory_used_bytes", "korvet_redis_slow_commands_total"),
        ("+slowlog|get", "korvet_redis_slow_commands_total", "korvet_redis_memory_used_bytes"),
    ],
)
def test_a_user_without_a_permission_gets_the_other_half(
    redis_url: str, raw_redis: Any, may: str, expected: str, missing: str
) -> None:
    raw_redis.execute_command(
        "ACL", "SETUSER", "half", "on", ">secret", "-@all", "+auth", "+client|setinfo", may
    )
    try:
        with closing(Masters(Settings(redis_url=redis_url.replace("//", "//half:secret@")))) as half:
            result = samples(half)
    finally:
        raw_redis.execute_command("ACL", "DELUSER", "half")
    assert result["korvet_redis_up"] == 1
    assert expected in result
    assert missing not in result


def test_an_unreachable_redis_is_shown_as_down() -> None:
    with closing(Masters(Settings(redis_url="redis://127.0.0.1:1"))) as away:
        assert samples(away) == {"korvet_redis_up": 0, "korvet_redis_replicas_wanted": 0}


@pytest.mark.slow
def test_each_master_of_a_cluster_has_its_series_and_one_that_is_away_is_named() -> None:
    with run_cluster(2) as cluster, closing(Masters(Settings(redis_url=cluster.url))) as masters:
        one, other = cluster.nodes
        one.call("CONFIG", "SET", "maxmemory", 123_456_789)
        collector = RedisCollector(masters)
        result = samples(masters, collector)
        assert result[f"korvet_redis_memory_max_bytes/{one.address}"] == 123_456_789
        assert result[f"korvet_redis_memory_max_bytes/{other.address}"] == 0
        other.kill()
        result = samples(masters, collector)
        assert [result[f"korvet_redis_up/{item.address}"] for item in (one, other)] == [1, 0]
        assert f"korvet_redis_commands_total/{one.address}" in result
        assert f"korvet_redis_commands_total/{other.address}" not in result
        [there, away] = sorted(redis_state(masters, 0), key=len, reverse=True)
        assert (there["node"], there["memory_max"]) == (one.address, 123_456_789)
        assert away == {"node": other.address}


@pytest.mark.slow
def test_nodes_that_were_given_no_hostname_are_called_by_their_addresses(redis_cluster: RedisCluster) -> None:
    url = redis_cluster.url.replace("127.0.0.1", "localhost")
    with (
        redis_cluster.configured("cluster-preferred-endpoint-type", "hostname"),
        closing(Masters(Settings(redis_url=url))) as masters,
    ):
        assert masters.all().keys() == {node.address for node in redis_cluster.nodes}


@pytest.mark.slow
def test_the_connection_to_a_former_master_is_closed() -> None:
    with run_cluster(1, 1) as cluster:
        former, promoted = cluster.nodes

        def connections() -> list[Any]:
            # Those of the test come by the unix socket, and that of the replica has another flag.
            return [item for item in former.client.client_list() if "N" in item["flags"]]

        with closing(Masters(Settings(redis_url=cluster.url))) as masters:
            assert all(masters.each(lambda client: client.ping()).values())
            assert len(connections()) == 1
            promoted.call("CLUSTER", "FAILOVER")
            wait_until(lambda: cluster.masters() == [promoted], "the roles are swapped")
            cluster.wait_ok()
            assert masters.all().keys() == {promoted.address}
            wait_until(lambda: not connections(), "the connection is closed")


@pytest.mark.slow
def test_the_nodes_of_the_url_are_asked_before_other_masters() -> None:
    with run_cluster(3) as cluster:
        first, _, named = cluster.nodes
        settings = Settings(redis_url=f"redis+cluster://{named.address}")
        with closing(Masters(settings)) as masters:
            assert len(masters.all()) == 3
            assert masters.answered == named.address
            # So the first one answers next.
            named.kill()
            assert len(masters.slots()) == 3
            assert masters.answered == first.address
            named.start()
            cluster.wait_ok()
            first.kill()
            assert len(masters.slots()) == 3
            assert masters.answered == named.address
