"""The producers that logs remember, by a worker's registry that others have changed meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.producers import ActiveProducer, ActiveProducers, ProducerRows
from korvet.topics.registry import TopicSpec
from tests.support.domain import Domain

PRODUCERS = "{korvet:orders:0}:producers"


@pytest.fixture
def active(here: Domain) -> ActiveProducers:
    return ActiveProducers(here.topics, ProducerRows(here.redis))


def code(answer: list[ActiveProducer] | KafkaError) -> ErrorCode:
    assert isinstance(answer, KafkaError)
    return answer.code


def test_answers_are_in_the_order_of_the_question(
    here: Domain, active: ActiveProducers, raw_redis: Any
) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=2))
    raw_redis.hset(PRODUCERS, "7", "1 5 0-3@0")
    places = [("orders", 2), ("orders", 0), ("other", 0), ("orders", 1), ("orders", 0), ("orders", -1)]
    beyond, found, other, none, again, negative = active.read(places)
    assert found == again == [ActiveProducer(7, 1, 3, 5)]
    assert none == []
    assert {code(each) for each in (beyond, other, negative)} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_that_another_worker_made_is_known(
    active: ActiveProducers, there: Domain, raw_redis: Any
) -> None:
    there.topics.create(TopicSpec(name="orders"))
    raw_redis.hset(PRODUCERS, "7", "1 5 0-3@0")
    assert active.read([("orders", 0)]) == [[ActiveProducer(7, 1, 3, 5)]]


def test_a_redis_that_was_emptied_and_has_come_as_far_again_is_looked_at_anew(
    here: Domain, active: ActiveProducers, there: Domain, raw_redis: Any
) -> None:
    here.topics.create(TopicSpec(name="orders"))
    raw_redis.flushall()
    there.topics.reload()
    there.topics.create(TopicSpec(name="orders"))
    assert active.read([("orders", 0)]) == [[]]
