"""The latest offset of each key, for so many keys as a number of bytes holds.

Knows keys as digests of 16 bytes: that two of a billion keys have the same one is a matter of 10^-20, and Kafka's
cleaner relies on it too. Open addressing in three flat arrays, since a dict takes eight times the memory.
"""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b
from itertools import count

SLOT_BYTES = 24
"""Two words of a digest and an offset."""

_FILLED_MAX = 0.75  # up to here a key that is not in the map is found so in four steps on average
_DIGEST_BYTES = 16
_SLOTS_MIN = 64
_words = struct.Struct("<QQ").unpack


class KeyMap:
    """Holds up to `keys_max` keys, or as many as fit `bytes_max` bytes where these are fewer."""

    __slots__ = ("_ends", "_firsts", "_keys_max", "_seconds", "_slots", "keys")

    def __init__(self, bytes_max: int, keys_max: int) -> None:
        # A prime number of slots: whatever the step, it comes to every one of them.
        self._slots = _prime(max(_SLOTS_MIN, int(keys_max / _FILLED_MAX) + 1), 1)
        if self._slots * SLOT_BYTES > bytes_max:
            self._slots = _prime(max(_SLOTS_MIN, bytes_max // SLOT_BYTES), -1)
        self._keys_max = int(self._slots * _FILLED_MAX)
        empty = bytes(8 * self._slots)
        self._firsts, self._seconds, self._ends = array("Q", empty), array("Q", empty), array("Q", empty)
        self.keys = 0

    @property
    def size_bytes(self) -> int:
        """The memory that the map takes, however many keys are in it."""
        return self._slots * SLOT_BYTES

    def put(self, key: bytes, offset: int) -> bool:
        """Remember `offset` as the latest of `key`; returns False, and does nothing, where no other key fits."""
        first, second = _words(blake2b(key, digest_size=_DIGEST_BYTES).digest())
        at = self._find(first, second)
        if not self._ends[at]:
            if self.keys >= self._keys_max:
                return False
            self.keys += 1
            self._firsts[at], self._seconds[at] = first, second
        self._ends[at] = offset + 1
        return True

    def latest(self, key: bytes) -> int:
        """Return the offset that was put last for `key`, -1 where none was."""
        first, second = _words(blake2b(key, digest_size=_DIGEST_BYTES).digest())
        return self._ends[self._find(first, second)] - 1

    def _find(self, first: int, second: int) -> int:
        """Return the slot of a digest, or the empty one where it belongs."""
        slots, ends = self._slots, self._ends
        at, step = first % slots, second % (slots - 1) + 1
        while ends[at] and not (self._firsts[at] == first and self._seconds[at] == second):
            at += step
            if at >= slots:
                at -= slots
        return at


def _prime(begin: int, step: int) -> int:
    """Return the first prime number from `begin` on, upwards or downwards; there is one."""
    return next(n for n in count(begin, step) if all(n % by for by in range(2, int(n**0.5) + 1)))
