"""What a topic asks of records at the height of Produce: times and keys, and the broker's time in place of theirs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.log.producers import new_producer_id
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.protocol.types import SpecialTimestamp
from tests.handlers import apis
from tests.handlers.rows.records import asked, fetched, produced
from tests.handlers.scene import Scene
from tests.handlers.table import Fields
from tests.support.batches import CODECS, Record, batch, headers_of, read

NOW_MS = time.time_ns() // 1_000_000
BY_BROKER: Fields = {"message_timestamp_type": "LogAppendTime"}


@pytest.fixture(params=["record", "batch"])
def storage_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answered(scene: Scene, records: bytes) -> Any:
    [topic] = scene.ask(apis.Produce, **produced(records)).responses
    return topic.partition_responses[0]


def read_back(scene: Scene) -> bytes:
    [topic] = scene.do(apis.Fetch, **fetched()).responses
    return bytes(topic.partitions[0].records)


def offset_at(scene: Scene, timestamp: int) -> tuple[int, int]:
    [topic] = scene.do(apis.ListOffsets, **asked(timestamp)).topics
    return topic.partitions[0].offset, topic.partitions[0].timestamp


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("of_topic", ["producer", "lz4"])
def test_records_have_the_time_of_their_append_where_the_topic_says_so(
    scene: Scene, codec: int, of_topic: str
) -> None:
    """No time of a producer is wrong then; keys are still asked for."""
    never: Fields = {"message_timestamp_before_max_ms": "0", "message_timestamp_after_max_ms": "0"}
    scene.create("orders", **BY_BROKER, **never, cleanup_policy="compact", compression_type=of_topic)
    sent = [Record(b"%d" % n * 1000, b"key", at, (("h", b"v"),)) for n, at in enumerate((5, -1, NOW_MS * 2))]
    expected: list[Record] = []
    while len({item.timestamp for item in expected}) < 2:
        before = time.time_ns() // 1_000_000
        answer = answered(scene, batch(*sent, codec=codec))
        stamp = answer.log_append_time_ms
        assert before <= stamp <= time.time_ns() // 1_000_000
        expected += [
            item._replace(timestamp=stamp, offset=answer.base_offset + n) for n, item in enumerate(sent)
        ]
    records = read_back(scene)
    assert read(records) == expected
    assert all(header.attributes & LOG_APPEND_TIME_BIT for header in headers_of(records))
    first, last = expected[0], expected[-1]
    for at in (5, first.timestamp):
        assert offset_at(scene, at) == (first.offset, first.timestamp)
    assert offset_at(scene, last.timestamp + 1) == (-1, -1)
    assert offset_at(scene, SpecialTimestamp.MAX_TIMESTAMP)[1] == last.timestamp
    assert answered(scene, batch(Record(key=None))).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_sent_again_is_answered_with_the_time_of_its_first_coming(scene: Scene) -> None:
    scene.create("orders", **BY_BROKER)
    first, second = (batch(b"v", producer_id=new_producer_id(), epoch=0, sequence=0) for _ in range(2))

    def sent() -> tuple[int, int, int]:
        answer = answered(scene, first)
        return answer.error_code, answer.base_offset, answer.log_append_time_ms

    _, offset, stamp = sent()
    while answered(scene, second).log_append_time_ms == stamp:
        second = batch(b"v", producer_id=new_producer_id(), epoch=0, sequence=0)
    assert sent() == (0, offset, stamp)
    scene.raw.xtrim("korvet:orders:0", maxlen=0, approximate=False)
    assert sent() == (0, offset, -1)
    scene.raw.set("korvet:orders:0", "no log")
    assert sent() == (0, offset, -1)
