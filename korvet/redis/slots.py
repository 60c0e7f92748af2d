"""Hash slots of Redis Cluster: of which a key is, and which master has it ("Redis cluster specification").

A process has one `SlotMap`, shared by all its clients. It is read again when a node says that a slot moved, and after a
request has failed; nothing asks for it while all is well.
"""

from __future__ import annotations

import heapq
import random
import string
import time
from binascii import crc_hqx
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import count, product
from typing import TypeAlias, cast

import gevent

from korvet.errors import StorageUnavailableError
from korvet.redis.connection import open_connection
from korvet.redis.keys import TAG_LENGTH
from korvet.redis.replies import MovedError, Reply
from korvet.redis.url import RedisAddress, RedisTarget

SLOTS = 16_384

REFRESH_S_MIN = 0.1
"""How often failing requests have the map read again."""

_MOVED_SECONDS = 1.0
"""How long a MOVED is believed against a map: that of a node that has not heard of it yet is old."""

_HANGS_SECONDS = 0.25
"""After this time without an answer another node is asked for the map as well."""

_Asked: TypeAlias = list[RedisAddress | None] | StorageUnavailableError


@lru_cache(maxsize=20_000)
def slot_of(key: str | bytes) -> int:
    """Return the slot of a key: of its hash tag, which is what stands in its first pair of braces, if it has one."""
    name = key.encode() if isinstance(key, str) else key
    opened = name.find(b"{")
    if opened >= 0:
        closed = name.find(b"}", opened + 1)
        if closed > opened + 1:
            name = name[opened + 1 : closed]
    # The specification's CRC16 is XMODEM's, as that of binhex was.
    return crc_hqx(name, 0) % SLOTS


@lru_cache(maxsize=SLOTS)
def tag_of(slot: int) -> str:
    """Return a hash tag of a slot: a number as text, always the same."""
    return next(text for text in map(str, count()) if crc_hqx(text.encode(), 0) % SLOTS == slot)


@cache
def slot_tags() -> Sequence[str]:
    """Return a slot tag of each slot, by its number: letters and digits; some 20 ms once in a process."""
    found: dict[int, str] = {}
    characters = [each.encode() for each in string.digits + string.ascii_letters]
    for first in product(characters, repeat=TAG_LENGTH - 1):
        beginning = b"".join(first)
        checksum = crc_hqx(beginning, 0)
        for last in characters:
            if (slot := crc_hqx(last, checksum) % SLOTS) not in found:
                found[slot] = (beginning + last).decode()
        if len(found) == SLOTS:
            break
    return [found[slot] for slot in range(SLOTS)]


def spread_tags(
    masters: Sequence[RedisAddress | None], taken: Sequence[str], more: int, seed: str
) -> list[str]:
    """Return hash tags for `more` keys beside those with the tags `taken`, by which masters have as many as each other.

    Each goes to one of the masters that have the fewest so far; `masters` has that of each slot. `seed` decides which
    of them is first, and the slots. Raises StorageUnavailableError if no slot has a master.
    """
    slots: dict[RedisAddress, list[int]] = {}
    for slot, master in enumerate(masters):
        if master is not None:
            slots.setdefault(master, []).append(slot)
    if not slots:
        raise StorageUnavailableError("no slot of the Redis cluster has a master")
    choice = random.Random(seed)  # noqa: S311 - no secret
    counts = Counter(masters[slot_of(f"{{{tag}}}")] for tag in taken)
    order = choice.sample(list(slots), len(slots))
    fewest = [(counts[master], place) for place, master in enumerate(order)]
    heapq.heapify(fewest)
    tags, found = slot_tags(), []
    for _ in range(more):
        keys, place = fewest[0]
        heapq.heapreplace(fewest, (keys + 1, place))
        found.append(tags[choice.choice(slots[order[place]])])
    return found


def bounds_of(masters: Sequence[RedisAddress | None]) -> dict[RedisAddress, tuple[int, int]]:
    """Return the lowest and the highest slot of each master; `masters` has the master of each slot."""
    lowest: dict[RedisAddress, int] = {}
    highest: dict[RedisAddress, int] = {}
    for slot, address in enumerate(masters):
        if address is not None:
            lowest.setdefault(address, slot)
            highest[address] = slot
    return {address: (slot, highest[address]) for address, slot in lowest.items()}


class SlotMap:
    """Which master has which slot, as far as is known."""

    def __init__(self, target: RedisTarget, timeout_ms: int) -> None:
        """`target` names nodes of the cluster; `timeout_ms` bounds each step of asking one of them."""
        self.version = 0
        """Changes with the map."""
        self._target = target
        self._timeout_ms = timeout_ms
        self._masters: list[RedisAddress | None] = [None] * SLOTS
        self._reading: gevent.Greenlet[[], StorageUnavailableError | None] | None = None
        self._read_at = -REFRESH_S_MIN
        self._next = 0
        # Where nodes said lately that slots are, and when (time.monotonic).
        self._moved: dict[int, tuple[RedisAddress, float]] = {}
        self._followers: list[Callable[[], object]] = []

    def follow(self, changed: Callable[[], object]) -> None:
        """Call `changed` after every change of the map; it must not wait or raise."""
        self._followers.append(changed)

    def master_of(self, slot: int) -> RedisAddress:
        """Return the master of a slot; raises StorageUnavailableError if there is none."""
        if not self.version:
            self.read()
        address = self._masters[slot]
        if address is None:
            self.read_soon()
            raise StorageUnavailableError(f"no master of the Redis cluster has slot {slot}")
        return address

    def masters(self) -> dict[RedisAddress, tuple[int, int]]:
        """Return the masters that have slots, each with its lowest and its highest; raises StorageUnavailableError."""
        if not self.version:
            self.read()
        return self.known_masters()

    def known_masters(self) -> dict[RedisAddress, tuple[int, int]]:
        """Return those that are known, as `masters` does."""
        return bounds_of(self._masters)

    def spread_tags(self, taken: Sequence[str], more: int, seed: str) -> list[str]:
        """Return what `spread_tags` does by the map as it is now; raises StorageUnavailableError."""
        self.read()
        return spread_tags(self._masters, taken, more, seed)

    def moved(self, error: MovedError) -> None:
        """Note where a node said that a slot is now, and read the rest of the map soon."""
        before = self._masters[error.slot]
        if error.host == "?":
            # Only the map has a name for it.
            self.read_soon()
            return
        now = self._target.at(error.host or (before.host if before else ""), error.port)
        self._moved[error.slot] = now, time.monotonic()
        if now != before:
            self._masters[error.slot] = now
            self._change()
        self.read_soon()

    def pause(self, seconds: float) -> None:
        """Wait."""
        gevent.sleep(seconds)

    def read_soon(self) -> None:
        """Read the map in the background, unless that was done just now."""
        if self._reading is None and time.monotonic() - self._read_at >= REFRESH_S_MIN:
            self._begin()

    def read(self) -> None:
        """Read the map; raises StorageUnavailableError if no node gives it."""
        reading = self._reading or self._begin()
        reading.join()
        if isinstance(reading.value, StorageUnavailableError):
            raise StorageUnavailableError(reading.value.message)

    def _begin(self) -> gevent.Greenlet[[], StorageUnavailableError | None]:
        self._reading = gevent.spawn(self._read)
        return self._reading

    def _read(self) -> StorageUnavailableError | None:
        """Ask one node after the other, and the next one without waiting long for one that hangs; the first answers."""
        waiting: list[gevent.Greenlet[..., _Asked]] = []
        failure: StorageUnavailableError | None = None
        try:
            left = iter(self._candidates())
            while (address := next(left, None)) is not None or waiting:
                if address is not None:
                    waiting.append(gevent.spawn(self._ask, address))
                for asked in gevent.wait(waiting, _HANGS_SECONDS if address is not None else None, 1):
                    if isinstance(asked.value, list):
                        self._take(asked.value)
                        return None
                    failure = asked.value
                    waiting.remove(asked)
            return failure
        finally:
            gevent.killall(waiting, block=False)
            self._reading = None
            self._read_at = time.monotonic()

    def _candidates(self) -> list[RedisAddress]:
        """Return the nodes to ask for the map, in this order."""
        known = list(dict.fromkeys([*filter(None, self._masters), *self._target.addresses]))
        # Another one first each time: one whose map is old must not be believed every time.
        self._next += 1
        begin = self._next % len(known)
        return [*known[begin:], *known[:begin]]

    def _ask(self, address: RedisAddress) -> _Asked:
        try:
            connected, reply = open_connection(address, self._timeout_ms, ("CLUSTER", "SLOTS"))
            connected.close()
            return parsed_slots(self._target, address, reply)
        except StorageUnavailableError as error:
            return error

    def _take(self, found: list[RedisAddress | None]) -> None:
        since = time.monotonic() - _MOVED_SECONDS
        self._moved = {slot: moved for slot, moved in self._moved.items() if moved[1] > since}
        contradicted = {slot: to for slot, (to, _) in self._moved.items() if found[slot] != to}
        for slot, to in contradicted.items():
            found[slot] = to
        if contradicted:
            self._read_later()
        if found != self._masters or not self.version:
            self._masters = found
            self._change()

    def _read_later(self) -> None:
        gevent.spawn_later(_MOVED_SECONDS, self.read_soon)

    def _change(self) -> None:
        self.version += 1
        for changed in self._followers:
            changed()


def parsed_slots(target: RedisTarget, asked: RedisAddress, reply: Reply) -> list[RedisAddress | None]:
    """Return the master of each slot by the answer to CLUSTER SLOTS; raises StorageUnavailableError."""
    masters: list[RedisAddress | None] = [None] * SLOTS
    try:
        # An answer of another form fails in here.
        for start, end, (host, port, _, *more), *_ in cast(
            "list[tuple[int, int, tuple[bytes | None, int, bytes, list[bytes]]]]", reply
        ):
            # If a node is to be called by its hostname, and was given none, its other names stand last.
            name = host if host != b"?" else dict(zip(more[0][::2], more[0][1::2], strict=True)).get(b"ip")
            # A node that does not know its own name leaves it to the client.
            master = target.at(name.decode() if name else asked.host, port)
            masters[start : end + 1] = [master] * (end + 1 - start)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise StorageUnavailableError(f"Redis at {asked} gives no slots of a cluster: {reply!r}") from error
    if not reply:
        # Such is a node that left the cluster: it knows no other one.
        raise StorageUnavailableError(f"Redis at {asked} is of no cluster whose slots it knows")
    return masters
