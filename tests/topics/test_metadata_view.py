"""Metadata for many at a time: few readings of Redis, and none that is older than the question."""

from __future__ import annotations

from typing import Any

import gevent
import msgspec
import pytest
import redis

from korvet.cluster.brokers import BrokerStore, ClusterView, LiveBroker, LiveBrokers
from korvet.cluster.registration import Endpoint
from korvet.errors import StorageUnavailableError
from korvet.redis.keys import Keys
from korvet.topics import metadata_view
from korvet.topics.metadata_view import KeptTopics, MetadataView
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
    # To count is a command for each server.
    counting = -commands(raw_redis) + commands(raw_redis)
    before = commands(raw_redis)
    view.refresh()
    one = commands(raw_redis) - before - counting
    before = commands(raw_redis)
    asked = [gevent.spawn(view.refresh) for _ in range(100)]
    gevent.joinall(asked, raise_error=True)
    assert commands(raw_redis) - before - counting == 2 * one > 0


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


BROKERS = LiveBrokers([BROKER], None)


@pytest.fixture
def kept(here: Domain) -> KeptTopics:
    """Give a view's topics for version 12, of which it keeps `orders`, led in epochs 5 and 6."""
    topic = here.topics.create(TopicSpec(name="orders", partitions=2))
    result = view_of(here).kept(BROKERS, 12, "PLAINTEXT")
    result.keep(topic, (5, 6), b"content")
    return result


@pytest.mark.parametrize("epochs", [(5, 7), (5, None), (5,), (5, 6, 6)])
def test_a_topic_is_kept_for_its_epochs_alone(here: Domain, kept: KeptTopics, epochs: Any) -> None:
    topic = here.topics.get("orders")
    assert kept.get(topic, (5, 6)) == b"content"
    assert kept.get(topic, epochs) is None


@pytest.mark.parametrize("change", [{"id": bytes(16)}, {"assignment": [[1], [2]]}])
def test_a_topic_is_kept_for_its_incarnation_and_assignment_alone(
    here: Domain, kept: KeptTopics, change: dict[str, Any]
) -> None:
    assert kept.get(msgspec.structs.replace(here.topics.get("orders"), **change), (5, 6)) is None


def test_a_topic_whose_configs_change_is_kept(here: Domain, kept: KeptTopics) -> None:
    before = here.topics.get("orders")
    here.topics.alter(
        before, lambda row: msgspec.structs.replace(row, configs=row.configs | {"retention.ms": "1"})
    )
    assert here.topics.get("orders") != before
    assert kept.get(here.topics.get("orders"), (5, 6)) == b"content"


def test_topics_are_kept_for_a_version_a_listener_and_the_brokers(here: Domain) -> None:
    view, topic = view_of(here), here.topics.create(TopicSpec(name="orders", partitions=1))

    def result(*of: Any) -> bytes | None:
        return view.kept(*of).get(topic, (5,))

    view.kept(BROKERS, 12, "PLAINTEXT").keep(topic, (5,), b"content")
    assert result(BROKERS, 12, "PLAINTEXT") == b"content"
    assert result(BROKERS, 13, "PLAINTEXT") is result(BROKERS, 12, "OTHER") is None
    assert result(BROKERS, 12, "PLAINTEXT") == b"content"
    assert result(LiveBrokers([BROKER], 1), 12, "PLAINTEXT") is None


def test_what_a_request_keeps_that_began_with_former_brokers_is_nobodys(here: Domain) -> None:
    view, topic = view_of(here), here.topics.create(TopicSpec(name="orders", partitions=1))
    former = view.kept(BROKERS, 12, "PLAINTEXT")
    now = LiveBrokers([BROKER], 1)
    view.kept(now, 12, "PLAINTEXT")
    former.keep(topic, (5,), b"content")
    assert view.kept(now, 12, "PLAINTEXT").get(topic, (5,)) is None


def test_what_is_kept_is_bounded(here: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_view, "KEPT_BYTES_MAX", 10_000)
    view, topic = view_of(here), here.topics.create(TopicSpec(name="orders", partitions=1))
    topics = [msgspec.structs.replace(topic, id=bytes([number] * 16)) for number in range(30)]
    for item in topics:
        view.kept(BROKERS, 12, "PLAINTEXT").keep(item, (5,), bytes(1000))
    left = [item for item in topics if view.kept(BROKERS, 12, "PLAINTEXT").get(item, (5,))]
    assert 0 < len(left) < 10


def test_all_topics_are_kept_for_a_version_of_the_registry_and_one_epoch(kept: KeptTopics) -> None:
    kept.keep_all(3, 5, [b"content"])
    assert kept.get_all(3, 5) == [b"content"]
    assert kept.get_all(4, 5) is kept.get_all(3, 6) is None
    kept.keep_all(3, None, [b"of a cluster"])
    assert kept.get_all(3, None) is None
