"""The child that archives: on its own, by one broker of all, whatever of it is killed, and gone with its supervisor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from korvet.lake.table import Lake
from tests.support import processes
from tests.support.broker import (
    KORVET,
    START_SECONDS_MAX,
    Broker,
    echo_broker,
    korvet_broker,
    korvet_cluster,
    started,
)
from tests.support.ops import page

TOPIC = "orders"
STATE = f"{{korvet:{TOPIC}:0}}:state"
LEASE = "korvet:archiver"
WAIT_S = 240.0


def settings(lake: Path) -> dict[str, object]:
    """Return settings of a broker that archives often, and whose lease is soon taken over."""
    return {
        "lake.path": lake,
        "lake.interval.ms": 200,
        # A process that imports Spark's Python, or waits for a core beside its Java, renews in time.
        "keeper.lease.ms": 5000,
        "lake.master": "local[1,4]",
        "log.figures.interval.ms": 200,
    }


def archiver(broker: Broker) -> int:
    """Return the child that archives."""
    [pid] = broker.child_pids("archiver")
    return pid


def is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "java"
    except OSError:
        return False


def java(broker: Broker) -> list[int]:
    """Return the Java processes of a broker that archives."""
    results = broker.child_pids("archiver")
    return [pid for result in results for pid in processes.descendants(result) if is_java(pid)]


def make(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    configs = {"remote.storage.enable": "true", "storage.format": "batch"}
    [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)]).values()
    made.result()


def produce(broker: Broker, first: int, stop: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(first, stop):
        producer.produce(TOPIC, b"%d" % number)
    assert producer.flush(WAIT_S) == 0


def wait_until_archived(raw_redis: Any, end: int) -> None:
    def done() -> bool:
        return int(raw_redis.hget(STATE, "archived") or 0) == end

    processes.wait_until(done, f"{end} records in the lake", WAIT_S)


def consume(broker: Broker, count: int) -> Iterator[tuple[int | None, bytes | None]]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    for _ in range(count):
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None, message.error()
        yield message.offset(), message.value()
    consumer.close()


@pytest.mark.spark
@pytest.mark.timeout(4 * WAIT_S)
def test_a_broker_archives_on_its_own_whatever_of_it_is_killed(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    lake = tmp_path / "lake"
    flags = ("--redis-url", redis_url)
    with korvet_broker(tmp_path, *flags, workers=1, settings=settings(lake)) as broker:
        child = archiver(broker)
        processes.wait_until(lambda: "Spark is not started" in broker.log(), "a check for topics")
        assert processes.descendants(child) == set()
        make(broker)
        produce(broker, 0, 100)
        wait_until_archived(raw_redis, 100)
        for line in (
            f'korvet_lake_archived_offset{{partition="0",topic="{TOPIC}"}} 100.0',
            f'korvet_lake_lag_records{{partition="0",topic="{TOPIC}"}} 0.0',
            f'korvet_lake_table_records{{topic="{TOPIC}"}} 100.0',
            "korvet_lake_archived_records_total 100.0",
            "korvet_lake_archiver_leader 1.0",
        ):
            processes.wait_until(lambda line=line: line in page(broker, "/metrics"), line)  # type: ignore[misc]  # bound
        [first] = java(broker)
        processes.kill(first)
        processes.wait_until(lambda: not processes.alive(child), "the end of a child without Java")
        assert "Java ended status=-9" in broker.log()
        produce(broker, 100, 200)
        wait_until_archived(raw_redis, 200)
        # One that has lost the lease ends Spark, and archives again with the lease.
        child, [second] = archiver(broker), java(broker)
        raw_redis.set(LEASE, "another broker")
        processes.wait_until(lambda: not processes.alive(second), "the end of Java")
        raw_redis.delete(LEASE)
        assert archiver(broker) == child
        produce(broker, 200, 300)
        wait_until_archived(raw_redis, 300)
        assert list(consume(broker, 300)) == [(number, b"%d" % number) for number in range(300)]
        assert "Traceback" not in broker.log()
        child, left = archiver(broker), processes.descendants(archiver(broker))
        processes.kill(child)
        processes.wait_until(
            lambda: not any(map(processes.alive, left)), "the end of what a killed child had"
        )
        processes.wait_until(lambda: broker.child_pids("archiver"), "another one")
    assert [of.topic for of in Lake(str(lake)).tables()] == [TOPIC]


@pytest.mark.spark
@pytest.mark.timeout(4 * WAIT_S)
def test_one_broker_archives_and_another_takes_over(tmp_path: Path, redis_url: str, raw_redis: Any) -> None:
    with korvet_cluster(tmp_path, redis_url, settings=settings(tmp_path / "lake")) as brokers:
        make(brokers[0])
        produce(brokers[0], 0, 100)
        wait_until_archived(raw_redis, 100)
        processes.wait_until(lambda: raw_redis.exists(LEASE), "a holder of the lease")
        active = int(raw_redis.get(LEASE).partition(b":")[0])
        one, other = brokers[active], brokers[1 - active]
        assert java(one)
        assert not java(other)
        left = processes.descendants(one.pid)
        one.kill()
        processes.wait_until(lambda: not any(map(processes.alive, left)), "the end of all that it had")
        produce(other, 100, 200)
        wait_until_archived(raw_redis, 200)
        assert java(other)
        assert list(consume(other, 200)) == [(number, b"%d" % number) for number in range(200)]


def test_without_intervals_the_child_only_waits(tmp_path: Path) -> None:
    values = (f"lake.path={tmp_path / 'lake'}", "lake.interval.ms=0", "lake.upkeep.interval.ms=0")
    with echo_broker(tmp_path, *values) as broker:
        child = archiver(broker)
        # It is no other program: nothing was loaded for it.
        assert b"korvet.spark" not in Path(f"/proc/{child}/cmdline").read_bytes()
        assert broker.stop() == 0
    assert "child=archiver" in broker.log()
    assert "killed" not in broker.log()


def test_a_reload_takes_other_intervals(tmp_path: Path) -> None:
    config = tmp_path / "korvet.toml"
    lines = f'"lake.path" = "{tmp_path / "lake"}"\n"lake.interval.ms" = 0\n"lake.upkeep.interval.ms" = '
    config.write_text(f"{lines}0\n")
    with echo_broker(tmp_path, "--config", str(config), workers=1) as broker:
        child = archiver(broker)
        config.write_text(f"{lines}9\n")
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: broker.child_pids("archiver") not in ([], [child]), "another child")
        line = Path(f"/proc/{archiver(broker)}/cmdline")
        processes.wait_until(lambda: b"korvet.spark.service" in line.read_bytes(), "the program that works")


def test_a_broker_that_is_to_archive_refuses_to_start_without_java(tmp_path: Path) -> None:
    values = ("--set", f"lake.path={tmp_path / 'lake'}", "--data-dir", str(tmp_path / "data"))
    command = ["env", f"JAVA_HOME={tmp_path}", *KORVET, "--listen", "127.0.0.1:0", *values]
    with started(command, tmp_path, tmp_path / "data") as broker:
        assert broker.process.wait(START_SECONDS_MAX) != 0
        assert f"there is none in JAVA_HOME={tmp_path}" in broker.log()
        assert "lake.interval.ms=0" in broker.log()
        assert "Traceback" not in broker.log()
    assert not (tmp_path / "data").exists()
