"""What is found of the nodes of a real Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from korvet.config.settings import Settings
from korvet.doctor import redis_server
from korvet.redis import permissions
from korvet.server.finding import Finding, Level
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_cluster import redis_cluster as run_cluster

pytestmark = pytest.mark.slow


def findings_of(settings: Settings) -> list[Finding]:
    return list(redis_server.examine(settings))


def said(findings: Iterable[Finding], what: str, level: Level = Level.WARNING) -> list[str]:
    return [finding.said for finding in findings if finding.what == what and finding.level is level]


def test_nodes_are_examined_one_by_one() -> None:
    with run_cluster(2, 1, "--proto-max-bulk-len", "1048576") as cluster:
        settings = Settings(redis_url=cluster.url, min_insync_replicas=2)
        one, other = cluster.masters()
        one.call("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        stream = "korvet:orders:0"
        for _ in range(20):
            cluster.node_of(stream).client.xadd(stream, {"": b"x" * 100_000})
        findings = findings_of(settings)
        assert said(findings, "nodes", Level.OK) == ["2 of 2 masters answer"]
        [full] = said(findings, "cluster-require-full-coverage")
        assert full.endswith(f"(at {one.address})")
        [large] = said(findings, "largest stream")
        assert large.startswith(f"{cluster.node_of(stream).address}: korvet:orders:0 takes 2 MiB")
        assert "more than proto-max-bulk-len (1 MiB)" in large
        assert [text.split(": ")[0] for text in said(findings, "failover")] == sorted(
            item.address for item in (one, other)
        )
        assert "waits for 1 replicas, and a failover leaves 0" in said(findings, "failover")[0]
        assert said(findings, "permissions", Level.OK)
        assert not said(findings, "versions")
        assert not said(findings, "clocks")
        assert len(said(findings, "clock", Level.OK)) == 2


def test_a_stream_above_the_query_buffer_limit_of_any_node_is_named() -> None:
    with run_cluster(2) as cluster:
        stream = "korvet:orders:0"
        owner = cluster.node_of(stream)
        for _ in range(20):
            owner.client.xadd(stream, {"": b"x" * 100_000})
        settings = Settings(redis_url=cluster.url)
        assert said(findings_of(settings), "largest stream") == []
        [other] = [node for node in cluster.nodes if node is not owner]
        other.client.config_set("client-query-buffer-limit", 1 << 20)
        [large] = said(findings_of(settings), "largest stream")
        assert "more than client-query-buffer-limit (1 MiB)" in large


def test_a_node_that_is_away_is_named_and_the_others_are_examined() -> None:
    with run_cluster(2) as cluster:
        registry = cluster.node_of("korvet:topics")
        away = next(node for node in cluster.nodes if node is not registry)
        away.kill()
        findings = findings_of(Settings(redis_url=cluster.url))
        assert said(findings, "nodes", Level.ERROR) == [
            f"{away.address}: Connection refused: its topics and groups are not served"
        ]
        assert said(findings, "nodes", Level.OK) == ["1 of 2 masters answer"]
        assert [text.split(": ")[0] for text in said(findings, "latency", Level.OK)] in (
            [],
            [registry.address],
        )
        assert said(findings, "permissions", Level.OK)


def test_a_key_that_all_brokers_share_is_named_while_its_master_is_away() -> None:
    with run_cluster(2) as cluster:
        away = cluster.node_of("korvet:brokers")
        away.kill()
        findings = findings_of(Settings(redis_url=cluster.url))
        assert said(findings, "registry", Level.ERROR) == [
            f"{away.address}, which has the key korvet:brokers, does not answer"
        ]
        assert said(findings, "cluster.id", Level.OK)


def test_large_streams_need_permissions_of_their_own(redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.nodes:
        node.call("ACL", "SETUSER", "korvet", "on", ">secret", *permissions.rules("korvet"))
    try:
        findings = findings_of(Settings(redis_url=redis_cluster.url.replace("//", "//korvet:secret@")))
    finally:
        for node in redis_cluster.nodes:
            node.call("ACL", "DELUSER", "korvet")
    notes = said(findings, "largest stream", Level.OK)
    assert len(notes) == 3
    assert all("needs +scan and +memory|usage" in note for note in notes)


def test_slots_without_a_master_are_an_error() -> None:
    with run_cluster(2) as cluster:
        one, other = cluster.nodes
        for node in (one, other):
            node.call("CLUSTER", "DELSLOTSRANGE", 0, 9)
        [error] = said(findings_of(Settings(redis_url=cluster.url)), "redis", Level.ERROR)
        assert "10 of the cluster's 16384 slots have no master" in error
