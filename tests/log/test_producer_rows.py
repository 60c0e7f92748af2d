"""The producers of partitions, from rows that the append scripts wrote, and from others."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.producers import ActiveProducer, ProducerRows
from korvet.redis.client import Redis
from tests.support.log_bench import Bench

PRODUCERS = "{korvet:orders:0}:producers"


@pytest.fixture
def rows(redis: Redis) -> ProducerRows:
    return ProducerRows(redis)


def refused(answer: list[ActiveProducer] | KafkaError) -> KafkaError:
    assert isinstance(answer, KafkaError)
    return answer


def test_each_partition_has_its_own_producers_by_their_ids(bench: Bench, rows: ProducerRows) -> None:
    before = bench.raw.time()[0] * 1000
    for producer_id, epoch, sequences in ((70, 0, (0, 2)), (7, 3, (0,))):
        for sequence in sequences:
            bench.append(b"a", b"b", producer=producer_id, epoch=epoch, sequence=sequence)
    found, none, _ = rows.read(bench.partitions)
    assert isinstance(found, list)
    assert [each[:3] for each in found] == [(7, 3, 1), (70, 0, 3)]
    assert all(before <= each.last_ms <= bench.raw.time()[0] * 1000 + 1000 for each in found)
    assert none == []


def test_many_producers_are_read_in_steps_each_once(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any
) -> None:
    raw_redis.hset(PRODUCERS, mapping={str(n): f"2 {n + 1} 0-{n}@0" for n in range(5000)})
    [found] = rows.read([record_bench.partition])
    assert found == [ActiveProducer(n, 2, n, n + 1) for n in range(5000)]


def test_more_partitions_than_one_round_trip_holds_are_answered_in_order(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any
) -> None:
    raw_redis.hset(PRODUCERS, "5", "0 9 0-0@0")
    partitions = [*record_bench.partitions, *record_bench.partitions[1:] * 100, record_bench.partition]
    answers = rows.read(partitions)
    assert [at for at, answer in enumerate(answers) if answer] == [0, len(partitions) - 1]


def test_another_topic_under_the_name_has_no_producers(record_bench: Bench, rows: ProducerRows) -> None:
    answers = rows.read([record_bench.at(0, topic_id="id-0"), record_bench.at(0), record_bench.at(0, "none")])
    assert refused(answers[0]).code is refused(answers[2]).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answers[1] == []


@pytest.mark.parametrize(
    ("name", "row"), [("7", "garbage"), ("7", "1 2 3"), ("x", "0 1 0-0@0"), ("7", "0 1 0-0@0 x")]
)
def test_a_row_that_cannot_be_read_is_an_error_of_its_partition(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any, name: str, row: str
) -> None:
    raw_redis.hset(PRODUCERS, name, row)
    damaged, other, _ = rows.read(record_bench.partitions)
    assert refused(damaged).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert PRODUCERS in refused(damaged).message
    assert other == []


def test_a_key_of_another_type_is_an_error_of_its_partition(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any
) -> None:
    raw_redis.set(PRODUCERS, "no hash")
    damaged, other, _ = rows.read(record_bench.partitions)
    assert refused(damaged).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert other == []
