"""The channels that one node serves for sharded pub/sub: subscribes to them over each new connection.

The core connects again whenever the connection is lost, as long as there are channels. A node of a cluster
unsubscribes its clients from a channel whose slot moves away, and refuses to subscribe to channels of other slots
(MOVED). The owner of the channels then takes them to the node that has the slot (pubsub.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gevent.event import Event
from gevent.hub import get_hub

from korvet.redis.base_driver import BaseDriver
from korvet.redis.replies import MovedError, Reply

Listener: TypeAlias = Callable[[bytes | None], None]

# Channels per SSUBSCRIBE: Redis serves other clients between two commands, not within one.
_CHANNELS_PER_COMMAND = 1000

_SUBSCRIBE, _UNSUBSCRIBE = "SSUBSCRIBE", "SUNSUBSCRIBE"


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
    """The channels of one process that one node serves."""

    def __init__(
        self,
        driver: BaseDriver,
        lane: int,
        number: int,
        *,
        on_idle: Callable[[bytes, Subscription], None],
        on_moved: Callable[[MovedError], None],
    ) -> None:
        """Use a feed, the lane `lane`, for the node of that number.

        `on_idle` is called for each channel without listeners that turns out to be live, or was lost, and `on_moved`
        if the node of a cluster refused to subscribe to the channels of a slot, since another node has it.
        """
        self.name = f"Redis at {driver.core.name(number) if driver.is_cluster else driver.target}"
        self.channels: dict[bytes, Subscription] = {}
        self.listeners = 0
        """How many listeners its channels have: whether a silent node lives is found out only if there are any."""
        self.refusal = ""
        """Why the node could not be reached last."""
        self.connected = False
        """Whether there is a connection now."""
        self._core, self._lane, self._number = driver.core, lane, number
        self._is_cluster = driver.is_cluster
        self._on_idle, self._on_moved = on_idle, on_moved
        self._queued: list[tuple[str, int, bytes]] = []
        self._kept = False, False
        self._away = self._closed = False
        self._is_confirmed = False

    @property
    def away(self) -> bool:
        """Whether nobody is to wait for a confirmation, for the last attempt to get one failed: `refusal`."""
        return self._away or self._closed

    def add(self, name: bytes, entry: Subscription) -> None:
        """Take over a channel that is not live, and subscribe to it."""
        entry.subscriber = self
        self.channels[name] = entry
        if self.away:
            entry.fail()
        self.subscribe(name, entry)
        self.count(len(entry.listeners))

    def count(self, more: int) -> None:
        """Note that there are more listeners; the core keeps the connection accordingly."""
        self.listeners += more
        kept = bool(self.channels), self.listeners > 0
        if kept != self._kept and not self._closed:
            self._kept = kept
            self._core.keep(self._lane, self._number, *kept)
            if not self.channels:
                self._away = False

    def subscribe(self, name: bytes, entry: Subscription) -> None:
        """Subscribe to a channel over the present connection; the next one does so by itself."""
        if self.connected:
            self._queue(_SUBSCRIBE, entry.slot, name)

    def remove(self, name: bytes) -> None:
        """Forget a channel without unsubscribing: the node does so when it learns that it has the slot no more."""
        self.count(-len(self.channels.pop(name).listeners))

    def unsubscribe(self, name: bytes) -> None:
        """Unsubscribe from a channel that is live."""
        entry = self.channels.pop(name)
        self._queue(_UNSUBSCRIBE, entry.slot, name)
        self.count(0)

    def reconnect(self, reason: str) -> None:
        """Close the connection, and subscribe to all channels over another one."""
        if self.connected:
            self._core.lose(self._lane, self._number, reason, False)  # noqa: FBT003 - without a pause

    def close(self) -> None:
        """End the connection and call nobody any more."""
        self._closed = True
        self.refusal = f"the subscriptions on {self.name} are closed"
        channels, self.channels = self.channels, {}
        for entry in channels.values():
            entry.answered.set()
        self.listeners = 0
        self._core.keep(self._lane, self._number, False, False)  # noqa: FBT003 - neither kept nor asked whether it lives
        if self.connected:
            self._core.lose(self._lane, self._number, "closed by this broker", False)  # noqa: FBT003 - as above

    def on_connected(self) -> None:
        """Subscribe to all channels over a new connection."""
        self.connected, self._is_confirmed = True, False
        self._away = self._away and self._is_cluster
        self._queued.clear()
        for name, entry in self.channels.items():
            self._queue(_SUBSCRIBE, entry.slot, name)

    def on_refused(self, reason: str) -> None:
        """Let nobody wait for a node that could not be reached."""
        if not self._closed:
            self.refusal = reason
            self._give_up()

    def on_lost(self, reason: str) -> None:
        """Note that messages may be missed from now on."""
        self.connected = False
        if self._closed:
            return
        self.refusal = f"the connection to {self.name} was lost ({reason})"
        for name, entry in list(self.channels.items()):
            entry.interrupt()
            if not entry.listeners:
                self._on_idle(name, entry)
        # A Redis that accepts the connection and then refuses is away as well.
        if not self._is_confirmed:
            self._give_up()

    def on_replies(self, replies: list[Reply]) -> None:
        """Take what came over the connection."""
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
                case MovedError() if self._is_cluster:
                    self._on_moved(reply)
                case _:
                    self._is_confirmed = False
                    reason = f"it answered {str(reply)[:200]}"
                    self._core.lose(self._lane, self._number, reason, True)  # noqa: FBT003 - with a pause
                    return

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
                if self.connected:
                    names = [name for _, _, name in queued[start:end]]
                    self._core.send(self._lane, self._number, ((queued[start][0], names),))
                start = end

    def _give_up(self) -> None:
        """Let those fail that wait for a confirmation, and those that come until there is a connection.

        In a cluster they fail until there is a confirmation, for they wait for channels of other nodes too. Those that
        listened when the node went away read again now, and find out.
        """
        tell = self._is_cluster and not self._away
        self._away = True
        for entry in list(self.channels.values()):
            entry.fail()
            if tell and entry.interrupted:
                entry.notify(None)
        if self._is_cluster:
            # Another node may have its slots by now, or soon.
            self._core.read_map_soon()

    def _confirmed(self, name: bytes) -> None:
        self._is_confirmed = True
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
