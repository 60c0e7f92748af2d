"""Reading ahead: while a consumer is given one piece of a log, the next is on its way from Redis.

Consumers that catch up ask for the pieces of a log one after the other, each when they have the one before: without
this Redis waits while the consumer works, and the consumer while Redis does. What was read ahead in an earlier fetch is
served only with the bounds of the log as they are now: its start may have moved, the topic may be another one.

What the next fetch will ask for is decoded, and its answer prepared, as soon as it is here: the consumer still works on
what it got before then. Of a log that several consumers read at a time, what one of them got is held for those that
follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gevent

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.log.store import BegunReads, LogStore
from korvet.log.types import Bounds, Fetched, Read

HELD_BYTES_MAX = 32 * 1024 * 1024
"""What one worker reads ahead at most, by what the pieces are expected to weigh; prepared answers are as much again."""

HELD_SECONDS_MAX = 2.0
"""How long a piece is held for a consumer that does not ask for it."""

_Outcome = Fetched | KafkaError

Prepare = Callable[[Fetched], object]
"""Makes of what was found what `Fetched.prepared` says."""


_Key = tuple[str, int, bool]
"""Where a piece begins: its stream and offset, and whether it is of a committed read, which finds less."""


class _Piece(NamedTuple):
    """One read under way, or done; times by the clock of ReadAhead, `history` by LogStore.history_of.

    `found` is what another consumer got of it, which is never nothing: with that it is not `begun` any more.
    """

    read: Read
    size_bytes: int
    begun_at: float
    history: str
    begun: BegunReads | None
    preparing: gevent.Greenlet[..., _Outcome | None] | None
    found: Fetched | None = None


class _Front(NamedTuple):
    """What was begun last of a log, and whether it is for another fetch than the one that began it."""

    key: _Key
    for_next: bool


class ReadAhead:
    """What one worker has read ahead."""

    def __init__(self, log: LogStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._pieces: dict[_Key, _Piece] = {}
        self._held_bytes = 0
        # Logs that were read ahead lately, and those of which a second consumer read ahead no further than the first.
        self._fronts: dict[str, _Front] = {}
        self._shared: set[str] = set()
        self._expiring: gevent.Greenlet[..., None] | None = None

    def now(self) -> float:
        """Return the time, as `read` wants to know it."""
        return self._clock()

    def begin(
        self, read: Read, size_bytes: int, prepare: Prepare | None = None, *, for_next: bool = True
    ) -> None:
        """Read ahead what will be asked for next, of about `size_bytes`, unless it is held already or too much is.

        With `prepare`, which must not wait, that is done with it when it is here. `for_next`: by another fetch.
        """
        stream, key = read.partition.stream, _key_of(read)
        front = self._fronts.get(stream)
        if front is not None and front.for_next and front.key[1] >= read.offset:
            self._shared.add(stream)
        else:
            self._fronts[stream] = _Front(key, for_next)
            if front is not None and front.key != key and stream not in self._shared:
                self._drop(front.key)  # its consumer has gone on without it
        if self._held_at(read) is not None:
            return
        self._drop(key)
        if not self._has_room(size_bytes):
            return
        history = self._log.history_of(stream)
        begun = self._log.begin_read([read])
        if begun is None:
            return
        preparing = gevent.spawn(self._prepared, stream, history, begun, prepare) if prepare else None
        self._hold(_Piece(read, size_bytes, self._clock(), history, begun, preparing))
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
                continue
            bounds_now = next(bounds) if piece.begun_at < since else None
            held = self._held(piece)
            if held is None:
                [outcome] = self._log.read([reads[place]])
            else:
                outcome = held if bounds_now is None else _as_of(bounds_now, held)
            outcomes.append(outcome)
        return outcomes

    def _held(self, piece: _Piece) -> Fetched | None:
        """Return what was read ahead; None if that failed, or Redis has another history since."""
        if not self._is_of_now(piece):
            return None
        if piece.found is not None:
            return piece.found
        preparing = piece.preparing
        assert piece.begun is not None  # noqa: S101 - for the type checker
        outcome = self._finished(piece.begun) if preparing is None else preparing.get()
        if not isinstance(outcome, Fetched) or not self._is_of_now(piece):
            return None
        # Nothing is no news to others: they would find it again and again, whatever has come since.
        is_wanted = outcome.holds_any and piece.read.partition.stream in self._shared
        if is_wanted and self._has_room(piece.size_bytes):
            # What was prepared is changed by who takes it.
            found = outcome._replace(prepared=None)
            self._hold(piece._replace(begun=None, preparing=None, found=found))
        return outcome

    def _finished(self, begun: BegunReads) -> _Outcome | None:
        try:
            [outcome] = self._log.finish_read(begun)
        except StorageUnavailableError:
            return None
        return outcome

    def _prepared(self, stream: str, history: str, begun: BegunReads, prepare: Prepare) -> _Outcome | None:
        if history != self._log.history_of(stream):
            return None
        outcome = self._finished(begun)
        return outcome._replace(prepared=prepare(outcome)) if isinstance(outcome, Fetched) else outcome

    def _is_of_now(self, piece: _Piece) -> bool:
        # After a failover other records may lie at its offsets.
        return piece.history == self._log.history_of(piece.read.partition.stream)

    def _taken(self, read: Read) -> _Piece | None:
        """Return the piece that is held, if it is what is asked for; one that nobody got before is held no longer."""
        # A read up to some offset wants less than what is held.
        piece = self._held_at(read) if read.end is None else None
        if piece is not None and piece.found is None:
            self._drop(_key_of(read))
        return piece

    def _held_at(self, read: Read) -> _Piece | None:
        piece = self._pieces.get(_key_of(read))
        of_it = piece is not None and piece.read.partition == read.partition and self._is_of_now(piece)
        return piece if of_it else None

    def _hold(self, piece: _Piece) -> None:
        key = _key_of(piece.read)
        self._drop(key)
        self._pieces[key] = piece
        self._held_bytes += piece.size_bytes
        if self._expiring is None:
            self._expiring = gevent.spawn_later(HELD_SECONDS_MAX, self._expire)

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether so much more may be held; what others got makes room, the oldest first."""
        if self._held_bytes + size_bytes <= HELD_BYTES_MAX:
            return True
        for key in [key for key, piece in self._pieces.items() if piece.found is not None]:
            self._drop(key)
            if self._held_bytes + size_bytes <= HELD_BYTES_MAX:
                return True
        return False

    def _drop(self, key: _Key) -> None:
        piece = self._pieces.pop(key, None)
        if piece is not None:
            self._held_bytes -= piece.size_bytes

    def _expire(self) -> None:
        """Drop what was not asked for in time, as long as anything is held."""
        while self._pieces:
            before = self._clock() - HELD_SECONDS_MAX
            for key in [key for key, piece in self._pieces.items() if piece.begun_at <= before]:
                self._drop(key)
            self._fronts.clear()
            self._shared.clear()
            if self._pieces:
                gevent.sleep(HELD_SECONDS_MAX)
        self._fronts.clear()
        self._shared.clear()
        self._expiring = None


def _key_of(read: Read) -> _Key:
    return read.partition.stream, read.offset, read.committed


def _as_of(bounds: Bounds | KafkaError, outcome: Fetched) -> _Outcome:
    """Return what was read earlier, with the bounds of the log as they are now."""
    if isinstance(bounds, KafkaError):
        return bounds
    outcome = outcome._replace(
        log_start=bounds.log_start,
        first_offset=bounds.first_offset,
        high_watermark=bounds.high_watermark,
        remote=bounds.remote,
        epochs=bounds.epochs,
        open_offset=bounds.open_offset,
    )
    if outcome.more or (outcome.holds_any and outcome.next_offset >= outcome.visible_end):
        return outcome
    return outcome._replace(more=True)
