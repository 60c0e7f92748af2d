"""Data that an earlier version wrote (tests/data, tests/support/golden.py): read as it was, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from korvet.errors import ErrorCode
from tests.support import golden, reading, redis_commands
from tests.support.broker import START_SECONDS_MAX, echo_broker
from tests.support.golden import TOPICS, Idempotent
from tests.support.topic_client import Client

BEFORE_FORMATS = Path(__file__).parents[1] / "data" / "0.1"
"""Of the version before `{korvet:brokers}:format`, whose batches have ids `<end>-0`."""


def test_records_of_a_version_without_formats_are_read_as_they_were_and_written_on(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    redis_commands.load(raw_redis, BEFORE_FORMATS / "record.jsonl")
    expected = json.loads((BEFORE_FORMATS / "record.json").read_text(encoding="ascii"))
    producer = Idempotent(*expected.pop("idempotent producer"))
    # A default for new topics alone.
    with golden.broker_on(tmp_path, redis_url, offset_encoding="dense") as broker:
        seen = json.loads(json.dumps(golden.observed(broker)))
        assert seen == expected
        bootstrap = golden.address_of(broker, "INSIDE")
        new = {topic: reading.produce(bootstrap, topic, *golden.values("new")) for topic in TOPICS}
        offsets = {topic: expected[f"topic {topic}"]["committed"] + new[topic] for topic in TOPICS}
        records = golden.read(bootstrap, "read_committed")
        assert {topic: [record.offset for record in records[topic, 0]] for topic in TOPICS} == offsets
        check_producer(broker.at("INSIDE"), producer)


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


def test_batches_of_a_version_without_formats_are_refused_at_the_start(
    tmp_path: Path, redis_url: str, raw_redis: Any
) -> None:
    redis_commands.load(raw_redis, BEFORE_FORMATS / "batch.jsonl")
    # That build may have run again on data of this one, whose topics in this format are no reason.
    own = {"version": "0.1.0", "format": 1, "reader": 1, "writer": 1}
    raw_redis.hset("{korvet:brokers}:format", mapping=own)
    row = json.loads(raw_redis.hget("korvet:topics", "none"))
    row["configs"]["offset.encoding"] = "dense"
    raw_redis.hset("korvet:topics", "new", json.dumps(row, separators=(",", ":")))
    with echo_broker(tmp_path, f"redis.url={redis_url}", ready=False) as broker:
        assert broker.process.wait(START_SECONDS_MAX) == 2
        assert broker.log().splitlines()[-1] == (
            "korvet: redis.url: 4 topics in format batch (lz4, none, plain) are of an earlier build, whose ids this "
            "version cannot read: delete them with that build, or choose another namespace"
        )
    assert raw_redis.xlen("korvet:none:0") == 1
