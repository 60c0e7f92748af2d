"""Idempotent producers: the rows that logs keep, and a registry that others have changed meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.packed import KeptBatch, ProducerRow
from korvet.log.producers import ActiveProducer, ActiveProducers, ProducerRows
from korvet.redis.client import Redis
from korvet.topics.registry import TopicSpec
from tests.support.domain import Domain
from tests.support.log_bench import Bench
from tests.support.partition_state import set_producer

STATE = "{korvet:orders:0}:state"


@pytest.fixture
def rows(redis: Redis) -> ProducerRows:
    return ProducerRows(redis)


def error_of(answer: list[ActiveProducer] | KafkaError) -> KafkaError:
    assert isinstance(answer, KafkaError)
    return answer


def test_each_partition_has_its_own_producers_by_their_ids(bench: Bench, rows: ProducerRows) -> None:
    before = bench.raw.time()[0] * 1000
    for producer_id, epoch, sequences in ((70, 0, (0, 2)), (7, 3, (0,))):
        for sequence in sequences:
            bench.append(b"a", b"b", producer=producer_id, epoch=epoch, sequence=sequence)
    results, none, _ = rows.read(bench.partitions)
    assert isinstance(results, list)
    assert [result[:3] for result in results] == [(7, 3, 1), (70, 0, 3)]
    assert all(before <= result.last_ms <= bench.raw.time()[0] * 1000 + 1000 for result in results)
    assert none == []


def test_many_producers_are_read_in_steps_each_once(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any
) -> None:
    made = {str(n): ProducerRow(2, n + 1, n, batches=(KeptBatch(1, 0),)).pack() for n in range(5000)}
    raw_redis.hset(STATE, mapping=made)
    [result] = rows.read([record_bench.partition])
    assert result == [ActiveProducer(n, 2, n, n) for n in range(5000)]


def test_more_partitions_than_one_round_trip_holds_are_answered_in_order(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any
) -> None:
    set_producer(raw_redis, STATE, 5, ProducerRow(0, 1, 9))
    partitions = [*record_bench.partitions, *record_bench.partitions[1:] * 100, record_bench.partition]
    answers = rows.read(partitions)
    assert [at for at, answer in enumerate(answers) if answer] == [0, len(partitions) - 1]


def test_another_topic_under_the_name_has_no_producers(record_bench: Bench, rows: ProducerRows) -> None:
    answers = rows.read([record_bench.at(0, topic_id="id-0"), record_bench.at(0), record_bench.at(0, "none")])
    assert error_of(answers[0]).code is error_of(answers[2]).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answers[1] == []


@pytest.mark.parametrize(
    ("name", "row"), [("7", b"garbage"), ("7", b""), ("7", b"x" * 100), ("7x", ProducerRow(0, 1, 9).pack())]
)
def test_what_cannot_be_read_is_an_error_of_its_partition(
    record_bench: Bench, rows: ProducerRows, raw_redis: Any, name: str, row: bytes
) -> None:
    raw_redis.hset(STATE, name, row)
    damaged, other, _ = rows.read(record_bench.partitions)
    assert error_of(damaged).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert STATE in error_of(damaged).message
    assert other == []


@pytest.fixture
def active(here: Domain) -> ActiveProducers:
    return ActiveProducers(here.topics, ProducerRows(here.redis))


def test_answers_are_in_the_order_of_the_question(
    here: Domain, active: ActiveProducers, raw_redis: Any
) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=2))
    set_producer(raw_redis, STATE, 7, ProducerRow(1, 4, 5, batches=(KeptBatch(4, 0),)))
    places = [("orders", 2), ("orders", 0), ("other", 0), ("orders", 1), ("orders", 0), ("orders", -1)]
    beyond, result, other, none, again, negative = active.read(places)
    assert result == again == [ActiveProducer(7, 1, 3, 5)]
    assert none == []
    assert {error_of(item).code for item in (beyond, other, negative)} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
