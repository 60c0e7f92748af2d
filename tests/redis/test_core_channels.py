"""korvet_core.Channels as Python sees it: who is called with what when, and that nobody is kept who is not needed.

What it decides is tested in core/proto, and what a real Redis makes of it in test_pubsub.py and test_sharded_pubsub.py.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
from korvet_core import Channels, pack_command

from tests.redis.test_core_client import GREETED, GREETING, Server

Calls = Sequence[tuple[Callable[[bytes | None], None], bytes | None]]
Answers = Sequence[tuple[str, str | None]]

LINGER_S = 5.0


class Listener:
    """A listener that is never called here."""

    def __call__(self, payload: bytes | None) -> None:
        """Take a message."""
        raise AssertionError(payload)


class Feed:
    """Channels over a feed whose server is a socket of the test, and what was heard of them, a list each time."""

    def __init__(self) -> None:
        self.server = Server()
        self.heard: list[tuple[Calls, Answers]] = []
        self.fails = False
        self.channels: Channels = self.server.client.open_feed(
            self.on_news, linger_s=LINGER_S, timeout_s=10.0, ping_s=10.0
        )
        self.connection = 0
        self.socket: socket.socket | None = None

    def on_news(self, calls: Calls, answers: Answers) -> None:
        """Note what is heard."""
        self.heard.append((calls, answers))
        if self.fails:
            raise ZeroDivisionError

    def connect(self) -> None:
        """Open the connection that was asked for."""
        [self.connection] = [action[1] for action in self.server.actions if action[0] == "open"]
        mine, self.socket = socket.socketpair()
        self.server.client.opened(self.connection, mine.detach())
        assert self.sent() == GREETING
        self.say(GREETED)
        del self.server.actions[:]

    def sent(self) -> bytes:
        """Return what the client writes now."""
        assert self.socket is not None
        self.server.client.writable(self.connection)
        self.socket.settimeout(0)
        try:
            return self.socket.recv(1 << 20)
        except BlockingIOError:
            return b""

    def say(self, answer: bytes) -> None:
        """Have the server send something."""
        assert self.socket is not None
        self.socket.sendall(answer)
        self.server.actions += self.server.client.readable(self.connection)[1]

    def confirm(self, *channels: str) -> None:
        """Have the server confirm subscriptions."""
        self.say(b"".join(push("ssubscribe", channel) for channel in channels))

    def close(self) -> None:
        """Close both ends."""
        self.channels.close()
        self.server.client.closed(self.connection)
        if self.socket is not None:
            self.socket.close()
        self.server.close()


def push(kind: str, channel: str, payload: bytes | None = None) -> bytes:
    """Return what a server says of a channel, or over it."""
    begin = b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in (kind, channel))
    return begin + (b":1\r\n" if payload is None else b"$%d\r\n%b\r\n" % (len(payload), payload))


@pytest.fixture
def feed() -> Iterator[Feed]:
    made = Feed()
    yield made
    made.close()


def test_what_comes_in_one_turn_is_heard_at_once(feed: Feed) -> None:
    first, second = Listener(), Listener()
    feed.channels.listen([("a", first), ("b", first), ("a", second)])
    feed.connect()
    assert feed.sent() == pack_command(("SSUBSCRIBE", "a", "b"))
    assert feed.heard == []
    feed.say(push("ssubscribe", "a") + push("smessage", "a", b"\x00x") + push("ssubscribe", "b"))
    assert feed.heard == [([(first, b"\x00x"), (second, b"\x00x")], [("a", None), ("b", None)])]
    assert (feed.channels.live("a"), feed.channels.count, feed.channels.listeners) == (True, 2, 3)


def test_a_message_that_nobody_is_to_hear_makes_no_object(feed: Feed) -> None:
    feed.channels.listen([("a", Listener())])
    feed.connect()
    feed.confirm("a")
    del feed.heard[:]
    feed.say(push("smessage", "other", b"x"))
    assert feed.heard == []


def test_a_listener_is_the_one_that_is_the_same_object(feed: Feed) -> None:
    class Equal(Listener):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    one, other = Equal(), Equal()
    feed.channels.listen([("a", one), ("a", one), ("a", other)])
    assert feed.channels.listeners == 2
    feed.channels.forget("a", one)
    feed.channels.forget("a", one)
    assert feed.channels.listeners == 1


def test_why_a_channel_is_not_live_is_said_once(feed: Feed) -> None:
    feed.channels.listen([("a", Listener())])
    [connection] = [action[1] for action in feed.server.actions if action[0] == "open"]
    feed.server.client.failed(connection, "no route")
    assert [answers for _, answers in feed.heard] == [
        [("a", "Redis at 127.0.0.1:1 cannot be reached: no route")]
    ]
    feed.channels.close()
    assert len(feed.heard) == 1


def test_an_error_of_who_hears_goes_to_the_hook_and_the_next_is_heard(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda error: raised.append(error.exc_type))
    feed.channels.listen([("a", Listener())])
    feed.connect()
    feed.fails = True
    feed.confirm("a")
    feed.fails = False
    feed.say(push("smessage", "a", b"x"))
    assert raised == [ZeroDivisionError]
    assert [payload for calls, _ in feed.heard for _, payload in calls] == [b"x"]


def test_the_driver_is_to_tick_after_the_linger(feed: Feed) -> None:
    listener = Listener()
    feed.channels.listen([("a", listener), ("b", listener)])
    feed.connect()
    feed.confirm("a", "b")
    feed.sent()
    del feed.server.actions[:]
    feed.channels.forget("a", listener)
    assert ("timer",) in feed.server.actions
    assert feed.server.client.due_s == pytest.approx(LINGER_S, abs=1.0)
    feed.server.client.tick()
    assert (feed.sent(), feed.channels.count) == (b"", 2)


def test_a_listener_is_let_go_of_when_it_is_forgotten(feed: Feed) -> None:
    gc.collect()
    gc.disable()
    try:
        listener, staying = Listener(), Listener()
        feed.channels.listen([("a", listener), ("a", staying)])
        feed.connect()
        feed.confirm("a")
        feed.say(push("smessage", "a", b"x"))
        del feed.heard[:]
        feed.channels.forget("a", listener)
        gone = weakref.ref(listener)
        del listener
        assert gone() is None
    finally:
        gc.enable()


def test_channels_and_their_client_that_lead_to_each_other_are_freed() -> None:
    feed = Feed()
    listener = Listener()
    feed.channels.listen([("a", listener)])
    gone = weakref.ref(listener)
    feed.server.client.closed(feed.server.connection)
    feed.server.socket.close()
    del feed, listener
    gc.collect()
    assert gone() is None
