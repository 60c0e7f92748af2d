"""Subscriptions on a real Redis: confirmed before listen returns, kept for a while, re-made after a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gevent
import pytest
import redis

from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.pubsub import Listener, Subscriptions
from tests.support import redis_servers
from tests.support.commands import commands_of
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


def test_nothing_connects_before_the_first_listener(
    network: Proxy, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(network.url)
    subscriptions.forget("c", Heard())
    assert not subscriptions.live("c")
    assert network.connections == 0


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


def test_a_second_listener_finds_the_channel_live(
    redis_url: str, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(redis_url)
    first, second = Heard(), Heard()
    subscriptions.listen("c", first)
    assert subscriptions.listen("c", second) is True
    assert raw_redis.spublish("c", "x") == 1
    until(lambda: first and second)
    subscriptions.forget("c", first)
    raw_redis.spublish("c", "y")
    until(lambda: len(second) == 2)
    assert first == [b"x"]


def test_ten_thousand_channels_take_few_commands(
    redis_url: str, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(redis_url, timeout_ms=60_000)
    subscriptions.listen("c", Heard())
    pairs: list[tuple[str, Listener]] = [(f"korvet:topic:{number}", Heard()) for number in range(10_000)]
    with commands_of(raw_redis) as ran:
        assert subscriptions.listen_all(pairs) == {}
    assert len(subscribed_channels(raw_redis)) == 10_001
    assert ran["ssubscribe"] == 10


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


def test_coming_and_going_keeps_no_memory_of_it(redis_url: str, subscribe: Connect) -> None:
    subscriptions = subscribe(redis_url, linger_ms=200)
    for _ in range(1000):
        heard = Heard()
        subscriptions.listen("c", heard)
        subscriptions.forget("c", heard)
    assert subscriptions.channels == 1
    until(lambda: subscriptions.channels == 0)
    assert subscriptions.listeners == 0


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


def test_a_channel_without_listeners_is_not_subscribed_again(
    network: Proxy, subscribe: Connect, raw_redis: redis.Redis
) -> None:
    subscriptions = subscribe(network.url)
    heard, gone = Heard(), Heard()
    subscriptions.listen("a", heard)
    subscriptions.listen("b", gone)
    subscriptions.forget("b", gone)
    network.cut()
    until(lambda: heard == [None])
    until(lambda: subscribed_channels(raw_redis) == {"a"})
    assert not subscriptions.live("b")
    assert gone == []


def test_a_silent_connection_is_found_while_somebody_listens(network: Proxy, subscribe: Connect) -> None:
    subscriptions = subscribe(network.url, timeout_ms=2000, ping_interval_ms=100)
    heard = Heard()
    subscriptions.listen("c", heard)
    network.silence()
    until(lambda: not subscriptions.live("c"))
    network.speak()
    until(lambda: None in heard and subscriptions.live("c"))


def test_an_answered_ping_keeps_the_connection(network: Proxy, subscribe: Connect) -> None:
    subscriptions = subscribe(network.url, ping_interval_ms=20)
    subscriptions.listen("c", Heard())
    sent = network.bytes_to_server
    # A PING is 14 bytes: at least ten have passed, and all were answered.
    until(lambda: network.bytes_to_server >= sent + 140)
    assert network.connections == 1
    assert subscriptions.live("c")


def test_nothing_is_sent_while_nobody_listens(network: Proxy, redis_url: str, subscribe: Connect) -> None:
    subscriptions = subscribe(network.url, ping_interval_ms=10)
    heard = Heard()
    subscriptions.listen("c", heard)
    subscriptions.forget("c", heard)
    with proxy(redis_url) as beside:
        subscribe(beside.url, ping_interval_ms=10).listen("c", Heard())
        until(lambda: beside.bytes_to_server > 1000)  # a PING is 14 bytes
        sent = network.bytes_to_server
        until(lambda: beside.bytes_to_server > 2000)
    assert network.bytes_to_server == sent


def test_a_redis_that_is_away_is_reported_and_found_again(redis_url: str, subscribe: Connect) -> None:
    with proxy(redis_url) as network:
        subscriptions = subscribe(network.url)
    heard = Heard()
    for _ in range(3):
        with pytest.raises(StorageUnavailableError, match="cannot be reached"):
            subscriptions.listen("c", heard)
    assert not subscriptions.live("c")
    assert subscriptions.channels == 0


def test_a_confirmation_that_does_not_come_is_a_time_out(network: Proxy, subscribe: Connect) -> None:
    subscriptions = subscribe(network.url, timeout_ms=2000)
    subscriptions.listen("a", Heard())
    network.silence()
    late = Heard()
    with pytest.raises(StorageUnavailableError, match="did not confirm"):
        subscriptions.listen("b", late)
    network.speak()
    # The late confirmation finds nobody; the next listener is confirmed by it and hears.
    until(lambda: subscriptions.live("b"))
    again = Heard()
    assert subscriptions.listen("b", again) is True


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
