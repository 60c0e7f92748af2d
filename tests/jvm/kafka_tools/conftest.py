"""Two brokers on one Redis, and Kafka's tools in one JVM, for all tests of this directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jvm import jars
from tests.jvm.share import ShareConsumer, Start
from tests.jvm.tools import AtBroker, kafka_tools
from tests.support import redis_servers
from tests.support.broker import Broker, korvet_cluster
from tests.support.records import topic_name


@pytest.fixture(scope="session")
def cluster_redis() -> Iterator[str]:
    """Give the URL of the brokers' Redis."""
    with redis_servers.server() as url:
        yield url


@pytest.fixture(scope="session")
def brokers(cluster_redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Run the two brokers. Records of share groups are locked for a short time."""
    settings = {
        "storage.format.topics": "dense*=batch",
        "group.share.min.record.lock.duration.ms": 1000,
        "group.share.record.lock.duration.ms": 3000,
    }
    with korvet_cluster(tmp_path_factory.mktemp("cluster"), cluster_redis, settings=settings) as running:
        yield running


@pytest.fixture(scope="session")
def tools(brokers: list[Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtBroker]:
    """Give Kafka's tools with the first broker as bootstrap server; they find the other."""
    jars.prepare()
    with kafka_tools(tmp_path_factory.mktemp("java")) as running:
        yield AtBroker(running, brokers[0].bootstrap)


@pytest.fixture(scope="session")
def share_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile java/Share.java, and return the folder of its classes."""
    jars.prepare()
    folder = tmp_path_factory.mktemp("classes")
    source = str(jars.HERE / "java" / "Share.java")
    subprocess.run(
        ["javac", "-Xlint:all,-path", "-cp", f"{jars.JARS}/*", "-d", str(folder), source], check=True
    )
    return folder


@pytest.fixture
def share(brokers: list[Broker], share_classes: Path, tmp_path: Path) -> Iterator[Start]:
    """Give what starts a share consumer; all are killed at the end."""
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    started: list[ShareConsumer] = []

    def start(group: str, topic: str, *settings: str) -> ShareConsumer:
        started.append(
            ShareConsumer(share_classes, tmp_path / "share.log", bootstrap, group, topic, *settings)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def topic(tools: AtBroker) -> str:
    """Give a topic of two partitions."""
    name = topic_name("tooled")
    tools.done("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    return name


@pytest.fixture
def file(tmp_path: Path) -> Callable[[Any], str]:
    """Give a function that writes JSON into a file, and returns its path."""

    def written(content: Any) -> str:
        path = tmp_path / "given.json"
        path.write_text(json.dumps(content))
        return str(path)

    return written
