"""Data that an earlier version wrote (tests/data, tests/support/golden.py): read as it was, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from korvet import __version__
from korvet.admin import AdminClient, Resource, settled
from korvet.errors import ErrorCode
from korvet.lake.compaction import compact
from tests.cli.commands import korvet
from tests.support import golden, reading, redis_commands
from tests.support.archives import Topics, archive, topics_in, trim, where
from tests.support.broker import START_SECONDS_MAX, Broker, echo_broker
from tests.support.engines import by_duckdb, received
from tests.support.golden import Idempotent
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.topic_client import Client

DATA = Path(__file__).parents[1] / "data"
FORMAT_2 = DATA / "format-2"
BEFORE_FORMAT_2 = DATA / "before-format-2"
"""One topic whose state has text fields, of a version before `{korvet:brokers}:format`; it is as it was in format 1."""


@pytest.mark.parametrize("layout", golden.LAYOUTS)
def test_data_of_format_2_is_read_as_it_was_and_written_on(
    tmp_path: Path, redis_url: str, raw_redis: Any, layout: str
) -> None:
    redis_commands.load(raw_redis, FORMAT_2 / f"{layout}.jsonl")
    lake_path = shutil.copytree(FORMAT_2 / "lake" / layout, tmp_path / "lake")
    expected = json.loads((FORMAT_2 / f"{layout}.json").read_text(encoding="ascii"))
    producer = Idempotent(*expected.pop("idempotent producer"))
    with (
        topics_in(redis_url, lake_path) as lake,
        # A default for new topics alone.
        golden.broker_on(tmp_path, redis_url, lake_path, offset_encoding="dense") as broker,
    ):
        assert json.loads(json.dumps(golden.observed(broker, lake))) == expected
        check_written_on(broker, expected)
        check_producer(broker.at("INSIDE"), producer)
        check_transactions(broker, expected["transactional ids"])
        check_compacted(broker)
        check_archived(broker, lake)


def check_written_on(broker: Broker, expected: dict[str, Any]) -> None:
    """Write to each topic, and find the new records after those that were there."""
    bootstrap = broker.bootstrap_of("INSIDE")
    before = {
        name.removeprefix("topic "): seen for name, seen in expected.items() if name.startswith("topic ")
    }
    new = {topic: reading.produce(bootstrap, topic, *golden.values("new")) for topic in before}
    records = golden.read(bootstrap, "read_committed", before)
    assert {topic: [record.offset for record in records[topic, 0]] for topic in before} == {
        topic: seen["committed"] + new[topic] for topic, seen in before.items()
    }


def check_producer(address: tuple[str, int], producer: Idempotent) -> None:
    """Send the producer's last batch again, one with a gap, and the next one."""
    with Client(address) as client:
        again = client.produce("idempotent", producer.batch(producer.sequence))
        assert (again.error_code, again.base_offset) == (0, producer.base_offset)
        gap = client.produce("idempotent", producer.batch(producer.sequence + 4))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        following = client.produce("idempotent", producer.batch(producer.sequence + 2))
        assert following.error_code == 0
        assert following.base_offset > producer.base_offset + 1


def check_transactions(broker: Broker, expected: list[Any]) -> None:
    """Commit a transaction of each transactional id; its producer keeps its id, in a later epoch."""
    bootstrap = broker.bootstrap_of("INSIDE")
    with AdminClient(bootstrap) as admin:
        for name, producer_id, epoch, _ in expected:
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
            producer.init_transactions()
            producer.begin_transaction()
            sent = reading.send(producer, name, *golden.values("of another transaction"))
            producer.commit_transaction(WAIT_SECONDS_MAX)
            read = golden.read(bootstrap, "read_committed", [name])[name, 0]
            assert [record.offset for record in read][-1:] == sent
            described = settled(admin.transactions.describe([name]))[name]
            assert (described.producer_id, described.state) == (producer_id, "CompleteCommit")
            assert described.producer_epoch > epoch


def check_compacted(broker: Broker) -> None:
    """Have the log cleaner compact what no pass has compacted so far."""
    bootstrap = broker.bootstrap_of("INSIDE")

    def keys() -> list[bytes | None]:
        return [
            record.key for record in golden.read(bootstrap, "read_committed", ["compacted"])["compacted", 0]
        ]

    before = keys()
    assert len(before) > len(set(before))
    with AdminClient(bootstrap) as admin:
        settled(admin.configs.alter({Resource.topic("compacted"): {"min.cleanable.dirty.ratio": "0"}}))
    wait_until(lambda: len(keys()) == len(set(before)), "the log is compacted")


def check_archived(broker: Broker, lake: Topics) -> None:
    """Archive what is new, and find in the tables and by a consumer what the consumer has read before."""
    topics = lake.stores.remote_topics()
    bootstrap = broker.bootstrap_of("INSIDE")
    names = [topic.name for topic in topics]
    assert names == ["archived", "dated"]
    before = golden.read(bootstrap, "read_committed", names)
    archive(lake)
    verified = korvet("lake", "verify", "--json", *where(lake))
    assert verified.returncode == 0, verified.stderr
    assert [partition["rows"] for partition in json.loads(verified.stdout)] == list(map(len, before.values()))
    for topic in topics:
        assert all(outcome.done for outcome in compact(lake.source.lake, topic.of))
        trim(lake, topic.partitions[0])
        rows = received(by_duckdb(lake.source.lake.uri(topic.of), None))
        assert rows == before[topic.name, 0]
    assert golden.read(bootstrap, "read_committed", names) == before


@pytest.mark.parametrize("number", [None, 1])
def test_logs_of_a_version_before_format_2_are_refused_at_the_start_and_by_doctor(
    tmp_path: Path, redis_url: str, raw_redis: Any, number: int | None
) -> None:
    redis_commands.load(raw_redis, BEFORE_FORMAT_2 / "record.jsonl")
    writer = "a Korvet before format 1"
    if number is not None:
        fields: dict[str, Any] = {"version": "0.0.9", "format": number, "reader": number, "writer": number}
        raw_redis.hset("{korvet:brokers}:format", mapping=fields)
        writer = f"Korvet 0.0.9 (format {number})"
    problem = (
        f"redis.url: the logs were written by {writer}, and {__version__} (format 2) cannot read them: take the Korvet "
        "that wrote them, remove its keys, or choose another namespace"
    )
    before = {key: raw_redis.dump(key) for key in raw_redis.keys("*external*")}
    with echo_broker(tmp_path, f"redis.url={redis_url}", ready=False) as broker:
        assert broker.process.wait(START_SECONDS_MAX) == 2
        assert broker.log().splitlines()[-1] == f"korvet: {problem}"
    examined = korvet("doctor", "--json", "--set", f"redis.url={redis_url}")
    assert examined.returncode == 1
    errors = [finding for finding in json.loads(examined.stdout) if finding["level"] == "error"]
    assert ("redis", problem) in [(finding["check"], finding["finding"]) for finding in errors]
    assert {key: raw_redis.dump(key) for key in raw_redis.keys("*external*")} == before


def test_a_stream_of_such_a_log_is_adopted_by_a_new_topic(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    redis_commands.load(raw_redis, BEFORE_FORMAT_2 / "record.jsonl")
    for key in set(raw_redis.keys()) - {b"korvet:external:0"}:
        raw_redis.delete(key)
    entries = raw_redis.xrange("korvet:external:0")
    with golden.broker_on(tmp_path, redis_url, tmp_path / "lake") as broker:
        bootstrap = broker.bootstrap_of("INSIDE")
        reading.produce(bootstrap, "external", *golden.values("new"))
        records = golden.read(bootstrap, "read_committed", ["external"])["external", 0]
    assert [record.value for record in records] == [*(fields[b"value"] for _, fields in entries), b"new"]
    assert raw_redis.xrange("korvet:external:0")[:-1] == entries
