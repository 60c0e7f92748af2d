"""The console's data on broker, topics, groups, transactions and lake."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from korvet import __version__
from korvet.admin.types import TopicPartition
from korvet.console.pages import ConsoleMetrics
from korvet.errors import ErrorCode
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.types import CoordinatorType
from korvet.redis.keys import Keys
from korvet.telemetry.snapshot import LogStatsSnapshot, publish
from korvet.telemetry.stats import GroupLag, LogStats
from korvet.telemetry.topic_counters import TopicTraffic, TrafficSnapshot
from tests.support import redis_cluster as clusters
from tests.support.batches import batch
from tests.support.broker import Broker, echo_broker, korvet_broker, korvet_cluster, steady_broker
from tests.support.console import Caller
from tests.support.group_consumer import joined
from tests.support.processes import alive, wait_until
from tests.support.redis_cluster import RedisCluster
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

HOSTILE = ["<img src=x onerror=alert(1)>", "a/b?c=d&e#f", "..", "grüße\u202e", "\"'\n\0", " "]


def test_the_overview_has_processes_and_the_cluster_its_brokers(broker: Broker, console: Caller) -> None:
    data = console.data("overview")
    worker = data["processes"][0]
    assert (worker["name"], worker["state"], worker["pid"]) == (
        "worker 0",
        "accepting",
        broker.worker_pids()[0],
    )
    assert {item["name"] for item in data["processes"]} == {"worker 0", "keeper", "ops"}
    assert (data["broker"], data["draining"], data["restarts"], data["changes"]) == (0, False, 0, True)
    cluster = console.data("cluster")
    assert cluster["id"] == data["cluster"]
    assert cluster["brokers"] == [
        {"id": 0, "address": broker.bootstrap, "rack": None, "controller": True, "own": True}
        | {"version": __version__, "format": 2}
    ]


def test_counters_grow_with_what_clients_do(console: Caller, client: Client, name: str) -> None:
    client.create(name)
    before = console.data("overview")["totals"]
    client.append(name, b"x" * 1000)

    def grown() -> bool:
        now = console.data("overview")["totals"]
        return bool(
            now["received_bytes"] > before["received_bytes"] + 1000 and now["requests"] > before["requests"]
        )

    wait_until(grown, "the worker hands over its counts")


def test_the_overview_has_redis_counts_and_what_was_refused(
    console: Caller, client: Client, name: str
) -> None:
    [redis] = console.data("overview")["redis"]
    assert redis["node"] == ""
    assert redis["memory"] > 0
    assert redis["memory_max"] is not None
    assert (redis["aof"], redis["persists"], redis["master"]) == (True, True, True)
    assert redis["fsync"] in {"always", "everysec"}
    assert (redis["replicas"], redis["replicas_wanted"]) == (0, 0)
    before = console.data("cluster")
    client.create(name, partitions=3)
    move = {"name": name, "to": "latest", "topic": name, "execute": True}
    console.changed("POST", "groups/offsets", move)
    after = console.data("cluster")
    grown = [after[item] - before[item] for item in ("topics", "partitions", "groups")]
    assert grown == [1, 3, 1]
    began = int(time.time() * 1000)
    assert client.produce(name, batch(b"x")[:-1] + b"?").error_code == ErrorCode.CORRUPT_MESSAGE

    def refused() -> bool:
        rows = {item["error"]: item for item in console.data("overview")["refused"]}
        row = rows.get("CORRUPT_MESSAGE")
        return bool(row and row["batches"] >= 1 and began <= row["last"] <= time.time() * 1000)

    wait_until(refused, "the worker hands over its counts")


def test_topics_come_a_page_at_a_time_with_size_and_configs(
    console: Caller, client: Client, name: str
) -> None:
    names = [f"{name}-{letter}" for letter in "abc"]
    for item in names:
        client.create(item, partitions=2, storage_format="batch", retention_ms="60000")
    client.append(names[1], b"x" * 500, partition=1)
    data = console.data("topics", q=name.upper())
    assert [item["name"] for item in data["topics"]] == names
    assert data["total"] == 3
    row = data["topics"][1]
    assert row["partitions"] == 2
    assert row["size"] > 500
    assert row["configs"] == {
        "cleanup.policy": "delete",
        "remote.storage.enable": "false",
        "retention.ms": "60000",
        "storage.format": "batch",
    }
    page = console.data("topics", **{"q": name, "from": 2, "count": 1})
    assert ([item["name"] for item in page["topics"]], page["total"]) == (names[2:], 3)


def test_a_topic_has_partitions_and_configs(console: Caller, client: Client, name: str) -> None:
    client.create(name, partitions=2, storage_format="batch", cleanup_policy="compact")
    data = console.data("topic", name=name)
    assert [
        (item["partition"], item["leader"], item["start"], item["end"]) for item in data["partitions"]
    ] == [(0, 0, "0", "0"), (1, 0, "0", "0")]
    configs = {item["name"]: item for item in data["configs"]}
    assert configs["cleanup.policy"]["value"] == "compact"
    assert configs["cleanup.policy"]["own"] is True
    assert configs["retention.ms"]["own"] is False
    assert configs["retention.ms"]["documentation"]


def test_a_group_has_members_offsets_and_lag(
    broker: Broker, console: Caller, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    client.append(name, b"one", b"two", b"three")
    move = {"name": name, "to": "offset", "value": "1", "topic": name, "execute": True}
    console.changed("POST", "groups/offsets", move)
    [row] = console.data("groups", q=name)["groups"]
    assert (row["state"], row["count"], row["lag"], row["lag_unknown"]) == ("Empty", 0, 2, 0)
    assert (row["uncommitted_count"], row["uncommitted"]) == (0, 0)
    data = console.data("group", name=name)
    assert data["offsets"] == [
        {
            "topic": name,
            "partition": 0,
            "committed": "1",
            "metadata": "",
            "end": "3",
            "lag": 2,
            "uncommitted": None,
            "member": None,
            "client": None,
        }
    ]
    for protocol in ("classic", "consumer"):
        with joined(broker.bootstrap, name, name, protocol=protocol):
            data = console.data("group", name=name)
            [member] = data["members"]
            assert (member["host"], member["partitions"]) == ("/127.0.0.1", [f"{name}:0"])
            assert (data["type"], data["state"], data["lag"]) == (protocol, "Stable", 2)
            [row] = console.data("groups", q=name)["groups"]
            assert (row["type"], row["state"], row["count"]) == (protocol, "Stable", 1)
    assert data["timed_topics"] == []
    client.create(f"{name}-timed", storage_format="record")
    client.append(f"{name}-timed", b"one")
    console.changed("POST", "groups/offsets", move | {"topic": f"{name}-timed"})
    assert console.data("group", name=name)["timed_topics"] == [f"{name}-timed"]


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_share_group_has_members_starts_and_lag(
    console: Caller, client: Client, name: str, storage_format: str
) -> None:
    topic_id = client.create(name, partitions=2, storage_format=storage_format)
    consumer = ShareConsumer(client, name, name).on(topic_id)
    [row] = console.data("groups", q=name)["groups"]
    assert (row["type"], row["state"], row["count"]) == ("share", "Stable", 1)
    assert (row["topics"], row["lag"], row["uncommitted_count"]) == ([name], None, 2)
    assert consumer.poll() == []
    start = client.append(name, b"one", b"two", b"three")
    consumer.accept(consumer.poll()[:1])
    [row] = console.data("groups", q=name)["groups"]
    assert (row["partition_count"], row["lag"], row["uncommitted_count"]) == (2, 2, 1)
    data = console.data("group", name=name)
    assert (data["lag"], data["lag_unknown"], data["uncommitted_count"]) == (2, 0, 1)
    [member] = data["members"]
    assert (member["id"], member["partitions"]) == (consumer.id, [f"{name}:0", f"{name}:1"])
    assert (data["type"], data["protocol"]) == ("share", "simple")
    begun, not_begun = data["offsets"]
    assert (begun["committed"], begun["end"], begun["lag"]) == (str(start + 1), str(start + 3), 2)
    assert (begun["uncommitted"], begun["member"]) == (None, None)
    assert (not_begun["committed"], not_begun["lag"]) == (None, None)
    consumer.leave()
    assert console.data("group", name=name)["lag"] == 2
    [row] = console.data("groups", q=name)["groups"]
    assert (row["partition_count"], row["lag"]) == (0, None)  # which partitions it has nothing lists


def test_transactions_come_with_what_they_have_open(
    broker: Broker, console: Caller, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions()
    [row] = console.data("transactions", q=name)["transactions"]
    assert (row["name"], row["state"], row["start"], row["partitions"]) == (name, "Empty", None, [])
    producer.begin_transaction()
    producer.produce(name, b"value", partition=1)
    producer.flush()
    data = console.data("transactions", q=name)
    [row] = data["transactions"]
    assert (row["state"], row["timeout"], row["partitions"]) == (
        "Ongoing",
        60_000,
        [{"topic": name, "partition": 1}],
    )
    assert row["start"] <= data["now"]
    assert int(row["producer"]) > 0
    producer.abort_transaction()
    [row] = console.data("transactions", q=name.upper())["transactions"]
    assert (row["state"], row["start"], row["partitions"]) == ("CompleteAbort", None, [])


@pytest.mark.parametrize("group", HOSTILE)
def test_names_of_groups_may_be_anything(console: Caller, client: Client, name: str, group: str) -> None:
    client.create(name)
    console.changed("POST", "groups/offsets", {"name": group, "to": "latest", "topic": name, "execute": True})
    assert console.data("group", name=group)["name"] == group
    assert group in [item["name"] for item in console.data("groups")["groups"]]
    reply = console.get("/api/group", name=group)
    assert reply.headers["content-type"] == "application/json"
    console.changed("DELETE", "groups", {"name": group})
    assert console.get("/api/group", name=group).status == 404


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/topic?name=none", 404),
        ("/api/topic", 400),
        ("/api/topic?name=a/b", 400),
        (f"/api/topic?name={'x' * 5000}", 400),
        ("/api/group?name=none", 404),
        ("/api/records?topic=none", 404),
        ("/api/topics?from=-1", 400),
        ("/api/topics?count=101", 400),
        ("/api/topics?%", 400),
        ("/api/", 404),
        ("/api/topics/x", 404),
    ],
)
def test_errors_have_a_status_and_a_message(console: Caller, target: str, status: int) -> None:
    reply = console.call("GET", target)
    assert reply.status == status
    assert reply.data["error"]


def test_the_lake_has_the_offsets_of_archived_logs(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    directory = tmp_path_factory.mktemp("lake")
    idle = ("--set", "lake.interval.ms=0", "--set", "lake.upkeep.interval.ms=0")
    flags = ("--set", f"lake.path={directory / 'lake'}", *idle)
    with korvet_broker(directory, *flags, workers=1) as broker, Client(broker.address) as client:
        client.create(name, partitions=2, storage_format="batch", remote_storage_enable="true")
        client.append(name, b"one")
        caller = Caller(broker.ops_address)
        overview = caller.data("overview")
        assert overview["lake"] is True
        states = {item["name"]: item["state"] for item in overview["processes"]}
        assert (states["lake"], states["archiver"]) == ("accepting", "off")
        assert caller.data("lake")["partitions"] == [
            {"topic": name, "partition": 0, "start": "0", "local": "0", "archived": None, "end": "1"},
            {"topic": name, "partition": 1, "start": "0", "local": "0", "archived": None, "end": "0"},
        ]


def test_each_broker_has_the_transactions_of_every_coordinator_that_answers(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, name: str
) -> None:
    # The lease keeps a killed broker in the cluster, so that the other one asks it.
    lease = ("--set", "broker.lease.ms=600000")
    with korvet_cluster(tmp_path_factory.mktemp("coordinators"), redis_url, *lease) as brokers:
        names = [f"{name}-{number:02}" for number in range(32)]
        with Client(brokers[0].address) as client:
            client.create(name)
            request = FindCoordinatorRequest(key_type=CoordinatorType.TRANSACTION, coordinator_keys=names)
            # With 32 names, either broker coordinates some: one of each is used.
            by_coordinator = {
                coordinator.node_id: coordinator.key for coordinator in client.call(request, 4).coordinators
            }
        used = sorted(by_coordinator.values())
        assert by_coordinator.keys() == {0, 1}
        producers = [
            Producer({"bootstrap.servers": brokers[0].bootstrap, "transactional.id": item}) for item in used
        ]
        for producer in producers:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce(name, b"value")
            producer.flush()
        callers = [Caller(broker.ops_address) for broker in brokers]
        for caller in callers:
            data = caller.data("transactions", q=name)
            rows = data["transactions"]
            assert [item["name"] for item in rows] == used
            assert (data["total"], data["unanswered"]) == (2, [])
            assert [item["partitions"] for item in rows] == [[{"topic": name, "partition": 0}]] * 2
            assert all(item["start"] <= data["now"] for item in rows)
            second = caller.data("transactions", **{"q": name, "from": 1, "count": 1})
            assert ([item["name"] for item in second["transactions"]], second["total"]) == (used[1:], 2)
        workers = brokers[1].worker_pids()
        brokers[1].kill()
        wait_until(lambda: not any(map(alive, workers)), "the workers of the killed broker end")
        data = callers[0].data("transactions", q=name)
        [row], [unanswered] = data["transactions"], data["unanswered"]
        assert (row["name"], row["state"]) == (by_coordinator[0], "Ongoing")
        assert unanswered["broker"] == 1
        assert brokers[1].bootstrap in unanswered["error"]


def test_each_broker_has_the_data_of_the_whole_cluster_and_of_every_node_of_redis(
    tmp_path_factory: pytest.TempPathFactory, redis_cluster: RedisCluster, name: str
) -> None:
    with korvet_cluster(tmp_path_factory.mktemp("nodes"), redis_cluster.url) as brokers:
        with Client(brokers[0].address) as client:
            # A hash of the name places each partition: with 32, every name has some on either broker.
            client.create(name, partitions=32)
            for partition in range(32):
                client.append(name, b"x" * 100, partition=partition)
        held = Counter(
            redis_cluster.node_of(Keys("korvet").stream(name, index)).address for index in range(32)
        )
        assert len(held) == 3
        for number, broker in enumerate(brokers):
            caller = Caller(broker.ops_address)
            partitions = caller.data("topic", name=name)["partitions"]
            assert {item["leader"] for item in partitions} == {0, 1}
            assert all(item["size"] > 100 for item in partitions)
            cluster = caller.data("cluster")
            assert [item["own"] for item in cluster["brokers"]] == [number == 0, number == 1]
            nodes = cluster["nodes"]
            assert {node: item["partitions"] for node, item in nodes.items()} == held
            assert all(item["bytes"] > 100 * held[node] for node, item in nodes.items())


def test_a_node_of_redis_that_hangs_costs_the_overview_only_the_nodes(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    keys = Keys("korvet")
    with (
        clusters.redis_cluster(4) as cluster,
        # What a broker waits for is longer than the console does.
        steady_broker(tmp_path_factory.mktemp("hangs"), "--redis-url", cluster.url, workers=1) as broker,
    ):
        with Client(broker.address) as client:
            client.create(name, partitions=32)
        registry = [cluster.node_of(key) for key in (keys.topics, keys.brokers, keys.keeper_lease)]
        hangs = next(node for node in cluster.nodes if node not in registry)
        caller = Caller(broker.ops_address)
        assert caller.data("cluster")["nodes"].keys() == {node.address for node in cluster.nodes}
        hangs.freeze()
        result = caller.data("cluster")
        assert (result["partitions"], len(result["brokers"]), result["nodes"]) == (32, 1, {})
        hangs.thaw()


def test_a_broker_that_does_not_speak_kafka_is_an_error_and_its_processes_are_shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with echo_broker(tmp_path_factory.mktemp("echo"), workers=1) as broker:
        caller = Caller(broker.ops_address)
        reply = caller.get("/api/topics")
        assert reply.status == 502
        assert "error" in json.loads(reply.body)
        overview = caller.data("overview")
        assert overview["processes"]
        # Nor has it a file with a token.
        assert overview["changes"] is False
        assert caller.change("POST", "topics", {"name": "x"}).status == 404


def test_traffic_is_summed_over_the_workers(tmp_path: Path) -> None:
    for process in ("worker0", "worker1"):
        rows = [TopicTraffic("orders", "A" * 22, 3, 500, 2, 400)]
        publish(tmp_path / TrafficSnapshot.FILE.format(process), TrafficSnapshot(topics=rows))
    assert ConsoleMetrics(tmp_path).traffic() == {
        "orders": {"received_records": 6, "received_bytes": 1000, "sent_records": 4, "sent_bytes": 800}
    }


def test_what_the_keeper_counted_is_by_partition_and_while_it_is_valid(tmp_path: Path) -> None:
    lags = [
        GroupLag(group="a", topic="t", partition=1, records=7),
        GroupLag(group="b", topic="t", partition=None, records=9),
    ]
    now = time.time()
    sizes = {"size_bytes": 90, "index_rows": 1, "start_offset": 0, "end_offset": 9, "oldest_age_ms": 5}
    logs = [LogStats(topic="t", partition=partition, records=9, **sizes) for partition in (1, None)]
    snapshot = LogStatsSnapshot(valid_until=now + 3600, taken_at=now, logs=logs, lags=lags)
    publish(tmp_path / LogStatsSnapshot.FILE, snapshot)
    partition = TopicPartition("t", 1)
    largest = {"group": "b", "records": 9}
    assert ConsoleMetrics(tmp_path).counted() == ({("a", partition): 7}, {partition: 9}, largest)
    snapshot.valid_until = now - 1
    publish(tmp_path / LogStatsSnapshot.FILE, snapshot)
    assert ConsoleMetrics(tmp_path).counted() == ({}, {}, None)


def test_without_files_everything_is_empty(tmp_path: Path) -> None:
    metrics = ConsoleMetrics(tmp_path)
    assert set(metrics.totals().counts.values()) == {0.0}
    assert metrics.totals().refused == []
    assert metrics.traffic() == {}
    assert metrics.counted() == ({}, {}, None)
