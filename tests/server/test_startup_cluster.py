"""What a start checks and prepares on the masters of a Redis Cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
import redis
from redis.crc import key_slot

from korvet.cluster.registration import Endpoint, Registration
from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.redis import permissions, scripts
from korvet.redis.client import Redis
from korvet.server.supervisor import redis_check
from tests.support import processes
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_cluster import redis_cluster as run_cluster

pytestmark = pytest.mark.slow


def is_loading(node: ClusterNode) -> bool:
    """Whether a node refuses commands until it has its data."""
    try:
        node.client.ping()
    except redis.BusyLoadingError:
        return True
    return False


def test_each_master_of_a_cluster_has_the_scripts_and_is_tried_out(redis_cluster: RedisCluster) -> None:
    settings = Settings(redis_url=redis_cluster.url)
    first = redis_check.prepare(settings)
    assert redis_check.prepare(settings).cluster_id == first.cluster_id
    assert [node.client.info()["number_of_cached_scripts"] for node in redis_cluster.nodes] == [
        len(list(scripts.all_scripts()))
    ] * 3
    keys = [node.client.keys() for node in redis_cluster.nodes]
    assert sorted(keys) == [[], [], [b"korvet:cluster-id"]]
    limited = redis_cluster.nodes[2]
    limited.call("ACL", "SETUSER", "default", "-xsetid")
    try:
        with pytest.raises(ConfigError, match="a permission is missing: XSETID"):
            redis_check.prepare(settings)
    finally:
        limited.call("ACL", "SETUSER", "default", "+@all")


def test_the_documented_permissions_suffice_on_a_cluster(redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.nodes:
        node.call("ACL", "SETUSER", "korvet", "on", ">secret", *permissions.rules("korvet"))
    url = redis_cluster.url.replace("//", "//korvet:secret@")
    settings = Settings(redis_url=url)
    try:
        assert redis_check.check(settings).version
        assert redis_check.prepare(settings).cluster_id
        with closing(Redis(url, timeout_ms=5000, connect_timeout_ms=5000)) as client:
            assert [client.call("HLEN", f"korvet:{number}") for number in range(20)] == [0] * 20
    finally:
        for node in redis_cluster.nodes:
            node.call("ACL", "DELUSER", "korvet")


def test_a_broker_starts_while_some_master_of_a_cluster_is_away() -> None:
    with run_cluster(3, 0, "--cluster-require-full-coverage", "yes") as cluster:
        settings = Settings(redis_url=cluster.url)
        prepared = redis_check.prepare(settings)
        away = next(node for node in cluster.nodes if node is not cluster.node_of("korvet:cluster-id"))
        away.kill()
        facts = redis_check.check(settings)
        assert [finding.said.partition(":")[0] for finding in facts.findings] == [
            "appendonly is off",
            "cluster-require-full-coverage is yes",
        ]
        assert redis_check.prepare(settings) == prepared
        for node in cluster.living():
            node.kill()
        with pytest.raises(ConfigError, match=r"redis\.url cluster"):
            redis_check.check(settings)


def test_a_master_that_a_start_cannot_do_without_is_named() -> None:
    with run_cluster(2) as cluster:
        settings = Settings(redis_url=cluster.url)
        away = cluster.node_of("korvet:brokers")
        assert away is not cluster.node_of("korvet:cluster-id")
        away.kill()
        redis_check.prepare(settings)
        start = Registration(
            broker_id=1, listeners={"PLAINTEXT": Endpoint("127.0.0.1", 9092)}, incarnation="first"
        )
        with pytest.raises(
            ConfigError, match=f"{away.address}, which has {{korvet:brokers}}:format: Connection refused"
        ):
            redis_check.register(settings, start, own=False)


def test_a_master_that_loads_its_data_is_not_waited_for() -> None:
    slow = (
        "--key-load-delay",
        "20000",
        "--rdbcompression",
        "no",
        "--loading-process-events-interval-bytes",
        "1024",
    )
    with run_cluster(2, 0, *slow) as cluster, ThreadPoolExecutor(1) as threads:
        settings = Settings(redis_url=cluster.url)
        redis_check.prepare(settings)
        loading = cluster.node_of("korvet:brokers")
        loading.call("DEBUG", "POPULATE", 5000, "{korvet:brokers}", 1024)
        threads.submit(loading.call, "DEBUG", "RELOAD")
        processes.wait_until(partial(is_loading, loading), "it loads its data")
        assert redis_check.check(settings).version
        assert redis_check.prepare(settings).cluster_id
        other = cluster.node_of("korvet:cluster-id")
        other.kill()
        with pytest.raises(ConfigError, match=f"Redis at {loading.address} is loading its data: try again"):
            redis_check.check(settings)
        loading.kill()


def test_a_start_waits_for_slots_that_move(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, probed = key_slot(b"korvet:cluster-id"), key_slot(b"korvet:probe:0")
    source = redis_cluster.owner(slot)
    to = next(node for node in redis_cluster.nodes if node not in (source, redis_cluster.owner(probed)))
    settings = Settings(redis_url=redis_cluster.url)
    redis_cluster.begin_move(slot, to)
    probed_source = redis_cluster.begin_move(probed, to)
    try:
        monkeypatch.setattr(redis_check, "_MOVING_TRIES", 2)
        with pytest.raises(ConfigError, match=f"korvet:cluster-id is being moved away from {source.address}"):
            redis_check.prepare(settings)
        # What moves a slot takes its time: in this pause it ends.
        monkeypatch.setattr(
            "korvet.server.supervisor.redis_check.time.sleep",
            lambda _: redis_cluster.end_move(slot, source, to),
        )
        assert redis_check.prepare(settings).cluster_id
    finally:
        monkeypatch.undo()
        redis_cluster.end_move(probed, probed_source, to)
        redis_cluster.move_slot(probed, probed_source)
        redis_cluster.move_slot(slot, source)


def test_a_master_that_refuses_the_login_is_named(redis_cluster: RedisCluster) -> None:
    strange = redis_cluster.nodes[1]
    strange.call("CONFIG", "SET", "requirepass", "another")
    try:
        with pytest.raises(ConfigError, match=f"redis.url: {strange.address} refuses: "):
            redis_check.check(Settings(redis_url=redis_cluster.url))
    finally:
        strange.client.execute_command("AUTH", "another")
        strange.call("CONFIG", "SET", "requirepass", "")


def test_a_warning_about_some_masters_names_them(redis_cluster: RedisCluster) -> None:
    other = redis_cluster.nodes[1]
    other.call("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    try:
        facts = redis_check.check(Settings(redis_url=redis_cluster.url))
    finally:
        other.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    first, second = facts.findings
    assert "(at " not in first.said
    assert second.said.endswith(f"no topic is served (at {other.address})")


def test_a_start_waits_for_masters_that_have_just_begun() -> None:
    with run_cluster(2) as cluster:
        settings = Settings(redis_url=cluster.url)
        for node in cluster.nodes:
            node.kill()
            node.start()
        with pytest.raises(ConfigError, match="the cluster is down"):
            redis_check.check(settings)
        said: list[str] = []
        assert redis_check.check(settings, said.append, 60_000).version
        assert {node.info()["cluster_state"] for node in cluster.nodes} == {"ok"}
        assert set(said) == {"Redis is a cluster that is not in order yet"}
        assert redis_check.prepare(settings).cluster_id
