"""One connection to one node for sharded pub/sub: subscribes, finds out what is lost, and connects again.

A node of a cluster unsubscribes its clients from a channel whose slot moves away, and refuses to subscribe to channels
of other nodes' slots (MOVED). The owner of the channels then takes them to the node that has the slot (pubsub.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from korvet.errors import StorageUnavailableError
from korvet.redis.connection import Observer, RedisConnection, reconnect_backoff
from korvet.redis.replies import MovedError, Reply
from korvet.redis.sentinel import connect_to
from korvet.redis.slots import SlotMap
from korvet.redis.url import RedisTarget

Listener: TypeAlias = Callable[[bytes | None], None]

# Channels per SSUBSCRIBE: Redis serves other clients between two commands, not within one.
_CHANNELS_PER_COMMAND = 1000

_SUBSCRIBE, _UNSUBSCRIBE, _PING = "SSUBSCRIBE", "SUNSUBSCRIBE", ("PING",)


class Subscription:
    """One channel: who listens to it, over which connection, and whether Redis has confirmed it there (`live`).

    `interrupted`: it was live over another connection, so its listeners have to read again once it is live.
    """

    __slots__ = ("answered", "interrupted", "listeners", "live", "slot", "subscriber")

    def __init__(self, slot: int, subscriber: Subscriber) -> None:
        self.slot, self.subscriber = slot, subscriber
        self.listeners: dict[Listener, None] = {}
        self.live = False
        self.interrupted = False
        self.answered = Event()

    def interrupt(self) -> None:
        """Note that messages may be missed from now on."""
        if self.live:
            self.live, self.interrupted, self.answered = False, True, Event()

    def fail(self) -> None:
        """Wake those that wait for the confirmation: it does not come for now."""
        self.answered.set()
        self.answered = Event()

    def notify(self, payload: bytes | None) -> None:
        """Call the listeners soon."""
        # By the event loop and not from here: a listener that fails must not end the reading of a connection.
        run_callback = get_hub().loop.run_callback
        for listener in self.listeners:
            run_callback(listener, payload)


class Subscriber:
    """The channels of one process that one node serves. It connects when there is one."""

    def __init__(
        self,
        target: RedisTarget,
        slots: SlotMap | None,
        *,
        timeout_ms: int,
        ping_interval_s: float,
        observer: Observer,
        on_idle: Callable[[bytes, Subscription], None],
        on_moved: Callable[[MovedError], None],
    ) -> None:
        """`slots`: the map of the cluster of which this is a node.

        `on_idle` is called for each channel without listeners that turns out to be live, or was lost, and `on_moved`
        if the node refused to subscribe to the channels of a slot, since another node has it.
        """
        self.name = f"Redis at {target}"
        self.channels: dict[bytes, Subscription] = {}
        self.listeners = 0
        """How many listeners its channels have: it finds out whether a silent node lives only if there are any."""
        self.refusal = ""
        """Why the node could not be reached last."""
        self._target, self._slots = target, slots
        self._timeout_ms, self._timeout_s = timeout_ms, timeout_ms / 1000
        self._ping_interval_s = ping_interval_s
        self._observer = observer
        self._on_idle, self._on_moved = on_idle, on_moved
        self._served = False
        self._queued: list[tuple[str, int, bytes]] = []
        self._connection: RedisConnection | None = None
        self._runner: gevent.Greenlet[[], None] | None = None
        self._gone = Event()
        self._away = False
        self._confirmations = 0
        self._refused = False
        self._backoff = reconnect_backoff()
        self._closed = False

    @property
    def away(self) -> bool:
        """Whether nobody is to wait for a confirmation, for the last attempt to get one failed: `refusal`."""
        return self._away or self._closed

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def add(self, name: bytes, entry: Subscription) -> None:
        """Take over a channel that is not live, and subscribe to it."""
        entry.subscriber = self
        self.channels[name] = entry
        self.listeners += len(entry.listeners)
        if self.away:
            entry.fail()
        self.subscribe(name, entry)
        if self._runner is None and not self._closed:
            self._runner = gevent.spawn(self._run)

    def subscribe(self, name: bytes, entry: Subscription) -> None:
        """Subscribe to a channel over the present connection; the next one does so by itself."""
        if self._connection is not None:
            self._queue(_SUBSCRIBE, entry.slot, name)

    def remove(self, name: bytes) -> None:
        """Forget a channel without unsubscribing: the node does so when it learns that it has the slot no more."""
        self.listeners -= len(self.channels.pop(name).listeners)

    def unsubscribe(self, name: bytes) -> None:
        """Unsubscribe from a channel that is live."""
        entry = self.channels.pop(name)
        self._queue(_UNSUBSCRIBE, entry.slot, name)

    def reconnect(self, reason: str) -> None:
        """Close the connection, and subscribe to all channels over another one."""
        if self._connection is not None:
            self._connection.lose(reason)

    def close(self) -> None:
        """End the connection and call nobody any more."""
        self._closed = True
        self.refusal = f"the subscriptions on {self.name} are closed"
        channels, self.channels = self.channels, {}
        for entry in channels.values():
            entry.answered.set()
        self.listeners = 0
        if self._runner is not None:
            self._runner.kill(block=False)
        if self._connection is not None:
            self._connection.lose("closed by this broker")

    def _queue(self, command: str, slot: int, name: bytes) -> None:
        if not self._queued:
            get_hub().loop.run_callback(self._flush)
        self._queued.append((command, slot, name))

    def _flush(self) -> None:
        """Send what was queued in this turn of the event loop, in its order, neighbours of one slot in one command."""
        queued, self._queued = self._queued, []
        start = 0
        for end in range(1, len(queued) + 1):
            run = end - start
            if end == len(queued) or run == _CHANNELS_PER_COMMAND or queued[end][:2] != queued[start][:2]:
                if self._connection is not None:
                    names = [name for _, _, name in queued[start:end]]
                    self._connection.send((queued[start][0], names))
                start = end

    def _run(self) -> None:
        """Keep a connection as long as there are channels, from one loss to the next."""
        on_moved = self.reconnect  # kept, since it is held by a weak reference
        while self.channels:
            confirmations, self._refused = self._confirmations, False
            try:
                connected = connect_to(self._target, self._timeout_ms, on_moved)[0]
            except StorageUnavailableError as error:
                self.refusal = error.message
                self._observer.connect_failed()
            else:
                if self._served:
                    self._observer.reconnected()
                self._served = True
                self._serve(connected)
            if self._slots is not None:
                # Another node may have its slots by now, or soon.
                self._slots.read_soon()
            # A Redis that accepts the connection and then refuses is away as well.
            if self._confirmations == confirmations or self._refused:
                self._pause()
            else:
                self._backoff.reset()
        self._runner = None
        self._away = False

    def _serve(self, connected: gevent.socket.socket) -> None:
        self._gone.clear()
        self._queued.clear()
        self._connection = connection = RedisConnection(
            connected, self.name, on_lost=self._on_lost, on_replies=self._on_replies
        )
        for name, entry in self.channels.items():
            self._queue(_SUBSCRIBE, entry.slot, name)
        pinged_at = 0.0
        pause_s = self._ping_interval_s
        while not self._gone.wait(pause_s):
            now = time.monotonic()
            pause_s = self._ping_interval_s
            if pinged_at > connection.heard_at:
                if now - pinged_at >= self._timeout_s:
                    connection.lose("it did not answer a PING")
            elif self.listeners and now - connection.heard_at >= self._ping_interval_s:
                pinged_at = now
                pause_s = min(self._ping_interval_s, self._timeout_s)
                connection.send(_PING)

    def _pause(self) -> None:
        """Wait until the next attempt; meanwhile those that wait for a confirmation fail, and so do those that come.

        In a cluster they fail until an attempt succeeds, for they wait for channels of other nodes too. Those that
        listened when the node went away read again now, and find out.
        """
        tell = self._slots is not None and not self._away
        self._away = True
        for entry in self.channels.values():
            entry.fail()
            if tell and entry.interrupted:
                entry.notify(None)
        gevent.sleep(self._backoff.next_s())
        self._away = self._slots is not None

    def _on_lost(self, reason: str) -> None:
        self._connection = None
        if not self._closed:
            self.refusal = f"the connection to {self.name} was lost ({reason})"
        for name, entry in list(self.channels.items()):
            entry.interrupt()
            if not entry.listeners:
                self._on_idle(name, entry)
        self._gone.set()

    def _on_replies(self, replies: list[Reply]) -> None:
        for reply in replies:
            match reply:
                case [b"smessage", bytes(name), bytes(payload)]:
                    entry = self.channels.get(name)
                    if entry is not None:
                        entry.notify(payload)
                case [b"ssubscribe", bytes(name), int()]:
                    self._confirmed(name)
                case [b"sunsubscribe", bytes(name), int()]:
                    self._unsubscribed(name)
                case [b"sunsubscribe", *_] | [b"pong", *_] | b"PONG":
                    pass
                case MovedError() if self._slots is not None:
                    self._on_moved(reply)
                case _:
                    self._refused = True
                    self.reconnect(f"it answered {str(reply)[:200]}")
                    return

    def _confirmed(self, name: bytes) -> None:
        self._confirmations += 1
        self._away = False
        entry = self.channels.get(name)
        if entry is None:
            return
        entry.live = True
        entry.answered.set()
        if entry.interrupted:
            entry.interrupted = False
            entry.notify(None)
        if not entry.listeners:
            self._on_idle(name, entry)

    def _unsubscribed(self, name: bytes) -> None:
        """Subscribe again if it was the node that did it: its refusal says which node has the channel now.

        To an UNSUBSCRIBE of this process it answers before it confirms a later subscription, which only then is live.
        """
        entry = self.channels.get(name)
        if entry is not None and entry.live:
            entry.interrupt()
            self.subscribe(name, entry)
