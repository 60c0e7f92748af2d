"""Subscriptions on a real Redis: confirmed before listen returns, kept for a while, re-made after a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gevent
import pytest
import redis

from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from tests.support import redis_servers
from tests.support.proxy import Proxy, proxy, turn, until

pytestmark = pytest.mark.slow

Connect = Callable[..., Subscriptions]


@pytest.fixture
def subscribe() -> Iterator[Connect]:
    made: list[Subscriptions] = []

    def subscribed(
        url: str, linger_ms: int = 60_000, timeout_ms: int = 10_000, ping_interval_ms: int = 10_000
    ) -> Subscriptions:
        client = Redis(url, timeout_ms=timeout_ms, connect_timeout_ms=timeout_ms)
        one = Subscriptions(client, linger_ms=linger_ms, ping_interval_ms=ping_interval_ms)
        made.append(one)
        return one

    yield subscribed
    for one in made:
        one.close()
    turn()


class Heard(list[bytes | None]):
    """A listener that keeps its messages."""

    def __call__(self, payload: bytes | None) -> None:
        self.append(payload)

    def __hash__(self) -> int:  # type: ignore[override]  # a list has none
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, Heard) else list(self) == other


def subscribed_channels(raw: redis.Redis) -> set[str]:
    return {name.decode() for name in raw.pubsub_shardchannels() if isinstance(name, bytes)}


def test_listen_returns_when_redis_has_confirmed(
    redis_url: str, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(redis_url)
    heard = Heard()
    assert subscriptions.listen("c", heard) is False
    assert subscriptions.live("c")
    # Published at once: had Redis not known the subscription yet, nobody would receive it.
    assert raw_redis.spublish("c", b"\x00first") == 1
    assert raw_redis.spublish("other", b"not for us") == 0
    raw_redis.spublish("c", "second")
    until(lambda: len(heard) == 2)
    assert heard == [b"\x00first", b"second"]


def test_a_channel_lingers_and_is_then_unsubscribed(
    redis_url: str, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(redis_url, linger_ms=2000)
    heard, staying = Heard(), Heard()
    subscriptions.listen_all([("c", heard), ("d", heard)])
    subscriptions.listen("stays", staying)
    subscriptions.forget("c", heard)
    subscriptions.forget("d", heard)
    assert subscriptions.listen("d", heard) is True
    assert subscribed_channels(raw_redis) == {"c", "d", "stays"}
    until(lambda: subscribed_channels(raw_redis) == {"d", "stays"})
    assert not subscriptions.live("c")
    assert subscriptions.live("d")
    assert subscriptions.listen("c", heard) is False
    assert raw_redis.spublish("c", "x") == 1
    until(lambda: heard == [b"x"])


def test_a_lost_connection_is_replaced_and_all_listeners_read_again(
    network: Proxy, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(network.url)
    listeners = {name: Heard() for name in ("a", "b", "c")}
    for name, heard in listeners.items():
        subscriptions.listen(name, heard)
    for loss in range(1, 6):
        network.cut()
        until(lambda loss=loss: all(len(heard) == loss for heard in listeners.values()))  # type: ignore[misc]  # not inferred
        # None comes after the new confirmation: what is published from here on arrives.
        assert all(subscriptions.live(name) for name in listeners)
    assert all(heard == [None] * 5 for heard in listeners.values())
    assert raw_redis.spublish("a", "x") == 1
    until(lambda: listeners["a"][-1] == b"x")


def test_a_listener_killed_while_waiting_leaves_nothing(
    network: Proxy, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(network.url, linger_ms=50)
    subscriptions.listen("a", Heard())
    network.silence()
    waiting = gevent.spawn(subscriptions.listen, "b", Heard())
    until(lambda: subscriptions.listeners == 2)
    waiting.kill()
    network.speak()
    until(lambda: subscriptions.channels == 1)
    until(lambda: subscribed_channels(raw_redis) == {"a"})
    assert subscriptions.listeners == 1


def test_a_listener_that_fails_does_not_silence_the_others(
    redis_url: str, subscribe: Connect, raw_redis: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_payload: bytes | None) -> None:
        raise ZeroDivisionError

    subscriptions = subscribe(redis_url)
    heard = Heard()
    subscriptions.listen("c", failing)
    subscriptions.listen("c", heard)
    raw_redis.spublish("c", "x")
    raw_redis.spublish("c", "y")
    until(lambda: heard == [b"x", b"y"])
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_listener_may_forget_itself(redis_url: str, subscribe: Connect, raw_redis: redis.Redis) -> None:
    subscriptions = subscribe(redis_url)
    calls: list[bytes | None] = []

    def once(payload: bytes | None) -> None:
        calls.append(payload)
        subscriptions.forget("c", once)

    rest = Heard()
    subscriptions.listen("c", once)
    subscriptions.listen("c", rest)
    raw_redis.spublish("c", "x")
    until(lambda: rest == [b"x"])
    raw_redis.spublish("c", "y")
    until(lambda: rest == [b"x", b"y"])
    assert calls == [b"x"]


def test_a_forbidden_channel_is_reported(subscribe: Connect) -> None:
    with redis_servers.embedded_server() as url:
        with redis.Redis.from_url(url) as admin:
            admin.acl_setuser(
                "korvet", enabled=True, passwords="+s3cret", channels=["ours:*"], categories=["+@all"]
            )
        subscriptions = subscribe(url.replace("unix://", "unix://korvet:s3cret@"))
        with pytest.raises(StorageUnavailableError, match="NOPERM"):
            subscriptions.listen("theirs", Heard())
        heard = Heard()
        until(lambda: listens(subscriptions, "ours:1", heard))


def listens(subscriptions: Subscriptions, channel: str, heard: Heard) -> bool:
    try:
        subscriptions.listen(channel, heard)
    except StorageUnavailableError:
        return False
    return subscriptions.live(channel)


def test_a_server_that_was_away_is_listened_to_again(subscribe: Connect, redis_url: str) -> None:
    with proxy(redis_url) as network:
        subscriptions = subscribe(network.url, timeout_ms=2000)
        heard = Heard()
        subscriptions.listen("c", heard)
        network.silence()
        network.cut()
        until(lambda: network.connections >= 3)
        assert heard == []
        with pytest.raises(StorageUnavailableError):
            subscriptions.listen("d", Heard())
        network.speak()
        until(lambda: heard == [None])
        assert subscriptions.live("c")


def test_closing_ends_the_connection_and_all_waits(
    network: Proxy, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(network.url)
    subscriptions.listen("a", Heard())
    network.silence()
    waiting = gevent.spawn(listens, subscriptions, "b", Heard())
    until(lambda: subscriptions.listeners == 2)
    subscriptions.close()
    assert waiting.get() is False
    network.speak()
    until(lambda: not subscribed_channels(raw_redis))
    with pytest.raises(StorageUnavailableError, match="closed"):
        subscriptions.listen("a", Heard())
