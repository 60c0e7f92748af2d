"""Metadata for many at a time: few readings of Redis, and none that is older than the question."""

from __future__ import annotations

import gevent
import pytest
import redis

from korvet.cluster.brokers import BrokerStore, ClusterView, LiveBroker
from korvet.cluster.registration import Endpoint
from korvet.errors import StorageUnavailableError
from korvet.redis.keys import Keys
from korvet.topics.metadata_view import MetadataView
from korvet.topics.registry import TopicSpec
from tests.support.domain import Domain, domain
from tests.support.proxy import turn

BROKER = LiveBroker(1, {"PLAINTEXT": Endpoint("broker.example", 9092)})


def view_of(own: Domain) -> MetadataView:
    return MetadataView(ClusterView("id", BROKER, BrokerStore(own.redis, Keys("korvet"))), own.topics)


def commands(raw_redis: redis.Redis) -> int:
    """Return how many commands Redis has run, ever."""
    return int(raw_redis.info("stats")["total_commands_processed"])


def test_a_hundred_who_ask_at_a_time_cause_two_readings(here: Domain, raw_redis: redis.Redis) -> None:
    view = view_of(here)
    for _ in range(3):  # connections and scripts are there then
        view.refresh()
    before = commands(raw_redis)
    view.refresh()
    one = commands(raw_redis) - before - 1
    before = commands(raw_redis)
    asked = [gevent.spawn(view.refresh) for _ in range(100)]
    gevent.joinall(asked, raise_error=True)
    assert commands(raw_redis) - before - 1 == 2 * one > 0


def test_who_asks_while_others_are_answered_finds_what_was_made_before(here: Domain, there: Domain) -> None:
    view = view_of(here)
    view.refresh()
    under_way = gevent.spawn(view.refresh)
    turn()
    there.topics.create(TopicSpec(name="orders", partitions=1))
    view.refresh()
    assert here.topics.get_cached("orders") is not None
    under_way.join()


def test_a_reading_that_is_broken_off_is_nobodys(here: Domain, there: Domain) -> None:
    view = view_of(here)
    view.refresh()
    ended = gevent.spawn(view.refresh)
    turn()
    there.topics.create(TopicSpec(name="orders", partitions=1))
    waiting = gevent.spawn(view.refresh)
    turn()
    ended.kill()
    waiting.join()
    assert here.topics.get_cached("orders") is not None


@pytest.mark.parametrize("asked", [1, 20])
def test_without_redis_all_learn_why(asked: int) -> None:
    with domain("redis://127.0.0.1:1") as away:
        view = view_of(away)
        outages = [gevent.spawn(view.refresh) for _ in range(asked)]
        gevent.joinall(outages, raise_error=True)
        assert all(isinstance(outage.value, StorageUnavailableError) for outage in outages)
