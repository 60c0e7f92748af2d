"""Data that an earlier version wrote (tests/data, tests/support/golden.py): read as it was, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from korvet import __version__
from korvet.errors import ErrorCode
from tests.cli.commands import korvet
from tests.support import golden, reading, redis_commands
from tests.support.broker import START_SECONDS_MAX, Broker, echo_broker
from tests.support.golden import Idempotent
from tests.support.topic_client import Client

DATA = Path(__file__).parents[1] / "data"
FORMAT_2 = DATA / "format-2"
BEFORE_FORMAT_2 = DATA / "before-format-2"
"""One topic whose state has text fields, of a version before `{korvet:brokers}:format`; it is as it was in format 1."""


def test_records_of_format_2_are_read_as_they_were_and_written_on(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    redis_commands.load(raw_redis, FORMAT_2 / "record.jsonl")
    expected = json.loads((FORMAT_2 / "record.json").read_text(encoding="ascii"))
    producer = Idempotent(*expected.pop("idempotent producer"))
    # A default for new topics alone.
    with golden.broker_on(tmp_path, redis_url, offset_encoding="dense") as broker:
        seen = json.loads(json.dumps(golden.observed(broker)))
        assert seen == expected
        check_written_on(broker, expected)
        check_producer(broker.at("INSIDE"), producer)


def test_batches_of_format_2_are_read_as_they_were_and_written_on(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    redis_commands.load(raw_redis, FORMAT_2 / "batch.jsonl")
    expected = json.loads((FORMAT_2 / "batch.json").read_text(encoding="ascii"))
    with golden.broker_on(tmp_path, redis_url) as broker:
        assert golden.observed_batches(broker) == expected
        check_written_on(broker, expected)


def check_written_on(broker: Broker, expected: dict[str, Any]) -> None:
    """Write to each topic, and find the new records after those that were there."""
    bootstrap = golden.address_of(broker, "INSIDE")
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
    with golden.broker_on(tmp_path, redis_url) as broker:
        bootstrap = golden.address_of(broker, "INSIDE")
        reading.produce(bootstrap, "external", *golden.values("new"))
        records = golden.read(bootstrap, "read_committed", ["external"])["external", 0]
    assert [record.value for record in records] == [*(fields[b"value"] for _, fields in entries), b"new"]
    assert raw_redis.xrange("korvet:external:0")[:-1] == entries
