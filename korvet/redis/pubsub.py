"""Wake-ups from Redis: which channels this process listens to, on one pub/sub connection, opened at the first use.

Knows channels, listeners and the state of the connection; not what a message means. A channel stays subscribed for
a while after its last listener, so a consumer that fetches again and again costs no SUBSCRIBE each time.

No message is promised: pub/sub forgets what nobody heard. So `listen` returns only when Redis has confirmed (what
happens later is announced, what happened before must be read), and after a lost connection every listener is called
with None (read again). A connection that died without a word is found by a PING, sent only while somebody listens and
nothing was heard for a while: one small command per process, not per channel, and none when idle.

Waiting for appends: what parks a fetch, and what wakes it.

Knows channels and deadlines; nothing of records. An append publishes on its partition's channel; the worker listens
to the channels of its parked fetches. A wake-up may be lost with the connection to Redis, so whoever waits reads
once more at its deadline: that read is the backstop, and there is no polling.
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
from korvet.redis.connection import NOBODY, BackOff, Link, Observer, connect, pack
from korvet.redis.replies import Reply

Listener: TypeAlias = Callable[[bytes | None], None]

# A dead connection is noticed within twice this time; until then parked fetches have their deadline.
_PING_INTERVAL_MS = 10_000
# Channels per SUBSCRIBE: Redis serves other clients between two commands, not within one.
_CHANNELS_PER_COMMAND = 1000

_SUBSCRIBE, _UNSUBSCRIBE, _PING = "SUBSCRIBE", "UNSUBSCRIBE", pack(("PING",))


class _Channel:
    __slots__ = ("answered", "interrupted", "listeners", "live")

    def __init__(self) -> None:
        self.listeners: dict[Listener, None] = {}
        self.live = False
        self.interrupted = False
        self.answered = Event()


class Subscriptions:
    """The channels of one process. Listeners are called in the event loop: they must not block or raise.

    A listener may be called once more just after it was forgotten, for a message that was under way.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_ms: int,
        linger_ms: int,
        ping_interval_ms: int = _PING_INTERVAL_MS,
        observer: Observer = NOBODY,
    ) -> None:
        """Raise ConfigError for a malformed `url`; `connect_timeout_ms` bounds a connect and a confirmation."""
        self._observer = observer
        self._served = False
        self._address = redis_url.parse(url)
        self._timeout_ms, self._timeout_s = connect_timeout_ms, connect_timeout_ms / 1000
        self._linger_s, self._ping_interval_s = linger_ms / 1000, ping_interval_ms / 1000
        self._channels: dict[bytes, _Channel] = {}
        self._listeners = 0
        # Channels without listeners -> when to unsubscribe; the linger is the same for all, so the order is in time.
        self._idle: dict[bytes, float] = {}
        self._sweeping = False
        self._asked: list[tuple[str, bytes]] = []
        self._link: Link | None = None
        self._keeper: gevent.Greenlet[[], None] | None = None
        self._gone = Event()
        self._refusal = ""
        self._pausing = False
        self._confirmations = 0
        self._back_off = BackOff()
        self._closed = False

    def listen(self, channel: str, listener: Listener) -> bool:
        """Call `listener` with every message on `channel` until it is forgotten, and with None to read again.

        Returns True if the channel was live already; otherwise subscribes, and returns False when Redis has confirmed:
        what was read before may be stale. A listener listens once per channel. Raises StorageUnavailableError when
        Redis does not confirm in time; the listener is forgotten then.
        """
        return self.listen_all(((channel, listener),))

    def listen_all(self, pairs: Sequence[tuple[str, Listener]]) -> bool:
        """Do as `listen` for several channels in one round trip; True if all were live already."""
        joined = [self._join(channel.encode(), listener) for channel, listener in pairs]
        waiting = [channel for channel in joined if not channel.live]
        if not waiting:
            return True
        try:
            self._confirm(waiting)
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
            self._settle(name, entry)

    def live(self, channel: str) -> bool:
        """Tell whether Redis has confirmed the channel on the present connection."""
        entry = self._channels.get(channel.encode())
        return entry is not None and entry.live

    def renew(self, reason: str) -> None:
        """Close the connection and subscribe over another one; whoever listens is told that messages may be missing."""
        if self._link is not None:
            self._link.lose(reason)

    def close(self) -> None:
        """End the connection and call nobody any more."""
        self._closed = True
        self._refusal = f"the subscriptions on Redis at {self._address} are closed"
        for entry in self._channels.values():
            entry.answered.set()
        self._channels.clear()
        self._idle.clear()
        self._listeners = 0
        if self._keeper is not None:
            self._keeper.kill(block=False)
        if self._link is not None:
            self._link.lose("closed by this broker")

    def _join(self, name: bytes, listener: Listener) -> _Channel:
        entry = self._channels.get(name)
        if entry is None:
            entry = self._channels[name] = _Channel()
            if self._link is not None:
                self._ask(_SUBSCRIBE, name)
        self._idle.pop(name, None)
        if listener not in entry.listeners:
            entry.listeners[listener] = None
            self._listeners += 1
        return entry

    def _confirm(self, waiting: list[_Channel]) -> None:
        if self._closed:
            raise StorageUnavailableError(self._refusal)
        if self._pausing:
            raise StorageUnavailableError(self._refusal)
        if self._keeper is None:
            self._keeper = gevent.spawn(self._keep)
        deadline = time.monotonic() + self._timeout_s
        for entry in waiting:
            answered = entry.answered.wait(max(deadline - time.monotonic(), 0.001))
            if not answered:
                text = f"Redis at {self._address} did not confirm a subscription within {self._timeout_ms} ms"
                raise StorageUnavailableError(text)
            if not entry.live:
                raise StorageUnavailableError(self._refusal)

    def _settle(self, name: bytes, entry: _Channel) -> None:
        """Decide what becomes of a channel that nobody listens to."""
        if entry.live:
            self._idle[name] = time.monotonic() + self._linger_s
            if not self._sweeping:
                self._sweep_in(self._linger_s)
        elif self._link is None:
            del self._channels[name]
        # Otherwise it was asked for: its confirmation brings it here again. Unsubscribing before that could let
        # the late confirmation pass for that of a later SUBSCRIBE.

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
            self._ask(_UNSUBSCRIBE, name)

    def _ask(self, command: str, name: bytes) -> None:
        if not self._asked:
            get_hub().loop.run_callback(self._flush)
        self._asked.append((command, name))

    def _flush(self) -> None:
        """Send what was asked for in this turn of the event loop, in its order, neighbours in one command."""
        asked, self._asked = self._asked, []
        start = 0
        for end in range(1, len(asked) + 1):
            run = end - start
            if end == len(asked) or run == _CHANNELS_PER_COMMAND or asked[end][0] != asked[start][0]:
                if self._link is not None:
                    self._link.send(pack((asked[start][0], *(name for _, name in asked[start:end]))))
                start = end

    def _keep(self) -> None:
        """Keep a connection as long as there are channels, from one loss to the next."""
        while self._channels:
            confirmations = self._confirmations
            try:
                connected = connect(self._address, self._timeout_ms)
            except StorageUnavailableError as error:
                self._refusal = error.message
                self._observer.connect_failed()
            else:
                if self._served:
                    self._observer.reconnected()
                self._served = True
                self._serve(connected)
            # A Redis that lets us in and then refuses is away as well: the pause is for it too.
            if self._confirmations == confirmations:
                self._pause()
            else:
                self._back_off.reset()
        self._keeper = None

    def _serve(self, connected: gevent.socket.socket) -> None:
        self._gone.clear()
        self._asked.clear()
        self._link = link = Link(connected, self._on_replies, self._on_lost)
        for name in self._channels:
            self._ask(_SUBSCRIBE, name)
        pinged_at = 0.0
        pause_s = self._ping_interval_s
        while not self._gone.wait(pause_s):
            now = time.monotonic()
            pause_s = self._ping_interval_s
            if pinged_at > link.heard_at:
                if now - pinged_at >= self._timeout_s:
                    link.lose("it did not answer a PING")
            elif self._listeners and now - link.heard_at >= self._ping_interval_s:
                pinged_at = now
                pause_s = min(self._ping_interval_s, self._timeout_s)
                link.send(_PING)

    def _pause(self) -> None:
        # Whoever waits for a confirmation need not wait on; who comes during the pause is told at once.
        for entry in self._channels.values():
            entry.answered.set()
            entry.answered = Event()
        self._pausing = True
        gevent.sleep(self._back_off.next_s())
        self._pausing = False

    def _on_lost(self, reason: str) -> None:
        self._link = None
        if not self._closed:
            self._refusal = f"the connection to Redis at {self._address} was lost ({reason})"
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
                    self._tell(self._channels.get(name), payload)
                case [b"subscribe", bytes(name), int()]:
                    self._confirmed(name)
                case [b"unsubscribe", *_] | [b"pong", *_] | b"PONG":
                    pass
                case _:
                    if self._link is not None:
                        self._link.lose(f"it answered {str(reply)[:200]}")
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
            self._tell(entry, None)
        if not entry.listeners:
            self._settle(name, entry)

    def _tell(self, entry: _Channel | None, payload: bytes | None) -> None:
        if entry is None:
            return
        # By the event loop and not from here: a listener that fails must not end the reading of this connection.
        run_callback = get_hub().loop.run_callback
        for listener in entry.listeners:
            run_callback(listener, payload)


class Watch:
    """The partitions one fetch waits for, by their place in its request. A context manager: leaving it forgets them."""

    def __init__(self, subscriptions: Subscriptions, channels: Sequence[str]) -> None:
        self._subscriptions = subscriptions
        self._event = Event()
        self._woken: set[int] = set()
        self._listeners = [(channel, partial(self._wake, place)) for place, channel in enumerate(channels)]
        self._listening = False

    def __enter__(self) -> Self:
        """Listen at once where that needs no word with Redis; see `live`."""
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
        """Whether every append from now on wakes this watch. What was read before this was true must be read again."""
        return self._listening

    def listen(self) -> None:
        """Subscribe; on return appends wake this watch. Raises StorageUnavailableError where Redis is away."""
        self._listening = True
        self._subscriptions.listen_all(self._listeners)

    def wait(self, seconds: float) -> set[int]:
        """Wait for appends; returns the places in the request that may have news, none after `seconds`."""
        self._event.wait(seconds)
        self._event.clear()
        woken, self._woken = self._woken, set()
        return woken

    def wake_all(self) -> None:
        """Wake the waiter without news, as at the end of its worker."""
        self._event.set()

    def _wake(self, place: int, _message: bytes | None) -> None:
        self._woken.add(place)
        self._event.set()
