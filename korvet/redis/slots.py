"""Hash slots of Redis Cluster: tags of keys that are to have a slot, and how keys are spread over masters."""

from __future__ import annotations

import heapq
import random
import string
from binascii import crc_hqx
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import count, product

from korvet_core import slot_of

from korvet.errors import StorageUnavailableError
from korvet.redis.keys import TAG_LENGTH

__all__ = ["SLOTS", "slot_of", "slot_tags", "spread_tags", "tag_of"]

SLOTS = 16_384


@lru_cache(maxsize=SLOTS)
def tag_of(slot: int) -> str:
    """Return a hash tag of a slot: a number as text, always the same."""
    return next(text for text in map(str, count()) if crc_hqx(text.encode(), 0) % SLOTS == slot)


@cache
def slot_tags() -> Sequence[str]:
    """Return a slot tag of each slot, by its number: letters and digits; some 20 ms once in a process."""
    tags: dict[int, str] = {}
    characters = [character.encode() for character in string.digits + string.ascii_letters]
    for first in product(characters, repeat=TAG_LENGTH - 1):
        beginning = b"".join(first)
        checksum = crc_hqx(beginning, 0)
        for last in characters:
            if (slot := crc_hqx(last, checksum) % SLOTS) not in tags:
                tags[slot] = (beginning + last).decode()
        if len(tags) == SLOTS:
            break
    return [tags[slot] for slot in range(SLOTS)]


def spread_tags(masters: Sequence[int | None], taken: Sequence[str], more: int, seed: str) -> list[str]:
    """Return hash tags for `more` keys beside those with the tags `taken`, by which masters have as many as each other.

    Each goes to a master with the fewest so far; `masters` has the master of each slot. `seed` decides the first
    master, and the slots. Raises StorageUnavailableError if no slot has a master.
    """
    slots: dict[int, list[int]] = {}
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
    tags, chosen = slot_tags(), []
    for _ in range(more):
        keys, place = fewest[0]
        heapq.heapreplace(fewest, (keys + 1, place))
        chosen.append(tags[choice.choice(slots[order[place]])])
    return chosen
