"""The log store where Redis answers what it should not, or not at all: in both formats."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.types import Bounds, Read
from korvet.topics.types import TopicRow
from tests.support.log_bench import TOPIC_ID, Bench


@pytest.mark.parametrize("part", ["stream", "state"])
def test_a_key_of_the_wrong_type_is_an_error_that_names_it(bench: Bench, part: str) -> None:
    bench.append(b"a")
    key = getattr(bench.partition, part)
    bench.raw.delete(key)
    bench.raw.set(key, "x")
    outcomes: list[object] = [
        *bench.logs.append([bench.made(b"a")]),
        *bench.logs.read([Read(bench.partition, 0, 5)]),
    ]
    if part == "state" or bench.format == "record":  # in format batch the bounds lie in the state alone
        outcomes += bench.logs.bounds([bench.partition])
    for outcome in outcomes:
        assert isinstance(outcome, KafkaError)
        assert outcome.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.stream in outcome.message
        assert "WRONGTYPE" in outcome.message
    with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR .*WRONGTYPE"):
        bench.logs.external.step(bench.partition)


@pytest.mark.parametrize("field", ["next", "start", "max_timestamp"])
@pytest.mark.parametrize("garbage", ["", "x", "1.5x", "\xff"])
def test_a_malformed_state_is_an_error_that_names_it(bench: Bench, field: str, garbage: str) -> None:
    bench.append(b"a")
    bench.raw.hset(bench.partition.state, field, garbage)
    bench.expect(ErrorCode.KAFKA_STORAGE_ERROR, bench.partition.state)


def test_a_deleted_topic_is_unknown_to_everything(bench: Bench) -> None:
    bench.append(b"a")
    bench.topics.deletion.delete("orders", TOPIC_ID)
    bench.raw.xadd(bench.partition.stream, {"value": "left over"})
    bench.expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, bench.partition.stream)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        bench.logs.external.step(bench.partition)


def test_a_recreated_topic_takes_nothing_for_the_former_one(bench: Bench) -> None:
    bench.append(b"a")
    bench.topics.deletion.delete("orders", TOPIC_ID)
    configs: dict[str, str] = {"storage.format": bench.format}
    bench.topics.create(TopicRow(name="orders", id="id-2", partitions=3, configs=configs))
    bench.expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, bench.partition.stream)
    assert bench.logs.bounds([bench.at(0, topic_id="id-2")]) == [Bounds(0, 0, 0, -1)]


def test_a_lost_redis_is_the_outcome_of_every_append_and_raised_by_reads(bench: Bench) -> None:
    bench.redis.close()
    appends = [bench.made(b"a"), bench.made(b"a", partition=bench.partitions[1])]
    assert [type(outcome) for outcome in bench.logs.append(appends)] == [StorageUnavailableError] * 2
    with pytest.raises(StorageUnavailableError):
        bench.logs.read([Read(bench.partition, 0, 5)])
    with pytest.raises(StorageUnavailableError):
        bench.logs.bounds([bench.partition])
    with pytest.raises(StorageUnavailableError):
        bench.logs.external.step(bench.partition)
