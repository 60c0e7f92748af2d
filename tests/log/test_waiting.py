"""Watches: no append between a read and the wait is missed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import redis

from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions, Watch
from tests.support.redis_servers import servers_of

LONG = 30.0


@pytest.fixture
def subscriptions(redis_url: str) -> Iterator[Subscriptions]:
    made = Subscriptions(Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000), linger_ms=60_000)
    yield made
    made.close()


def test_a_message_wakes_with_its_place(subscriptions: Subscriptions, raw_redis: redis.Redis) -> None:
    with Watch(subscriptions, ["a", "b", "a"]) as watch:
        assert not watch.live
        watch.listen()
        raw_redis.spublish("b", "1")
        assert watch.wait(LONG) == {1}
        raw_redis.spublish("a", "1")
        assert watch.wait(LONG) == {0, 2}


def test_a_message_before_the_wait_is_not_lost(subscriptions: Subscriptions, raw_redis: redis.Redis) -> None:
    with Watch(subscriptions, ["a"]) as watch, Watch(subscriptions, ["a"]) as other:
        watch.listen()
        other.listen()
        raw_redis.spublish("a", "1")
        assert other.wait(LONG) == {0}  # the message has come, while nobody waits at the first
        assert watch.wait(0) == {0}
        assert watch.wait(0) == set()


def test_on_a_live_channel_a_watch_listens_from_its_first_moment(
    subscriptions: Subscriptions, raw_redis: redis.Redis
) -> None:
    with Watch(subscriptions, ["a", "b"]) as first:
        first.listen()
    with Watch(subscriptions, ["a", "b"]) as second:
        assert second.live
        raw_redis.spublish("b", "1")
        assert second.wait(LONG) == {1}
    with Watch(subscriptions, ["a", "c"]) as third:
        assert not third.live


def test_a_lost_connection_wakes_for_all_places(subscriptions: Subscriptions, raw_redis: redis.Redis) -> None:
    with Watch(subscriptions, ["a", "b"]) as watch:
        watch.listen()
        for server in servers_of(raw_redis):
            server.client_kill_filter(_type="pubsub")
        woken: set[int] = set()
        while woken != {0, 1}:
            news = watch.wait(LONG)
            assert news
            woken |= news


def test_a_watch_may_be_woken_without_news(subscriptions: Subscriptions) -> None:
    with Watch(subscriptions, ["a"]) as watch:
        watch.listen()
        watch.wake_all()
        assert watch.wait(LONG) == set()


def test_a_watch_that_was_left_hears_nothing(subscriptions: Subscriptions, raw_redis: redis.Redis) -> None:
    with Watch(subscriptions, ["a"]) as other:
        other.listen()
        with Watch(subscriptions, ["a"]) as left:
            assert left.live
        raw_redis.spublish("a", "1")
        assert other.wait(LONG) == {0}
        assert left.wait(0) == set()


def test_a_watch_that_is_over_is_freed_at_once(subscriptions: Subscriptions) -> None:
    gc.collect()
    gc.disable()
    try:
        with Watch(subscriptions, ["a", "b"]) as watch:
            watch.listen()
            over = weakref.ref(watch)
        del watch
        assert over() is None
    finally:
        gc.enable()


def test_channels_come_and_go_while_others_are_listened_to(
    subscriptions: Subscriptions, raw_redis: redis.Redis
) -> None:
    with Watch(subscriptions, ["a"]) as watch:
        watch.listen()
        watch.add(7, "b")
        assert not watch.live
        assert (watch.hears(0), watch.hears(7)) == (True, False)
        assert watch.listen() == {}
        assert watch.hears_all
        raw_redis.spublish("b", "1")
        assert watch.wait(LONG) == {7}
        watch.remove(7)
        raw_redis.spublish("b", "1")
        raw_redis.spublish("a", "1")
        assert watch.wait(LONG) == {0}
        assert watch.take() == set()
