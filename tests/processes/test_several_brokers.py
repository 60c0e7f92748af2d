"""Several brokers on one Redis: who has which id, and for how long."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from korvet.cluster.data_format import OWN
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.cli.commands import done, done_as_json, korvet
from tests.support import golden, ops, processes, reading
from tests.support.broker import KORVET, LATER_BUILD, START_SECONDS_MAX, Broker, echo_broker, korvet_broker
from tests.support.topic_client import Client

BROKERS = "korvet:brokers"
LEASE_MS = 1500


def rows(client: Any) -> dict[int, dict[str, Any]]:
    """Return what is registered, live or not, by id."""
    return {int(name): json.loads(text) for name, text in client.hgetall(BROKERS).items()}


def brokers_of(broker: Broker) -> list[int]:
    """Return the ids of the brokers that clients of this one get."""
    with Client(broker.address) as client:
        return [item.node_id for item in client.call(MetadataRequest(topics=[]), 12).brokers]


def refusal(broker: Broker) -> str:
    """Return what a broker that ends at its start says last."""
    assert broker.process.wait(START_SECONDS_MAX) == 2
    return broker.log().splitlines()[-1]


def test_the_id_of_a_live_broker_is_refused_with_its_address(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    url = f"redis.url={redis_url}"
    with echo_broker(tmp_path / "one", url, "broker.id=3", workers=1) as one:
        before = rows(raw_redis)[3]
        with echo_broker(tmp_path / "two", url, "broker.id=3", ready=False) as two:
            line = refusal(two)
            assert line.startswith(f"korvet: broker.id 3 belongs to a live broker at {one.bootstrap}, whose")
            assert "give each broker an id of its own" in line
            assert not processes.children(two.pid)
        assert rows(raw_redis)[3]["incarnation"] == before["incarnation"]


def test_a_free_id_is_taken(tmp_path: Path, redis_url: str, raw_redis: Any) -> None:
    values = (f"redis.url={redis_url}", "broker.id=-1")
    with (
        echo_broker(tmp_path / "one", *values, workers=1),
        echo_broker(tmp_path / "two", *values, workers=1) as two,
    ):
        assert sorted(rows(raw_redis)) == [0, 1]
        assert "  broker      1 of cluster " in two.output()
        assert f"{rows(raw_redis)[1]['host']}:{rows(raw_redis)[1]['port']}" == two.bootstrap


def test_a_broker_is_live_as_long_as_it_runs_and_no_longer(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    values = (f"redis.url={redis_url}", f"broker.lease.ms={LEASE_MS}")
    with echo_broker(tmp_path, *values, workers=1) as broker:
        first = rows(raw_redis)[0]
        assert (first["host"], first["port"]) == broker.address
        processes.wait_until(lambda: rows(raw_redis)[0]["until"] > first["until"] + LEASE_MS, "it renews")
        raw_redis.delete(BROKERS)
        processes.wait_until(lambda: rows(raw_redis).get(0), "it registers again after Redis lost all")
        assert rows(raw_redis)[0]["incarnation"] == first["incarnation"]
        assert broker.stop() == 0
        seconds, microseconds = raw_redis.time()
        assert rows(raw_redis)[0]["until"] <= seconds * 1000 + microseconds // 1000


def test_a_broker_leads_nothing_until_a_worker_of_it_accepts(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    flags = ("--redis-url", redis_url, "--broker-id", "0")
    # Its workers die before they accept.
    starting = (f"redis.url={redis_url}", "broker.id=1", "num.partitions=13")
    with (
        korvet_broker(tmp_path / "one", *flags, workers=1) as one,
        echo_broker(tmp_path / "two", *starting, workers=1, ready=False),
    ):
        processes.wait_until(lambda: 1 in rows(raw_redis), "it is registered")
        assert brokers_of(one) == [0, 1]
        reading.create_topic(one.bootstrap, "orders", 20)
        with Client(one.address) as client:
            orders = MetadataRequestTopic(name="orders")
            [topic] = client.call(MetadataRequest(topics=[orders]), 12).topics
        assert {partition.leader_id for partition in topic.partitions} == {0}


def test_a_reload_keeps_the_broker_registered_with_its_new_address(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    config = tmp_path / "korvet.toml"
    config.write_text('"advertised" = "one.example:1"\n')
    values = (f"redis.url={redis_url}", "broker.lease.ms=60000")
    with echo_broker(tmp_path, "--config", str(config), *values, workers=1) as broker:
        first = rows(raw_redis)[0]
        assert (first["host"], first["port"]) == ("one.example", 1)
        keeper = broker.child_pids("keeper")
        config.write_text('"advertised" = "two.example:2"\n')
        broker.signal(signal.SIGHUP)

        def address() -> tuple[str, int]:
            result = rows(raw_redis)[0]  # never without a row: the clients of another broker would see it
            return result["host"], result["port"]

        processes.wait_until(lambda: address() == ("two.example", 2), "the new address is registered")
        assert broker.child_pids("keeper") != keeper
        assert rows(raw_redis)[0]["started"] == first["started"]


def test_a_broker_that_lost_its_id_says_so_once_and_serves_on(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    values = ("--redis-url", redis_url, "--set", "broker.lease.ms=300")
    with korvet_broker(tmp_path, *values, workers=1) as broker:
        other = rows(raw_redis)[0] | {"port": 1, "incarnation": "other", "until": 9_999_999_999_999}
        raw_redis.hset(BROKERS, 0, json.dumps(other))
        complaint = "keeper cannot register this broker"
        processes.wait_until(lambda: complaint in broker.log(), "it says so")
        assert brokers_of(broker) == [0]
        processes.wait_until(lambda: ops.total(broker, "korvet_broker_registered") == 0, "the metric too")
        raw_redis.hset(BROKERS, 0, json.dumps(other | {"until": 1}))
        processes.wait_until(lambda: rows(raw_redis)[0]["incarnation"] != "other", "it has its id again")
        assert broker.log().count(complaint) == 1
        processes.wait_until(lambda: ops.total(broker, "korvet_broker_registered") == 1, "the metric says so")


def test_a_broker_stops_when_a_later_version_has_written_data_that_it_would_misread(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    key = "{korvet:brokers}:format"
    values = (f"redis.url={redis_url}", "broker.lease.ms=300")
    with echo_broker(tmp_path / "running", *values, workers=1) as broker:
        assert raw_redis.hgetall(key)[b"format"] == b"%d" % OWN.format
        raw_redis.hset(key, mapping={"version": "9.1", "format": "12", "reader": "11", "writer": "12"})
        assert broker.process.wait(START_SECONDS_MAX) == 0
        own = f"{OWN.version} (format {OWN.format})"
        said = f"the data was written by Korvet 9.1 (format 12), and {own} may not write it"
        [line] = [line for line in broker.log().splitlines() if "this broker stops" in line]
        assert said in line
    with echo_broker(tmp_path / "new", *values, ready=False) as new:
        assert refusal(new) == f"korvet: redis.url: {said}: take Korvet 9.1 or later"
    raw_redis.hset(key, "writer", "some")
    with echo_broker(tmp_path / "malformed", *values, ready=False) as new:
        assert refusal(new).startswith(f"korvet: redis.url: {key} is malformed: ")


def test_an_upgrade_can_be_gone_back_from_until_its_format_is_finalized(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    """Two brokers are replaced one by one: forward, back, forward; the later build has format 3."""

    def start(broker_id: int, program: Sequence[str] = KORVET) -> AbstractContextManager[Broker]:
        flags = ("--redis-url", redis_url, "--broker-id", str(broker_id))
        return korvet_broker(
            tmp_path / str(len(list(tmp_path.iterdir()))), *flags, workers=1, program=program
        )

    def finalize(broker: Broker) -> subprocess.CompletedProcess[str]:
        return korvet("features", "set", "-b", broker.bootstrap, "korvet.format=3")

    def builds(broker: Broker) -> list[tuple[str, int]]:
        described = done_as_json("cluster", "describe", "-b", broker.bootstrap)
        return [(row["version"], row["format"]) for row in described["brokers"]]

    own, later = (OWN.version, 2), ("9.9.0", 3)
    with start(1) as second:
        with start(0) as first:
            reading.produce(first.bootstrap, "orders", {"value": b"old"})
            assert builds(second) == [own, own]
        with start(0, LATER_BUILD) as replaced:
            reading.produce(replaced.bootstrap, "orders", {"value": b"new"})
            processes.wait_until(lambda: builds(second) == [later, own], "the second broker knows the first")
            assert "for feature korvet.format. Korvet only supports versions 2-2" in finalize(replaced).stderr
        with start(0) as back:
            reading.produce(back.bootstrap, "orders", {"value": b"back"})
            assert raw_redis.hget("{korvet:brokers}:format", "format") == b"2"
    with start(0, LATER_BUILD) as first, start(1, LATER_BUILD):
        assert done(finalize(first)) == "set korvet.format=3\n"
        assert raw_redis.hget("{korvet:brokers}:format", "format") == b"3"
        reading.produce(first.bootstrap, "orders", {"value": b"final"})
        with echo_broker(tmp_path / "older", f"redis.url={redis_url}", "broker.id=2", ready=False) as older:
            said = f"the data was written by Korvet 9.9.0 (format 3), and {OWN.version} (format 2) may not write it"
            assert refusal(older) == f"korvet: redis.url: {said}: take Korvet 9.9.0 or later"
        records = golden.read(first.bootstrap, "read_committed", ["orders"])["orders", 0]
    assert [record.value for record in records] == [b"old", b"new", b"back", b"final"]


def test_an_embedded_server_knows_its_broker_again_after_a_crash(tmp_path: Path) -> None:
    # At another port, and long before its lease has run out.
    data = tmp_path / "data"
    values = ("broker.lease.ms=600000",)
    with echo_broker(tmp_path / "one", *values, workers=1, data_dir=data) as one:
        server = one.server_pid()
        one.kill()
        processes.wait_until(lambda: not processes.alive(server), "the server has ended")
    with echo_broker(tmp_path / "two", *values, workers=1, data_dir=data) as two:
        assert two.bootstrap != one.bootstrap
