"""Wake-ups from Redis: which channels this process listens to.

A member that waits for its group, a share fetch that waits for records and the registry's watcher are woken by messages
on channels: a transition publishes on its group's channel, an append on its partition's. `korvet_core.Channels` has
them, on one connection per node: it subscribes to them, and takes them to the nodes that have their slots. A channel
stays subscribed for a while after its last listener, so who listens again and again costs no SSUBSCRIBE each time.

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

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

from gevent.event import AsyncResult, Event
from gevent.hub import get_hub
from korvet_core import Channels

from korvet.clock import CLOCK, Clock
from korvet.errors import NodeAwayError, StorageUnavailableError
from korvet.redis.client import Redis
from korvet.turns import in_turns

# A dead connection is noticed within twice this time; until then parked fetches have their deadline.
_PING_INTERVAL_MS = 10_000

Listener: TypeAlias = Callable[[bytes | None], None]


class Subscriptions:
    """The channels of one process. Listeners are called in the event loop: they must not block or raise.

    A listener is itself alone: another object that equals it is another listener. It may be called once more just after
    it was removed, for a message that was under way.
    """

    def __init__(self, redis: Redis, *, linger_ms: int, ping_interval_ms: int = _PING_INTERVAL_MS) -> None:
        """Listen over connections of their own of the client of `redis`, whose time for one bounds a confirmation."""
        self._driver = redis.driver
        # By the channels of which somebody waits for the confirmation: why it does not come.
        self._answers: dict[str, AsyncResult[str | None]] = {}
        self.core: Channels = redis.driver.core.open_feed(
            self._on_news,
            linger_s=linger_ms / 1000,
            timeout_s=redis.connect_timeout_ms / 1000,
            ping_s=ping_interval_ms / 1000,
        )

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
        """Do as `listen` for several channels in one round trip; returns the errors, by their indexes in `pairs`."""
        try:
            self._driver.know_map()
        except StorageUnavailableError as error:
            return {index: NodeAwayError(error.message) for index in range(len(pairs))}
        try:
            answers = {
                index: self._answers.setdefault(channel, AsyncResult())
                for index, (channel, _) in enumerate(pairs)
                if not self.live(channel)
            }
            self.core.listen(pairs)
            refusals = {index: answer.get() for index, answer in answers.items()}
        except BaseException:
            for channel, listener in pairs:
                self.forget(channel, listener)
            raise
        error_of = NodeAwayError if self._driver.is_cluster else StorageUnavailableError
        errors = {index: error_of(refusal) for index, refusal in refusals.items() if refusal is not None}
        for index in errors:
            self.forget(*pairs[index])
        return errors

    def forget(self, channel: str, listener: Listener) -> None:
        """Stop calling `listener`; the channel is unsubscribed a while after its last listener went."""
        self.core.forget(channel, listener)

    @property
    def listeners(self) -> int:
        """How many listeners there are."""
        return self.core.listeners

    @property
    def channels(self) -> int:
        """How many channels there are, those without listeners among them that are not unsubscribed yet."""
        return self.core.count

    def live(self, channel: str) -> bool:
        """Whether Redis has confirmed the channel on the present connection."""
        return self.core.live(channel)

    def reconnect(self, reason: str) -> None:
        """Close the connections and subscribe over others; listeners are called with None."""
        self.core.reconnect(reason)

    def close(self) -> None:
        """End the connections and call nobody any more."""
        self.core.close()

    def _on_news(
        self, calls: Sequence[tuple[Listener, bytes | None]], answers: Sequence[tuple[str, str | None]]
    ) -> None:
        # By the event loop and not from here: a listener that fails must not end the reading of a connection.
        run_callback = get_hub().loop.run_callback
        for listener, payload in calls:
            run_callback(listener, payload)
        for channel, refusal in answers:
            if (answer := self._answers.pop(channel, None)) is not None:
                answer.set(refusal)


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
        # The wanted subscriptions, and the ones that Redis has not confirmed.
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
        for names in (self._listeners, self._pending, self._failed):
            names.clear()

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
        outcomes = self._subscriptions.listen_all(list(asked.values()))
        errors = {indexes[place]: error for place, error in outcomes.items()}
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
