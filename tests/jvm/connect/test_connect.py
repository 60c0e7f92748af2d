"""Kafka Connect in distributed mode: connectors, and what they have done, outlive every worker, in its three topics.

The topics are compacted while it runs, so what a worker starts with was read through compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from confluent_kafka import KafkaError

from tests.jvm import jars
from tests.jvm.connect.lines import Lines, check, line
from tests.jvm.connect.worker import Worker, running
from tests.support import reading
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until

FORMATS = ("record", "batch")
# Two timeouts of sessions, a worker's and its consumer's, on a machine that has other work.
TAKEN_OVER_SECONDS_MAX = 90.0

CONFIGS, OFFSETS, STATUS = "connect-configs", "connect-offsets", "connect-status"
SOURCE, SINK, TOPIC = "a-source", "a-sink", "lines"
STRINGS = "org.apache.kafka.connect.storage.StringConverter"

# Compacts what is older than a second as soon as there is anything to compact.
COMPACTS_OFTEN = {
    "log.roll.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


@pytest.fixture(params=FORMATS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Run a broker with one storage format for all topics, which compacts often."""
    settings = {"storage.format": str(request.param), **COMPACTS_OFTEN}
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    with korvet_broker(tmp_path, *flags) as started:
        yield started
        assert "Traceback" not in started.log()


def worker_configs(broker: Broker) -> dict[str, str]:
    """Return the configs of a worker: replication factors and partitions of its topics are Connect's defaults."""
    return {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "connect-cluster",
        "config.storage.topic": CONFIGS,
        "offset.storage.topic": OFFSETS,
        "status.storage.topic": STATUS,
        "key.converter": STRINGS,
        "value.converter": STRINGS,
        "plugin.discovery": "service_load",
        # What a dead worker had goes to the others at once; by default they wait five minutes for it.
        "scheduled.rebalance.max.delay.ms": "0",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "consumer.session.timeout.ms": "6000",
        "offset.flush.interval.ms": "500",
    }


def start(workers: list[Worker], directory: Path, broker: Broker, **more: str) -> Worker:
    """Start a worker, with `more` configs (_ for a dot), and wait until it is one of the group."""
    given = {name.replace("_", "."): value for name, value in more.items()}
    worker = Worker(directory, worker_configs(broker) | given)
    workers.append(worker)
    worker.wait_until_ready()
    return worker


def owners(worker: Worker) -> dict[str, str]:
    """Return which worker runs the task of each connector whose task runs, as this one knows."""
    result: dict[str, str] = {}
    for name in (SOURCE, SINK):
        status, reported = worker.ask("GET", f"/connectors/{name}/status")
        tasks = reported["tasks"] if status == 200 else []
        result.update((name, task["worker_id"]) for task in tasks if task["state"] == "RUNNING")
    return result


def arrived(sink: Path) -> list[str]:
    """Return what the sink has written."""
    return sink.read_text().splitlines() if sink.exists() else []


def go_on(lines: Lines, sink: Path) -> None:
    """Wait until a line arrives that is not written yet."""
    awaited = line(lines.written)
    wait_until(lambda: awaited in arrived(sink), f"{awaited} arrives", TAKEN_OVER_SECONDS_MAX)


def wait_until_shared(by: Worker, *workers: Worker) -> None:
    """Wait until tasks run, and exactly these workers run them."""
    names = {worker.name for worker in workers}
    wait_until(
        lambda: len(result := owners(by)) == 2 and set(result.values()) == names,
        f"{names} run the tasks",
        TAKEN_OVER_SECONDS_MAX,
    )


def kill_the_owner(name: str, one: Worker, other: Worker) -> Worker:
    """Kill the worker that runs a task, and wait until the other has taken it; returns the killed one."""
    killed, left = (one, other) if owners(one)[name] == one.name else (other, one)
    killed.kill()
    wait_until_shared(left, left)
    return left


def wait_until_compacted(broker: Broker) -> None:
    """Wait until a pass of compaction has been over configs and over offsets."""
    with redis.Redis(unix_socket_path=str(broker.data_dir / "server.sock")) as stored:
        for topic in (CONFIGS, OFFSETS):
            pattern = f"{{korvet:{topic}:*}}:clean:*"
            wait_until(lambda: next(stored.scan_iter(pattern), None), f"{topic} is compacted")  # noqa: B023 - called in this round


def read_to_the_end(broker: Broker) -> list[str]:
    """Return the lines in the topic, none of a transaction that is open or was aborted."""
    read: list[str] = []
    configs = {"enable.partition.eof": True, "isolation.level": "read_committed"}
    with reading.consumer(broker.bootstrap, TOPIC, (0,), **configs) as consumer:
        while True:
            for message in consumer.consume(1000, timeout=0.5):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return read
                read.append(str((reading.as_received(message).value or b"").decode()))


@pytest.mark.timeout(420)
def test_connectors_and_what_they_have_done_outlive_their_workers(broker: Broker, tmp_path: Path) -> None:
    jars.prepare()
    sink = tmp_path / "sink.txt"
    source_configs = {"topic": TOPIC, "file": str(tmp_path / "source.txt"), "batch.size": "100"}
    sink_configs = {"topics": TOPIC, "file": str(sink)}
    kinds = {SOURCE: "FileStreamSourceConnector", SINK: "FileStreamSinkConnector"}
    with running() as workers, Lines(tmp_path / "source.txt") as lines:
        first = start(workers, tmp_path, broker)
        for name, configs in ((SOURCE, source_configs), (SINK, sink_configs)):
            configs |= {"connector.class": f"org.apache.kafka.connect.file.{kinds[name]}", "tasks.max": "1"}
            assert first.call("PUT", f"/connectors/{name}/config", configs)["name"] == name
        go_on(lines, sink)
        # What compaction is to drop: the configs that were.
        source_configs["batch.size"] = "200"
        first.call("PUT", f"/connectors/{SOURCE}/config", source_configs)
        second = start(workers, tmp_path, broker)
        wait_until_shared(second, first, second)
        go_on(lines, sink)
        wait_until_compacted(broker)

        # The source's worker is killed, and the other takes its task; one that comes back gets a part again.
        left = kill_the_owner(SOURCE, first, second)
        go_on(lines, sink)
        third = start(workers, tmp_path, broker)
        wait_until_shared(third, left, third)
        go_on(lines, sink)
        # The same with the sink's.
        last = kill_the_owner(SINK, left, third)
        go_on(lines, sink)

        # With the last one gone there are only the topics to start from.
        last.kill()
        restarted = start(workers, tmp_path, broker)
        wait_until_shared(restarted, restarted)
        go_on(lines, sink)
        assert restarted.call("GET", f"/connectors/{SOURCE}/config") == {**source_configs, "name": SOURCE}
        assert restarted.call("GET", f"/connectors/{SINK}/config") == {**sink_configs, "name": SINK}

        lines.end()
        wait_until(lambda: line(lines.written - 1) in arrived(sink), "all lines arrive")
        wait_until(lambda: position(restarted) == lines.path.stat().st_size, "the source has committed all")
        # The source was killed twice, in the end with the sink; the sink writes again also what came again.
        check(read_to_the_end(broker), lines.written, restarts=2)
        check(arrived(sink), lines.written, restarts=4)
        for name in (SOURCE, SINK):
            restarted.call("DELETE", f"/connectors/{name}")
        wait_until(lambda: restarted.call("GET", "/connectors") == [], "the connectors are deleted")
        assert "ERROR" not in restarted.log()


@pytest.mark.timeout(420)
def test_what_an_exactly_once_source_writes_is_there_once(broker: Broker, tmp_path: Path) -> None:
    jars.prepare()
    configs = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "topic": TOPIC,
        "file": str(tmp_path / "source.txt"),
        "exactly.once.support": "required",
    }
    enabled = {"exactly_once_source_support": "enabled"}
    with running() as workers, Lines(tmp_path / "source.txt") as lines:

        def goes_on() -> None:
            awaited = line(lines.written)
            wait_until(lambda: awaited in read_to_the_end(broker), awaited, TAKEN_OVER_SECONDS_MAX)

        def owner(by: Worker) -> str | None:
            wait_until(lambda: SOURCE in owners(by), "the task runs", TAKEN_OVER_SECONDS_MAX)
            return owners(by)[SOURCE]

        pair = [start(workers, tmp_path, broker, **enabled) for _ in range(2)]
        pair[0].call("PUT", f"/connectors/{SOURCE}/config", configs)
        goes_on()
        for _ in range(3):
            # That which runs the task is killed, and the other takes it up; then there is a second one again.
            [killed] = [item for item in pair if item.name == owner(pair[0])]
            killed.kill()
            pair.remove(killed)
            goes_on()
            pair.append(start(workers, tmp_path, broker, **enabled))
        lines.end()
        wait_until(lambda: line(lines.written - 1) in read_to_the_end(broker), "all lines arrive")
        check(read_to_the_end(broker), lines.written, restarts=0)


def position(worker: Worker) -> int:
    """Return how far the source has come in its file, in bytes, by what it has committed."""
    [reported] = worker.call("GET", f"/connectors/{SOURCE}/offsets")["offsets"]
    return int(reported["offset"]["position"])
