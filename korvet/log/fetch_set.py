"""Partitions that are fetched together: once, or again and again in a session."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import compress

from korvet.log.collect import FetchPartitionSpec
from korvet.log.store import LogStore
from korvet.log.types import LogPosition
from korvet.redis.pubsub import Watch

READ_SECONDS = 10.0
"""How old the bounds of a quiet log may be: those that wait at its end have no use for its start."""


class FetchSet:
    """What to fetch of each partition, by its place, and the watch on them.

    `order` sorts places, None: by their number. `ends` are the high watermarks of the logs that were read up to their
    last stable offsets. `read_at` is when all were last read, `searched_at` when all were, or
    the quiet ones were searched (time.monotonic). From `search_at` on the next fetch searches them on its arrival.
    """

    def __init__(self, watch: Watch, order: Callable[[int], int] | None = None) -> None:
        self.specs: dict[int, FetchPartitionSpec] = {}
        self.watch = watch
        self.order = order
        self.ends: dict[int, int] = {}
        self.read_at = self.searched_at = -math.inf
        self.search_at = math.inf

    def search(self, log: LogStore, loud: Collection[int], now: float) -> Collection[int] | None:
        """Return `loud` and of all others, which were quiet, those that have grown though nothing was announced.

        None: all have to be read again. Raises StorageUnavailableError.
        """
        self.searched_at, self.search_at = now, math.inf
        if now - self.read_at >= READ_SECONDS:
            return None
        quiet = list(self.specs.keys() - loud)
        ends = [LogPosition(self.specs[place].partition, self._end(place)) for place in quiet]
        return {*loud, *compress(quiet, log.have_grown(ends))}

    def _end(self, place: int) -> int:
        """Return where the log of a quiet partition ended: a committed read may have stopped before."""
        spec = self.specs[place]
        return self.ends.get(place, spec.offset) if spec.committed else spec.offset
