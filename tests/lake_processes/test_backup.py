"""The backup that docs/backup.md describes: Redis is copied while clients work, is lost, and restored with the lake."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from korvet.lake.expiry import Expiry
from korvet.lake.rewind import rewind
from korvet.lake.source import RetentionLimits
from tests.cli import commands
from tests.support import processes, reading, redis_servers
from tests.support.archives import Topics, topics_in, where
from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.load import Load
from tests.support.log_bench import LAYOUTS, Layout, configs_of
from tests.support.records import Received
from tests.support.tutorial import section_of

PARTITIONS, TOPIC, GROUP = 2, "kept", "billing"

# Takes the flags of redis-cli that the page has, for a server with a socket.
REDIS_CLI = f"""#!{sys.executable}
import os, shutil, sys
import redis

server = redis.Redis(unix_socket_path=os.environ["REDIS_SOCKET"], decode_responses=True)
server.response_callbacks.clear()
if sys.argv[1] == "--rdb":
    server.execute_command("SAVE")
    shutil.copy(os.path.join(os.environ["REDIS_DIRECTORY"], "dump.rdb"), sys.argv[2])
else:
    print(server.execute_command(*sys.argv[1:]))
"""


class Page:
    """The commands of the page, with the paths of a test."""

    def __init__(self, directory: Path, redis_directory: Path, lake: Path) -> None:
        self.backup = directory / "backup"
        self.backup.mkdir()
        self._paths: Mapping[str, str] = {
            "/var/lib/redis": str(redis_directory),
            "/backup": str(self.backup),
            "/srv/lake": str(lake),
        }
        programs = directory / "bin"
        programs.mkdir()
        (programs / "redis-cli").write_text(REDIS_CLI)
        (programs / "redis-cli").chmod(0o755)
        self._environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def run(self, title: str, first_word: str, socket: str = "") -> None:
        """Run the block of a section in which the first line begins so; COPY is the only copy of Redis."""
        code = re.findall(
            r"^(?:(?: {4}| {8})\S.*\n)+", section_of(PAGES["docs/backup.md"], title), re.MULTILINE
        )
        [block] = [text for text in code if text.strip().startswith(first_word)]
        paths = dict(self._paths)
        if "COPY" in block:
            [copy] = self.backup.glob("redis-*")
            paths["COPY"] = copy.name
        for path, own in paths.items():
            block = block.replace(path, own)
        command = ["bash", "-euo", "pipefail", "-c", block]
        ended = subprocess.run(
            command,
            env={**self._environ, "REDIS_SOCKET": socket, "REDIS_DIRECTORY": self._paths["/var/lib/redis"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr


@contextlib.contextmanager
def broker_and_lake(directory: Path, data: Path, lake: Path) -> Iterator[tuple[Broker, Topics]]:
    """Run a broker with an embedded server, and give what archives its topics."""
    settings = {"lake.path": lake, "lake.interval.ms": 0, "lake.upkeep.interval.ms": 0}
    with (
        korvet_broker(directory, data_dir=data, workers=1, settings=settings) as broker,
        topics_in(broker.redis_url, lake) as topics,
    ):
        yield broker, topics


def archive(topics: Topics) -> None:
    """Archive what there is, and keep only the end in Redis."""
    assert topics.rounds(topics.archiver()).failures == []
    for partition in topics.stores.topic(TOPIC).partitions:
        topics.trim(partition, topics.bounds(partition).archived)


def committed(broker: Broker, count: int) -> list[Received]:
    """Read as a member of the group, and commit."""
    config = {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
    with reading.consumer(broker.bootstrap, TOPIC, (), **config) as running:
        running.subscribe([TOPIC])
        received = reading.read(running, count)
        running.commit(asynchronous=False)
    return received


def places(received: list[Received]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in received]


def wait_for_more(load: Load, count: int) -> None:
    reached = len(load.acknowledged) + count
    processes.wait_until(lambda: len(load.acknowledged) >= reached, "records are acknowledged")


def everything(broker: Broker) -> list[Received]:
    """Return what the topic has now, partition by partition."""
    partitions = reading.read_to_end(broker.bootstrap, TOPIC, PARTITIONS, "read_committed")
    return [record for partition in partitions for record in partition]


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("layout", "lake_is_lost"), [*((layout, False) for layout in LAYOUTS), ("batch", True)]
)
def test_consumers_go_on_where_they_were_at_the_copy(
    tmp_path: Path, layout: Layout, *, lake_is_lost: bool
) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    page = Page(tmp_path, data, lake)
    with broker_and_lake(tmp_path / "first", data, lake) as (broker, topics):
        load = Load(broker.bootstrap, TOPIC, PARTITIONS)
        config = {**configs_of(layout), "remote.storage.enable": "true"}
        reading.create_topic(broker.bootstrap, TOPIC, PARTITIONS, config)
        load.start()
        wait_for_more(load, 1000)
        archive(topics)
        read = places(committed(broker, 700))
        wait_for_more(load, 500)
        before = list(load.acknowledged)
        broker.wait_until_written()
        page.run("Copy Redis", "redis-cli config", f"{data}/server.sock")
        wait_for_more(load, 500)
        archive(topics)
        committed(broker, 500)
        load.end()
        archive(topics)
        page.run("Copy the lake", "cd")
    shutil.rmtree(data)
    data.mkdir()
    page.run("Restore", "cp")
    if lake_is_lost:
        shutil.rmtree(lake)
        page.run("Restore", "mkdir")
    with broker_and_lake(tmp_path / "second", data, lake) as (broker, topics):
        assert "Archived before" in commands.done(commands.korvet("lake", "rewind", *where(topics), "--yes"))
        held = everything(broker)
        check(held, load, before)
        rest = sorted(set(places(held)) - set(read))
        followed = places(committed(broker, len(rest)))
        assert sorted(followed, key=lambda place: place[0]) == rest
        new = reading.produce(broker.bootstrap, TOPIC, *[{"value": b"new", "partition": 1}] * 5)
        assert min(new) > held[-1].offset
        archive(topics)
        assert places(everything(broker)) == [*places(held), *((1, offset) for offset in new)]
        commands.done(commands.korvet("lake", "verify", *where(topics)))


def check(held: list[Received], load: Load, before: list[tuple[int, int]]) -> None:
    """Hold that all records acknowledged before the copy are there once, and none from long after it."""
    assert set(before) <= set(places(held)) < set(load.acknowledged)
    for partition in range(PARTITIONS):
        values = [record.value for record in held if record.partition == partition]
        assert values == [b"%d" % (partition + PARTITIONS * number) for number in range(len(values))]


@pytest.mark.embedded
@pytest.mark.parametrize("layout", ["record", "dense"])
@pytest.mark.parametrize(("expired", "left"), [(1, [b"1", b"2"]), (3, [b"2"])], ids=["first", "all"])
def test_a_consumer_gets_what_the_lake_has_not_expired_since_the_copy(
    tmp_path: Path, layout: Layout, expired: int, left: list[bytes]
) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    page = Page(tmp_path, data, lake)
    with broker_and_lake(tmp_path / "first", data, lake) as (broker, topics):
        config = {**configs_of(layout), "remote.storage.enable": "true"}
        reading.create_topic(broker.bootstrap, TOPIC, 1, config)
        for value in (b"0", b"1"):
            reading.produce(broker.bootstrap, TOPIC, {"value": value, "timestamp": 1000})
            archive(topics)
        reading.produce(broker.bootstrap, TOPIC, {"value": b"2", "timestamp": 1000})
        broker.wait_until_written()
        page.run("Copy Redis", "redis-cli config", f"{data}/server.sock")
        archive(topics)
        topic = topics.stores.topic(TOPIC)
        table = topics.source.lake.open(topic.of)
        assert table is not None
        sizes = [file.size_bytes for file in table.files()]
        limits = RetentionLimits(bytes=sum(sizes[expired:]))
        assert [done.files for done in Expiry(topics.source).expire(topics.stores, topic, limits, 0)] == [
            expired
        ]
    shutil.rmtree(data)
    data.mkdir()
    page.run("Restore", "cp")
    with broker_and_lake(tmp_path / "second", data, lake) as (broker, topics):
        commands.done(commands.korvet("lake", "rewind", *where(topics), "--yes"))
        with reading.consumer(broker.bootstrap, TOPIC, (), **{"auto.offset.reset": "earliest"}) as running:
            running.assign([TopicPartition(TOPIC, 0, 0)])
            assert [record.value for record in reading.read(running, len(left))] == left
        archive(topics)
        commands.done(commands.korvet("lake", "verify", *where(topics)))


@pytest.mark.embedded
def test_a_snapshot_becomes_a_server_with_an_append_only_file(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with redis_servers.DurableServer() as server, topics_in(server.url, lake) as topics:
        directory, socket = Path(server.directory), server.url.removeprefix("unix://")
        page = Page(tmp_path, directory, lake)
        topic = topics.make(TOPIC, "batch")
        topics.produce(topic.partitions[0], b"1", b"2")
        archive(topics)
        topics.produce(topic.partitions[0], b"3")
        held = list(topics.produced[topic.id, 0])
        page.run("Copy Redis", "redis-cli --rdb", socket)
        topics.produce(topic.partitions[0], b"4")
        archive(topics)
        server.kill()
        shutil.rmtree(directory / "appendonlydir")
        shutil.copy(page.backup / "dump.rdb", directory)
        process = redis_servers.started(server.directory, "--appendonly", "no")
        page.run("Restore", "redis-cli config", socket)
        process.kill()
        process.wait()
        server.start()
        [done] = rewind(topics.source, (), dry_run=False).rewound
        assert (done.first, done.end, done.records) == (3, 4, 1)
        archive(topics)
        assert topics.archived(topic) == held
