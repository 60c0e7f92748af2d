"""Wake-ups from Redis: which channels this process listens to, on one pub/sub connection per node, opened when needed.

A fetch that waits for appends, a member that waits for its group and the registry's watcher are woken by messages on
channels: an append publishes on its partition's channel, a transition on its group's. A channel stays subscribed for a
while after its last listener, so a consumer that fetches again and again costs no SSUBSCRIBE each time.

Delivery is not guaranteed: pub/sub forgets messages that no one received. So `listen` returns only when Redis has
confirmed (later events are announced, earlier ones must be read), and after a lost connection every listener is called
with None (read again). A waiter also reads at its deadline: that read is the backstop, and there is no polling. A
connection that died without a word is found by a PING, sent only while there are listeners and nothing was heard for a
while: one small command per connection, not per channel, and none when idle.

Channels are sharded (SSUBSCRIBE), with one Redis too: in a cluster a message reaches the node that has the channel's
slot, and its replicas, and no others. A channel has the slot of the keys that it is about, and follows it to another
node. Those of a node that is away wait for it alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from korvet.clock import CLOCK, Clock
from korvet.errors import NodeAwayError, StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.replies import MovedError, Reply
from korvet.redis.slots import slot_of
from korvet.redis.subscriber import Listener, Subscriber, Subscription
from korvet.turns import in_turns

__all__ = ["Listener", "Subscriptions", "Watch"]

# A dead connection is noticed within twice this time; until then parked fetches have their deadline.
_PING_INTERVAL_MS = 10_000

_FOLLOW_S_MIN = 0.02
"""Between two looks for channels whose slots moved: for a moment two nodes may each name the other one."""


class Subscriptions:
    """The channels of one process. Listeners are called in the event loop: they must not block or raise.

    A listener may be called once more just after it was removed, for a message that was under way.
    """

    def __init__(self, redis: Redis, *, linger_ms: int, ping_interval_ms: int = _PING_INTERVAL_MS) -> None:
        """Listen over connections of their own of the client of `redis`, whose time for one bounds a confirmation."""
        self._driver = driver = redis.driver
        self._timeout_ms, self._linger_s = redis.connect_timeout_ms, linger_ms / 1000
        self._channels: dict[bytes, Subscription] = {}
        # Channels without listeners -> when to unsubscribe; the linger is the same for all, so the order is in time.
        self._idle: dict[bytes, float] = {}
        self._sweeping = False
        self._closed = False
        self._lane = driver.add_lane(
            self, commands_max=1, bytes_max=1, reply_bytes_max=1, ping_s=ping_interval_ms / 1000
        )
        self._subscribers: dict[int, Subscriber] = {}
        self._following: gevent.Greenlet[[], None] | None = None
        self._map_changed = False
        self._refused_slots: set[int] = set()
        if not driver.is_cluster:
            self._subscriber_at(0)

    def listen(self, channel: str, listener: Listener) -> bool:
        """Call `listener` with every message on `channel` until it is removed, and with None to read again.

        Returns True if the channel was live already; otherwise subscribes, and returns False when Redis has confirmed:
        what was read before may be stale. A listener listens once per channel. Raises StorageUnavailableError when
        Redis does not confirm in time; the listener is removed then.
        """
        was_live = self.live(channel)
        for error in self.listen_all(((channel, listener),)).values():
            raise error
        return was_live

    def listen_all(self, pairs: Sequence[tuple[str, Listener]]) -> dict[int, StorageUnavailableError]:
        """Do as `listen` for several channels in one round trip; returns the errors, by their places in `pairs`."""
        entries = [self._add(channel.encode(), listener) for channel, listener in pairs]
        waiting = [
            place
            for place, entry in enumerate(entries)
            if isinstance(entry, StorageUnavailableError) or not entry.live
        ]
        if not waiting:
            return {}
        try:
            deadline = time.monotonic() + self._timeout_ms / 1000
            errors = {
                place: error
                for place in waiting
                if (error := self._await_confirmation(entries[place], deadline)) is not None
            }
        except BaseException:
            for channel, listener in pairs:
                self.forget(channel, listener)
            raise
        for place in errors:
            self.forget(*pairs[place])
        return errors

    def forget(self, channel: str, listener: Listener) -> None:
        """Stop calling `listener`; the channel is unsubscribed a while after its last listener went."""
        name = channel.encode()
        entry = self._channels.get(name)
        if entry is None or listener not in entry.listeners:
            return
        del entry.listeners[listener]
        entry.subscriber.count(-1)
        if not entry.listeners:
            self._release(name, entry)

    @property
    def listeners(self) -> int:
        """How many listeners there are."""
        return sum(subscriber.listeners for subscriber in self._subscribers.values())

    def live(self, channel: str) -> bool:
        """Whether Redis has confirmed the channel on the present connection."""
        entry = self._channels.get(channel.encode())
        return entry is not None and entry.live

    def reconnect(self, reason: str) -> None:
        """Close the connections and subscribe over others; listeners are called with None."""
        for subscriber in self._subscribers.values():
            subscriber.reconnect(reason)

    def close(self) -> None:
        """End the connections and call nobody any more."""
        self._closed = True
        self._channels.clear()
        self._idle.clear()
        for subscriber in self._subscribers.values():
            subscriber.close()
        self._driver.close_lane(self._lane)
        if self._following is not None:
            self._following.kill(block=False)

    def on_connected(self, node: int, history: str) -> None:  # noqa: ARG002 - that of LaneOwner
        """Note a new connection to a node (LaneOwner)."""
        if (subscriber := self._subscribers.get(node)) is not None:
            subscriber.on_connected()

    def on_refused(self, node: int, reason: str) -> None:
        """Note that a node could not be reached (LaneOwner)."""
        if (subscriber := self._subscribers.get(node)) is not None:
            subscriber.on_refused(reason)

    def on_lost(self, node: int, reason: str) -> None:
        """Note that a connection was lost (LaneOwner)."""
        if (subscriber := self._subscribers.get(node)) is not None:
            subscriber.on_lost(reason)

    def on_replies(self, node: int, replies: list[Reply]) -> None:
        """Take what a node sent (LaneOwner)."""
        if (subscriber := self._subscribers.get(node)) is not None:
            subscriber.on_replies(replies)

    def on_map(self) -> None:
        """Take channels to the nodes that have them by now, soon (LaneOwner)."""
        self._map_changed = True
        # An error may have ended the last one.
        if self._driver.is_cluster and not self._following and not self._closed:
            self._following = gevent.spawn(self._follow)

    def _add(self, name: bytes, listener: Listener) -> Subscription | StorageUnavailableError:
        entry = self._channels.get(name)
        if entry is None:
            try:
                entry = self._added(name)
            except StorageUnavailableError as error:
                return NodeAwayError(error.message)
        self._idle.pop(name, None)
        if listener not in entry.listeners:
            entry.listeners[listener] = None
            entry.subscriber.count(1)
        return entry

    def _added(self, name: bytes) -> Subscription:
        slot = slot_of(name) if self._driver.is_cluster else 0
        subscriber = self._subscriber_at(slot)
        entry = self._channels.get(name)  # another listener may have come meanwhile
        if entry is None:
            entry = self._channels[name] = Subscription(slot, subscriber)
            subscriber.add(name, entry)
        return entry

    def _subscriber_at(self, slot: int) -> Subscriber:
        """Return that of the node that has a slot; raises StorageUnavailableError."""
        number = self._driver.number_at(slot) if self._driver.is_cluster else 0
        if self._closed and self._driver.is_cluster:
            raise StorageUnavailableError("the subscriptions on the Redis cluster are closed")
        subscriber = self._subscribers.get(number)
        if subscriber is None:
            subscriber = self._subscribers[number] = Subscriber(
                self._driver, self._lane, number, on_idle=self._release, on_moved=self._on_moved
            )
        return subscriber

    def _await_confirmation(
        self, entry: Subscription | StorageUnavailableError, deadline: float
    ) -> StorageUnavailableError | None:
        """Wait until a channel is live; returns why it is not."""
        if isinstance(entry, StorageUnavailableError):
            return entry
        answered = entry.subscriber.away or entry.answered.wait(max(deadline - time.monotonic(), 0.001))
        if entry.live:
            return None
        reason = entry.subscriber.refusal
        if not answered:
            reason = f"{entry.subscriber.name} did not confirm a subscription within {self._timeout_ms} ms"
        return NodeAwayError(reason) if self._driver.is_cluster else StorageUnavailableError(reason)

    def _release(self, name: bytes, entry: Subscription) -> None:
        """Unsubscribe from a channel without listeners, now or after the linger."""
        if entry.live:
            self._idle[name] = time.monotonic() + self._linger_s
            if not self._sweeping:
                self._sweep_in(self._linger_s)
        elif not entry.subscriber.connected:
            self._remove(name, entry)
        # Otherwise SSUBSCRIBE was sent: its confirmation calls this again. Unsubscribing before that could let the late
        # confirmation pass for that of a later SSUBSCRIBE.

    def _remove(self, name: bytes, entry: Subscription) -> None:
        self._idle.pop(name, None)
        del self._channels[name]
        entry.subscriber.remove(name)

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
            del self._idle[name]
            self._channels.pop(name).subscriber.unsubscribe(name)

    def _on_moved(self, error: MovedError) -> None:
        self._refused_slots.add(error.slot)
        self._driver.core.moved(error.slot, error.host, error.port)
        self.on_map()

    def _follow(self) -> None:
        """Take each channel whose slot moved to the node that has it now."""
        while self._map_changed:
            self._map_changed = False
            refused, self._refused_slots = self._refused_slots, set()
            for name, entry in in_turns(list(self._channels.items())):
                try:
                    subscriber = self._subscriber_at(entry.slot)
                except StorageUnavailableError:
                    # Until the map has a master for it again, which is a change of the map.
                    self._refused_slots.update({entry.slot} & refused)
                    continue
                if self._channels.get(name) is not entry:
                    continue
                if subscriber is not entry.subscriber:
                    self._move(name, entry, subscriber)
                elif entry.slot in refused and not entry.live:
                    subscriber.subscribe(name, entry)
            for number, unused in list(self._subscribers.items()):
                if not unused.channels:
                    del self._subscribers[number]
                    unused.close()
            gevent.sleep(_FOLLOW_S_MIN)

    def _move(self, name: bytes, entry: Subscription, to: Subscriber) -> None:
        if not entry.listeners:
            self._remove(name, entry)
            return
        entry.interrupt()
        entry.subscriber.remove(name)
        to.add(name, entry)


class Watch:
    """The channels that one request waits for, by their index. A context manager: leaving it stops listening.

    A fetch session keeps one over its requests: channels come and go, and what is announced meanwhile is not lost.
    """

    def __init__(
        self, subscriptions: Subscriptions, channels: Sequence[str] = (), *, clock: Clock = CLOCK
    ) -> None:
        self._subscriptions = subscriptions
        self._clock = clock
        self._event = Event()
        self._woken: set[int] = set()
        self._listeners: dict[int, tuple[str, Listener]] = {}
        # Those that are to be subscribed to, and those of which Redis has not confirmed that it was done.
        self._pending: dict[int, tuple[str, Listener]] = {}
        self._failed: dict[int, tuple[str, Listener]] = {}
        self._listening = False
        for index, channel in enumerate(in_turns(channels)):
            self.add(index, channel)

    def __enter__(self) -> Self:
        """Listen at once if all channels are live already; see `live`."""
        if all(self._subscriptions.live(channel) for channel, _ in self._pending.values()):
            self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening."""
        if self._listening:
            for channel, listener in self._listeners.values():
                self._subscriptions.forget(channel, listener)
        # They lead back to this watch, and the collector seldom runs.
        for each in (self._listeners, self._pending, self._failed):
            each.clear()

    def add(self, index: int, channel: str) -> None:
        """Take in a channel under an index that is free; until the next `listen` nothing of it is heard."""
        self._listeners[index] = self._pending[index] = (channel, partial(self._wake, index))

    def remove(self, index: int) -> None:
        """Stop listening to a channel; its index may be among those of messages once more."""
        self._pending.pop(index, None)
        self._failed.pop(index, None)
        self._subscriptions.forget(*self._listeners.pop(index))

    @property
    def live(self) -> bool:
        """Whether every message from now on wakes this watch. What was read before must be read again."""
        return not self._pending

    @property
    def hears_all(self) -> bool:
        """Whether messages of all channels wake this watch: it is live, and no channel has failed."""
        return not (self._pending or self._failed)

    def hears(self, index: int) -> bool:
        """Return whether messages of a channel wake this watch."""
        return index not in self._pending and index not in self._failed

    def listen(self) -> dict[int, StorageUnavailableError]:
        """Subscribe to what is not live; on return messages wake this watch.

        Returns the errors of those channels that are not live still; the next call tries these again. Raises
        StorageUnavailableError if there is none but these.
        """
        self._listening = True
        asked = self._failed | self._pending
        indexes = list(asked)
        found = self._subscriptions.listen_all(list(asked.values()))
        errors = {indexes[place]: error for place, error in found.items()}
        if errors and len(errors) == len(self._listeners):
            raise errors[indexes[0]]
        self._pending.clear()
        self._failed = {index: asked[index] for index in errors}
        return errors

    def wait(self, seconds: float) -> set[int]:
        """Wait for messages; returns the indexes of the channels that had one, none after `seconds`."""
        self._clock.wait(self._event, seconds)
        return self.take()

    def take(self) -> set[int]:
        """Return the indexes of the channels that had a message since this was last asked."""
        self._event.clear()
        woken, self._woken = self._woken, set()
        return woken

    def wake_all(self) -> None:
        """Wake the waiter without a message, as at the end of its worker."""
        self._event.set()

    def _wake(self, index: int, _message: bytes | None) -> None:
        self._woken.add(index)
        self._event.set()
