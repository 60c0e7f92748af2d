"""A broker whose lake is in an object store, and the commands that look after that lake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.lake.source import SourceTopic
from tests.cli.commands import TextResult, korvet_process
from tests.stores import s3
from tests.stores.s3 import BUCKET, SECRET, Store
from tests.support.archives import Topics, archive, topics_in, trim, where
from tests.support.batches import read
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client

FETCHES_MAX = 1000
SECONDS_MAX = 240
"""Of one command: Spark starts within it, also where the machine is busy."""

pytestmark = pytest.mark.timeout(3 * SECONDS_MAX)


@pytest.fixture
def store() -> Iterator[Store]:
    """Give a store that a test may freeze and end."""
    with s3.store() as running:
        yield running


@pytest.fixture
def topics(redis_url: str, store: Store) -> Iterator[Topics]:
    with topics_in(redis_url, f"s3://{BUCKET}/lake", store.options) as result:
        yield result


@pytest.fixture
def broker(tmp_path: Path, topics: Topics, store: Store) -> Iterator[Broker]:
    """Give a broker on the same Redis and lake, which archives nothing itself."""
    config = tmp_path / "korvet.toml"
    config.write_text(f'"lake.path" = "{topics.lake}"\n"lake.storage.options" = "{store.setting}"\n')
    flags = ("--config", str(config), "--redis-url", topics.source.redis_url, "--set", "lake.interval.ms=0")
    with korvet_broker(tmp_path, *flags, "--set", "lake.upkeep.interval.ms=0", workers=1) as running:
        yield running
        assert SECRET not in running.output() + running.log()


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connected:
        yield connected


def in_files(topics: Topics, count: int = 6) -> SourceTopic:
    """Create a topic of which `count` files are in the lake only, and some records in Redis only."""
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    for at in range(count):
        topics.produce(partition, *(b"%d of %d" % (item, at) for item in range(50)))
        archive(topics)
    trim(topics, partition)
    topics.produce(partition, b"in Redis", b"only")
    return topic


def consumed(client: Client, offset: int = 0) -> list[tuple[int, bytes | None]]:
    """Return what a consumer gets from an offset on, up to the end."""
    got: list[tuple[int, bytes | None]] = []
    for _ in range(FETCHES_MAX):
        answer = client.fetch("orders", offset, max_wait_ms=500)
        assert answer.error_code == 0
        results = [item for item in read(answer.records or b"") if item.offset >= offset]
        got += [(result.offset, result.value) for result in results]
        offset = got[-1][0] + 1 if got else offset
        if offset == answer.high_watermark:
            return got
    raise AssertionError(f"no more than {got[-1:]} after {FETCHES_MAX} fetches")


def produced(topics: Topics, topic: SourceTopic) -> list[tuple[int, bytes | None]]:
    return [(offset, value) for offset, _, _, value, _ in topics.produced[topic.id, 0]]


def test_the_whole_of_a_lakes_life(topics: Topics, broker: Broker, client: Client, store: Store) -> None:
    topic = in_files(topics)
    wanted = produced(topics, topic)
    assert consumed(client) == wanted

    def lake(command: str, *arguments: str) -> str:
        result = korvet_lake(topics, store.setting, command, *arguments)
        assert result.returncode == 0, result.stderr
        assert SECRET not in result.stdout + result.stderr
        return result.stdout

    assert "archived 2 records" in lake("archive", "--master", "local[2,4]")
    topics.check(topic)
    [row] = json.loads(lake("status", "--json"))
    assert (row["archived"], row["files"], row["lag_records"]) == (302, 7, 0)
    [done] = json.loads(lake("compact", "--json"))
    assert (done["files_before"], done["files_after"], done["rows"]) == (7, 1, 302)
    [results] = json.loads(lake("verify", "--json"))
    assert (results["rows"], results["findings"]) == (302, [])
    counted = lake("query", "--csv", "--master", "local[2,4]", "select count(*), max(offset) from orders")
    assert counted.splitlines()[1:] == ["302,301"]
    assert consumed(client) == wanted
    topics.produce(topic.partitions[0], b"later")
    archive(topics)
    trim(topics, topic.partitions[0])
    topics.stores.remote.expire([(topic.partitions[0], 302)])
    [expired] = json.loads(lake("expire", "--json", "--set", "log.retention.ms=-1"))["expired"]
    assert (expired["start"], expired["files"], expired["error"]) == (302, 1, None)
    assert client.fetch("orders", 301).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert consumed(client, 302) == [(302, b"later")]


def test_a_store_that_hangs_costs_those_who_need_it_and_is_read_again(
    topics: Topics, broker: Broker, client: Client, store: Store
) -> None:
    topic = in_files(topics)
    wanted = produced(topics, topic)
    with store.frozen():
        errors = fetches_until_an_error(client)
        assert errors == ErrorCode.KAFKA_STORAGE_ERROR
        # What Redis holds is served meanwhile.
        assert consumed(client, 300) == wanted[300:]
    wait_until(lambda: client.fetch("orders", 0, max_wait_ms=500).records, "the lake is read", 60)
    assert consumed(client) == wanted


def test_a_store_that_is_away_is_an_error(
    topics: Topics, broker: Broker, client: Client, store: Store
) -> None:
    topic = in_files(topics)
    store.end()
    assert fetches_until_an_error(client) == ErrorCode.KAFKA_STORAGE_ERROR
    assert consumed(client, 300) == produced(topics, topic)[300:]
    assert "the lake cannot be read" in broker.log()


def fetches_until_an_error(client: Client) -> int:
    """Fetch archived records as a consumer does, until that is refused."""
    for _ in range(FETCHES_MAX):
        answer: Any = client.fetch("orders", 0, max_wait_ms=500)
        assert not answer.records
        if answer.error_code:
            code: int = answer.error_code
            return code
    raise AssertionError("no error")


def test_commands_say_in_a_line_that_the_store_is_away_and_nothing_that_is_secret(
    topics: Topics, store: Store
) -> None:
    topics.make("orders", "batch")
    away = store.setting.replace(f":{store.port}", ":1") + ",max_retries=0"
    for command in ("status", "compact", "verify", "expire"):
        result = korvet_lake(topics, away, command)
        assert result.returncode == 1
        assert "127.0.0.1:1" in result.stderr
        assert "Traceback" not in result.stderr
        assert SECRET not in result.stdout + result.stderr


def korvet_lake(topics: Topics, options: str, command: str, *arguments: str) -> TextResult:
    """Run a command of the lake."""
    environ = {"KORVET_LAKE_STORAGE_OPTIONS": options}
    line = ("lake", command, *where(topics), *arguments)
    return korvet_process(*line, environ=environ, seconds_max=SECONDS_MAX)
