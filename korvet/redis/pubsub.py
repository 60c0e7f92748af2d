"""Wake-ups from Redis: which channels this process listens to, on one pub/sub connection, opened at the first use.

A fetch that waits for appends, a member that waits for its group and the registry's watcher are woken by messages on
channels: an append publishes on its partition's channel, a transition on its group's. A channel stays subscribed for a
while after its last listener, so a consumer that fetches again and again costs no SUBSCRIBE each time.

Delivery is not guaranteed: pub/sub forgets messages that no one received. So `listen` returns only when Redis has
confirmed (later events are announced, earlier ones must be read), and after a lost connection every listener is called
with None (read again). A waiter also reads at its deadline: that read is the backstop, and there is no polling. A
connection that died without a word is found by a PING, sent only while there are listeners and nothing was heard for a
while: one small command per process, not per channel, and none when idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from korvet.errors import StorageUnavailableError
from korvet.redis import url as redis_url
from korvet.redis.connection import NO_OBSERVER, Observer, RedisConnection, pack, reconnect_backoff
from korvet.redis.replies import Reply
from korvet.redis.sentinel import connect_to
from korvet.turns import in_turns

Listener: TypeAlias = Callable[[bytes | None], None]

# A dead connection is noticed within twice this time; until then parked fetches have their deadline.
_PING_INTERVAL_MS = 10_000
# Channels per SUBSCRIBE: Redis serves other clients between two commands, not within one.
_CHANNELS_PER_COMMAND = 1000

_SUBSCRIBE, _UNSUBSCRIBE, _PING = "SUBSCRIBE", "UNSUBSCRIBE", pack(("PING",))


class _Subscription:
    __slots__ = ("answered", "interrupted", "listeners", "live")

    def __init__(self) -> None:
        self.listeners: dict[Listener, None] = {}
        self.live = False
        self.interrupted = False
        self.answered = Event()


class Subscriptions:
    """The channels of one process. Listeners are called in the event loop: they must not block or raise.

    A listener may be called once more just after it was removed, for a message that was under way.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_ms: int,
        linger_ms: int,
        ping_interval_ms: int = _PING_INTERVAL_MS,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """Raise ConfigError for a malformed `url`; `connect_timeout_ms` bounds a connect and a confirmation."""
        self._observer = observer
        self._served = False
        self._target = redis_url.parse_url(url)
        self._timeout_ms, self._timeout_s = connect_timeout_ms, connect_timeout_ms / 1000
        self._linger_s, self._ping_interval_s = linger_ms / 1000, ping_interval_ms / 1000
        self._channels: dict[bytes, _Subscription] = {}
        self._listeners = 0
        # Channels without listeners -> when to unsubscribe; the linger is the same for all, so the order is in time.
        self._idle: dict[bytes, float] = {}
        self._sweeping = False
        self._queued: list[tuple[str, bytes]] = []
        self._connection: RedisConnection | None = None
        self._runner: gevent.Greenlet[[], None] | None = None
        self._gone = Event()
        self._refusal = ""
        self._pausing = False
        self._confirmations = 0
        self._backoff = reconnect_backoff()
        self._closed = False

    def listen(self, channel: str, listener: Listener) -> bool:
        """Call `listener` with every message on `channel` until it is removed, and with None to read again.

        Returns True if the channel was live already; otherwise subscribes, and returns False when Redis has confirmed:
        what was read before may be stale. A listener listens once per channel. Raises StorageUnavailableError when
        Redis does not confirm in time; the listener is removed then.
        """
        return self.listen_all(((channel, listener),))

    def listen_all(self, pairs: Sequence[tuple[str, Listener]]) -> bool:
        """Do as `listen` for several channels in one round trip; True if all were live already."""
        subscriptions = [self._add(channel.encode(), listener) for channel, listener in pairs]
        waiting = [channel for channel in subscriptions if not channel.live]
        if not waiting:
            return True
        try:
            self._await_confirmation(waiting)
        except BaseException:
            for channel, listener in pairs:
                self.forget(channel, listener)
            raise
        return False

    def forget(self, channel: str, listener: Listener) -> None:
        """Stop calling `listener`; the channel is unsubscribed a while after its last listener went."""
        name = channel.encode()
        entry = self._channels.get(name)
        if entry is None or listener not in entry.listeners:
            return
        del entry.listeners[listener]
        self._listeners -= 1
        if not entry.listeners:
            self._release(name, entry)

    def live(self, channel: str) -> bool:
        """Whether Redis has confirmed the channel on the present connection."""
        entry = self._channels.get(channel.encode())
        return entry is not None and entry.live

    def reconnect(self, reason: str) -> None:
        """Close the connection and subscribe over another one; listeners are called with None."""
        if self._connection is not None:
            self._connection.lose(reason)

    def close(self) -> None:
        """End the connection and call nobody any more."""
        self._closed = True
        self._refusal = f"the subscriptions on Redis at {self._target} are closed"
        for entry in self._channels.values():
            entry.answered.set()
        self._channels.clear()
        self._idle.clear()
        self._listeners = 0
        if self._runner is not None:
            self._runner.kill(block=False)
        if self._connection is not None:
            self._connection.lose("closed by this broker")

    def _add(self, name: bytes, listener: Listener) -> _Subscription:
        entry = self._channels.get(name)
        if entry is None:
            entry = self._channels[name] = _Subscription()
            if self._connection is not None:
                self._queue(_SUBSCRIBE, name)
        self._idle.pop(name, None)
        if listener not in entry.listeners:
            entry.listeners[listener] = None
            self._listeners += 1
        return entry

    def _await_confirmation(self, waiting: list[_Subscription]) -> None:
        if self._closed or self._pausing:
            raise StorageUnavailableError(self._refusal)
        if self._runner is None:
            self._runner = gevent.spawn(self._run)
        deadline = time.monotonic() + self._timeout_s
        for entry in waiting:
            answered = entry.answered.wait(max(deadline - time.monotonic(), 0.001))
            if not answered:
                text = f"Redis at {self._target} did not confirm a subscription within {self._timeout_ms} ms"
                raise StorageUnavailableError(text)
            if not entry.live:
                raise StorageUnavailableError(self._refusal)

    def _release(self, name: bytes, entry: _Subscription) -> None:
        """Unsubscribe from a channel without listeners, now or after the linger."""
        if entry.live:
            self._idle[name] = time.monotonic() + self._linger_s
            if not self._sweeping:
                self._sweep_in(self._linger_s)
        elif self._connection is None:
            del self._channels[name]
        # Otherwise SUBSCRIBE was sent: its confirmation calls this again. Unsubscribing before that could let the late
        # confirmation pass for that of a later SUBSCRIBE.

    def _sweep_in(self, seconds: float) -> None:
        self._sweeping = True
        get_hub().loop.timer(max(seconds, 0.001)).start(self._sweep, update=True)

    def _sweep(self) -> None:
        self._sweeping = False
        now = time.monotonic()
        while self._idle:
            name, due = next(iter(self._idle.items()))
            if due > now:
                self._sweep_in(due - now)
                return
            del self._idle[name], self._channels[name]
            self._queue(_UNSUBSCRIBE, name)

    def _queue(self, command: str, name: bytes) -> None:
        if not self._queued:
            get_hub().loop.run_callback(self._flush)
        self._queued.append((command, name))

    def _flush(self) -> None:
        """Send what was queued in this turn of the event loop, in its order, neighbours in one command."""
        queued, self._queued = self._queued, []
        start = 0
        for end in range(1, len(queued) + 1):
            run = end - start
            if end == len(queued) or run == _CHANNELS_PER_COMMAND or queued[end][0] != queued[start][0]:
                if self._connection is not None:
                    self._connection.send(pack((queued[start][0], *(name for _, name in queued[start:end]))))
                start = end

    def _run(self) -> None:
        """Keep a connection as long as there are channels, from one loss to the next."""
        while self._channels:
            confirmations = self._confirmations
            try:
                connected = connect_to(self._target, self._timeout_ms, self.reconnect)[0]
            except StorageUnavailableError as error:
                self._refusal = error.message
                self._observer.connect_failed()
            else:
                if self._served:
                    self._observer.reconnected()
                self._served = True
                self._serve(connected)
            # A Redis that accepts the connection and then refuses is away as well.
            if self._confirmations == confirmations:
                self._pause()
            else:
                self._backoff.reset()
        self._runner = None

    def _serve(self, connected: gevent.socket.socket) -> None:
        self._gone.clear()
        self._queued.clear()
        self._connection = connection = RedisConnection(connected, self._on_replies, self._on_lost)
        for name in self._channels:
            self._queue(_SUBSCRIBE, name)
        pinged_at = 0.0
        pause_s = self._ping_interval_s
        while not self._gone.wait(pause_s):
            now = time.monotonic()
            pause_s = self._ping_interval_s
            if pinged_at > connection.heard_at:
                if now - pinged_at >= self._timeout_s:
                    connection.lose("it did not answer a PING")
            elif self._listeners and now - connection.heard_at >= self._ping_interval_s:
                pinged_at = now
                pause_s = min(self._ping_interval_s, self._timeout_s)
                connection.send(_PING)

    def _pause(self) -> None:
        # Those that wait for a confirmation fail now; those that come during the pause fail at once.
        for entry in self._channels.values():
            entry.answered.set()
            entry.answered = Event()
        self._pausing = True
        gevent.sleep(self._backoff.next_s())
        self._pausing = False

    def _on_lost(self, reason: str) -> None:
        self._connection = None
        if not self._closed:
            self._refusal = f"the connection to Redis at {self._target} was lost ({reason})"
        self._idle.clear()
        for name, entry in list(self._channels.items()):
            if not entry.listeners:
                del self._channels[name]
            elif entry.live:
                entry.live, entry.interrupted, entry.answered = False, True, Event()
        self._gone.set()

    def _on_replies(self, replies: list[Reply]) -> None:
        for reply in replies:
            match reply:
                case [b"message", bytes(name), bytes(payload)]:
                    self._notify(self._channels.get(name), payload)
                case [b"subscribe", bytes(name), int()]:
                    self._confirmed(name)
                case [b"unsubscribe", *_] | [b"pong", *_] | b"PONG":
                    pass
                case _:
                    if self._connection is not None:
                        self._connection.lose(f"it answered {str(reply)[:200]}")
                    return

    def _confirmed(self, name: bytes) -> None:
        self._confirmations += 1
        entry = self._channels.get(name)
        if entry is None:
            return
        entry.live = True
        entry.answered.set()
        if entry.interrupted:
            entry.interrupted = False
            self._notify(entry, None)
        if not entry.listeners:
            self._release(name, entry)

    def _notify(self, entry: _Subscription | None, payload: bytes | None) -> None:
        if entry is None:
            return
        # By the event loop and not from here: a listener that fails must not end the reading of this connection.
        run_callback = get_hub().loop.run_callback
        for listener in entry.listeners:
            run_callback(listener, payload)


class Watch:
    """The channels that one request waits for, by their index. A context manager: leaving it stops listening."""

    def __init__(self, subscriptions: Subscriptions, channels: Sequence[str]) -> None:
        self._subscriptions = subscriptions
        self._event = Event()
        self._woken: set[int] = set()
        self._listeners = [
            (channel, partial(self._wake, index)) for index, channel in enumerate(in_turns(channels))
        ]
        self._listening = False

    def __enter__(self) -> Self:
        """Listen at once if all channels are live already; see `live`."""
        if all(self._subscriptions.live(channel) for channel, _ in self._listeners):
            self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        if self._listening:
            for channel, listener in self._listeners:
                self._subscriptions.forget(channel, listener)

    @property
    def live(self) -> bool:
        """Whether every message from now on wakes this watch. What was read before must be read again."""
        return self._listening

    def listen(self) -> None:
        """Subscribe; on return messages wake this watch. Raises StorageUnavailableError if Redis is away."""
        self._listening = True
        self._subscriptions.listen_all(self._listeners)

    def wait(self, seconds: float) -> set[int]:
        """Wait for messages; returns the indexes of the channels that had one, none after `seconds`."""
        self._event.wait(seconds)
        self._event.clear()
        woken, self._woken = self._woken, set()
        return woken

    def wake_all(self) -> None:
        """Wake the waiter without a message, as at the end of its worker."""
        self._event.set()

    def _wake(self, index: int, _message: bytes | None) -> None:
        self._woken.add(index)
        self._event.set()
