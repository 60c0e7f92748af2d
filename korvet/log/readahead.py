"""Reading ahead: while a consumer is given one piece of a log, the next is on its way from Redis.

Consumers that catch up ask for the pieces of a log one after the other, each when they have the one before: without
this Redis waits while the consumer works, and the consumer while Redis does. What was read ahead in an earlier fetch is
served only with the bounds of the log as they are now: its start may have moved, the topic may be another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import gevent
import msgspec

from korvet.errors import KafkaError
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Fetched, Read

HELD_BYTES_MAX = 32 * 1024 * 1024
"""What one worker reads ahead at most, by what the pieces are expected to weigh."""

HELD_SECONDS_MAX = 2.0
"""How long a piece is held for a consumer that does not ask for it."""

_Outcome = Fetched | KafkaError


class _Piece(msgspec.Struct, frozen=True, eq=False):
    """One read under way, or done; times by the clock of ReadAhead, `history` by LogStore.history_of."""

    read: Read
    size_bytes: int
    begun_at: float
    history: str
    greenlet: gevent.Greenlet[..., _Outcome]


class ReadAhead:
    """What one worker has read ahead, a piece for a partition."""

    def __init__(self, log: LogStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._pieces: dict[str, _Piece] = {}
        self._held_bytes = 0
        self._expiring: gevent.Greenlet[..., None] | None = None

    def now(self) -> float:
        """Return the time, as `read` wants to know it."""
        return self._clock()

    def begin(self, read: Read, size_bytes: int) -> None:
        """Read ahead what the next fetch will ask for, of about `size_bytes`, unless too much is held."""
        stream = read.partition.stream
        self._drop(stream)
        if self._held_bytes + size_bytes > HELD_BYTES_MAX:
            return
        greenlet = gevent.spawn(self._fetch, read)
        self._pieces[stream] = _Piece(read, size_bytes, self._clock(), self._log.history_of(stream), greenlet)
        self._held_bytes += size_bytes
        if self._expiring is None:
            self._expiring = gevent.spawn_later(HELD_SECONDS_MAX, self._expire)
        gevent.sleep(0)  # so that it is on its way before the caller goes on

    def read(self, reads: Sequence[Read], since: float) -> list[_Outcome]:
        """Read as `LogStore.read` does; what was read ahead is taken if it is what is asked for.

        `since` is when the fetch began: what was begun later has the bounds of now. Raises StorageUnavailableError.
        """
        pieces = {place: piece for place, read in enumerate(reads) if (piece := self._taken(read))}
        fresh = [read for place, read in enumerate(reads) if place not in pieces]
        others = iter(self._log.read(fresh) if fresh else ())
        old = [piece.read.partition for piece in pieces.values() if piece.begun_at < since]
        bounds = iter(self._log.bounds(old) if old else ())
        outcomes: list[_Outcome] = []
        for place in range(len(reads)):
            piece = pieces.get(place)
            if piece is None:
                outcomes.append(next(others))
            elif piece.begun_at < since:
                outcomes.append(_as_of(next(bounds), piece.greenlet.get()))
            else:
                outcomes.append(piece.greenlet.get())
        for place, piece in pieces.items():
            if piece.history != self._log.history_of(piece.read.partition.stream):
                # Another one has answered since.
                [outcomes[place]] = self._log.read([piece.read])
        return outcomes

    def _fetch(self, read: Read) -> _Outcome:
        """Return errors as values: the result may never be asked for."""
        try:
            [outcome] = self._log.read([read])
        except KafkaError as error:
            return error
        return outcome

    def _taken(self, read: Read) -> _Piece | None:
        """Return the piece that was read ahead, if it is what is asked for; it is held no longer."""
        stream = read.partition.stream
        piece = self._pieces.get(stream)
        if piece is None or piece.read.partition != read.partition or piece.read.offset != read.offset:
            return None
        self._drop(stream)
        failed = piece.greenlet.dead and isinstance(piece.greenlet.value, KafkaError)
        # After a failover other records may lie at its offsets.
        return None if failed or piece.history != self._log.history_of(stream) else piece

    def _drop(self, stream: str) -> None:
        piece = self._pieces.pop(stream, None)
        if piece is not None:
            self._held_bytes -= piece.size_bytes

    def _expire(self) -> None:
        """Drop what was not asked for in time, as long as anything is held."""
        while self._pieces:
            before = self._clock() - HELD_SECONDS_MAX
            for stream in [stream for stream, piece in self._pieces.items() if piece.begun_at <= before]:
                self._drop(stream)
            if self._pieces:
                gevent.sleep(HELD_SECONDS_MAX)
        self._expiring = None


def _as_of(bounds: Bounds | KafkaError, outcome: _Outcome) -> _Outcome:
    """Return what was read earlier, with the bounds of the log as they are now."""
    if isinstance(bounds, KafkaError):
        return bounds
    if isinstance(outcome, KafkaError):
        return outcome
    end = bounds.high_watermark
    found = outcome.records or outcome.batches
    more = outcome.more or not found or outcome.next_offset < end
    return outcome._replace(
        log_start=bounds.log_start,
        first_offset=bounds.first_offset,
        high_watermark=end,
        more=more,
        remote=bounds.remote,
        epochs=bounds.epochs,
    )
