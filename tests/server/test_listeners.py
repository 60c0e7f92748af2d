"""Named listeners by bytes: which brokers the clients of each get, in every answer that names brokers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.schema import Message
from korvet.protocol.types import ResourceType
from tests.support import processes, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client
from tests.support.wire_client import ClosedByBrokerError, clients_of_two_workers

pytestmark = pytest.mark.slow

INSIDE, OUTSIDE = "INSIDE", "OUTSIDE"
BROKERS = "korvet:brokers"
ASSIGNED = [[0, 1], [1, 0], [2, 0]]

Address = tuple[str, int]


def listen(*names: str, advertised: str = "") -> Sequence[str]:
    """Return the flags for listeners on free ports, and what they advertise instead, if anything."""
    wanted = ",".join(f"{name}://127.0.0.1:0" for name in names)
    protocols = ",".join(f"{name}:PLAINTEXT" for name in names)
    flags = (
        f"listeners={wanted}",
        f"advertised.listeners={advertised}",
        f"listener.security.protocol.map={protocols}",
    )
    return [word for flag in flags for word in ("--set", flag)]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Run brokers 0 and 1 with both listeners and broker 2 with the one inside; topic `led` has each as a leader."""
    with ExitStack() as running:
        url = running.enter_context(redis_servers.server())
        started = []
        for number, names in enumerate([(INSIDE, OUTSIDE), (OUTSIDE, INSIDE), (INSIDE,)]):
            flags = ("--redis-url", url, "--broker-id", str(number))
            directory = tmp_path_factory.mktemp("broker")
            started.append(
                running.enter_context(korvet_broker(directory, *flags, workers=1, listen=listen(*names)))
            )
        assigned = [
            CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in enumerate(ASSIGNED)
        ]
        with Client(started[2].address) as client:
            topic = CreatableTopic(name="led", num_partitions=-1, replication_factor=-1, assignments=assigned)
            [result] = client.call(CreateTopicsRequest(topics=[topic]), 7).topics
            assert result.error_code == 0, result.error_message
        yield started
        assert all("Traceback" not in process.log() for process in started)


@pytest.fixture(scope="module")
def addresses(brokers: list[Broker]) -> dict[str, dict[int, Address]]:
    """Give what each listener has for addresses, by the brokers' ids."""
    inside = {0: brokers[0].at(INSIDE), 1: brokers[1].at(INSIDE), 2: brokers[2].address}
    return {INSIDE: inside, OUTSIDE: {item: brokers[item].at(OUTSIDE) for item in (0, 1)}}


@pytest.fixture(params=[(INSIDE, 0), (INSIDE, 1), (INSIDE, 2), (OUTSIDE, 0), (OUTSIDE, 1)])
def listener(
    request: pytest.FixtureRequest, addresses: dict[str, dict[int, Address]]
) -> Iterator[tuple[str, Client]]:
    """Give a listener's name and a connection to it, for each listener of each broker."""
    name, number = request.param
    with Client(addresses[name][number]) as client:
        yield name, client


def nodes(answer: Any, key: str) -> dict[int, Address]:
    """Return the brokers of an answer: id -> address."""
    return {getattr(broker, key): (broker.host, broker.port) for broker in answer.brokers}


def test_brokers_are_those_of_the_callers_listener_at_its_addresses(
    listener: tuple[str, Client], addresses: dict[str, dict[int, Address]]
) -> None:
    name, client = listener
    for version in (1, 5, 13):
        answer = client.call(MetadataRequest(topics=[]), version)
        assert nodes(answer, "node_id") == addresses[name]
        assert answer.controller_id in addresses[name]
    answer = client.call(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
    assert nodes(answer, "broker_id") == addresses[name]
    assert answer.controller_id in addresses[name]
    answer = client.call(ListConfigResourcesRequest(resource_types=[ResourceType.BROKER]), 1)
    assert [int(config_resource.resource_name) for config_resource in answer.config_resources] == list(
        addresses[name]
    )


@pytest.mark.parametrize(
    ("request_", "version", "missing"),
    [
        (MetadataRequest(topics=[MetadataRequestTopic(name="led")]), 5, ErrorCode.LEADER_NOT_AVAILABLE),
        (MetadataRequest(topics=[MetadataRequestTopic(name="led")]), 6, ErrorCode.LISTENER_NOT_FOUND),
        (DescribeTopicPartitionsRequest(topics=[TopicRequest(name="led")]), 0, ErrorCode.NONE),
    ],
    ids=lambda value: value if isinstance(value, int) else type(value).__name__,
)
def test_a_leader_without_the_listener_is_none_as_in_kafka(
    listener: tuple[str, Client], request_: Message, version: int, missing: ErrorCode
) -> None:
    name, client = listener
    [topic] = client.call(request_, version).topics
    assert topic.error_code == 0
    result = [
        (partition.error_code, partition.leader_id, partition.offline_replicas)
        for partition in topic.partitions
    ]
    last = (0, 2, []) if name == INSIDE else (missing, -1, [2])
    assert result == [(0, 0, []), (0, 1, []), last]
    assert [partition.replica_nodes for partition in topic.partitions] == ASSIGNED
    assert topic.partitions[2].isr_nodes == [2, 0]


def test_a_coordinator_is_at_the_callers_listener_or_not_available(
    listener: tuple[str, Client], addresses: dict[str, dict[int, Address]], brokers: list[Broker]
) -> None:
    name, client = listener
    keys = [f"group-{n}" for n in range(12)]
    with Client(brokers[2].address) as inside:
        known = inside.call(FindCoordinatorRequest(coordinator_keys=keys), 4).coordinators
    kept_by = {statistic.key: statistic.node_id for statistic in known}
    assert set(kept_by.values()) == {0, 1, 2}
    for one in client.call(FindCoordinatorRequest(coordinator_keys=keys), 4).coordinators:
        alone = client.call(FindCoordinatorRequest(key=one.key), 3)
        expected = (0, kept_by[one.key], *addresses[name].get(kept_by[one.key], ()))
        if len(expected) == 2:
            expected = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)
            assert one.error_message == alone.error_message == "broker 2 has no listener OUTSIDE"
        for item in (one, alone):
            assert (item.error_code, item.node_id, item.host, item.port) == expected


def test_every_listener_is_announced_registered_and_may_be_ipv6(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    advertised = "OUTSIDE://broker.example:19094"
    wanted = "listeners=V6://[::1]:0,inside://127.0.0.1:0,OUTSIDE://0.0.0.0:0"
    protocols = "listener.security.protocol.map=v6:plaintext,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"
    flags = ("--set", wanted, "--set", protocols, "--set", f"advertised.listeners={advertised}")
    with korvet_broker(tmp_path, "--redis-url", redis_url, workers=1, listen=flags) as broker:
        ports = {name: broker.at(name)[1] for name in ("V6", INSIDE, OUTSIDE)}
        lines = broker.output().splitlines()[1:4]
        assert lines == [
            f"  bootstrap   [::1]:{ports['V6']} (V6, 1 worker)",
            f"              127.0.0.1:{ports[INSIDE]} (INSIDE)",
            f"              broker.example:19094 (OUTSIDE, listening on 0.0.0.0:{ports[OUTSIDE]})",
        ]
        row = json.loads(raw_redis.hget(BROKERS, 0))
        assert row["listeners"] == {
            "V6": ["::1", ports["V6"]],
            "INSIDE": ["127.0.0.1", ports[INSIDE]],
            "OUTSIDE": ["broker.example", 19094],
        }
        assert (row["host"], row["port"]) == ("::1", ports["V6"])
        for name, (host, port) in row["listeners"].items():
            with Client(("127.0.0.1", ports[name]) if name == OUTSIDE else broker.at(name)) as client:
                answer = client.call(MetadataRequest(topics=[]), 12)
                assert nodes(answer, "node_id") == {0: (host, port)}


def test_every_worker_serves_every_listener_and_so_do_those_of_a_reload(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=2, listen=listen(INSIDE, OUTSIDE)) as broker:

        def brokers_at(name: str) -> dict[int, Address]:
            try:
                with Client(broker.at(name)) as client:
                    return nodes(client.call(MetadataRequest(topics=[]), 12), "node_id")
            except (
                ConnectionError,
                ClosedByBrokerError,
            ):  # by a worker that ends: a client then connects again
                return {}

        def check() -> None:
            pids = broker.worker_pids()
            for name in (INSIDE, OUTSIDE):
                with clients_of_two_workers(broker.at(name), pids, Client) as clients:
                    for client in clients:
                        answer = client.call(MetadataRequest(topics=[]), 12)
                        assert nodes(answer, "node_id") == {0: broker.at(name)}

        check()
        before = set(broker.worker_pids())
        broker.signal(signal.SIGHUP)
        while before & set(broker.worker_pids()):
            for name in (INSIDE, OUTSIDE):
                processes.wait_until(lambda name=name: brokers_at(name) == {0: broker.at(name)}, "an answer")  # type: ignore[misc]  # a lambda's default has no type
        processes.wait_until(lambda: "the workers are replaced" in broker.log(), "the reload ends")
        check()


def test_a_reload_advertises_other_addresses_and_names_listeners_that_need_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "korvet.toml"
    ports = [processes.free_port() for _ in range(3)]
    protocols = '"listener.security.protocol.map" = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"\n'
    both = f'{protocols}"listeners" = "INSIDE://127.0.0.1:{ports[0]},OUTSIDE://127.0.0.1:{ports[1]}"\n'
    config.write_text(f'{both}"advertised.listeners" = "OUTSIDE://one.example:1"\n')
    with korvet_broker(tmp_path, "--config", str(config), workers=1, listen=()) as broker:

        def advertised_by(name: str) -> Address:
            with Client(broker.at(name)) as client:
                return nodes(client.call(MetadataRequest(topics=[]), 12), "node_id")[0]

        assert (advertised_by(INSIDE), advertised_by(OUTSIDE)) == (
            ("127.0.0.1", ports[0]),
            ("one.example", 1),
        )
        config.write_text(
            f'{protocols}"listeners" = "INSIDE://127.0.0.1:{ports[2]},OUTSIDE://127.0.0.1:{ports[1]}"\n'
            '"advertised.listeners" = "OUTSIDE://two.example:2"\n'
        )
        broker.reload()
        assert broker.log().count("a new value needs a restart setting=listeners") == 1
        assert (advertised_by(INSIDE), advertised_by(OUTSIDE)) == (
            ("127.0.0.1", ports[0]),
            ("two.example", 2),
        )

        config.write_text(
            '"listener.security.protocol.map" = "THIRD:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"\n'
            f'"listeners" = "THIRD://127.0.0.1:{ports[0]}"\n"advertised.listeners" = "THIRD://three.example:3"\n'
        )
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: "the configuration is kept as it was" in broker.log(), "the refusal")
        assert "there is no listener THIRD" in broker.log()
        assert advertised_by(OUTSIDE) == ("two.example", 2)
