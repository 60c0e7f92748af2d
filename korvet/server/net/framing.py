"""Frames from a client's socket, with limits on all that enters.

Of a frame's content only the API key is read here, since the limit of its size depends on that. A frame takes no more
memory than what has arrived of it, however much its peer has announced.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from korvet_core import announced_frame

from korvet.config.settings import Settings
from korvet.errors import ProtocolError
from korvet.protocol.frame import SIZE_BYTES
from korvet.server.net.budget import Budgets, Charge
from korvet.server.net.socket import RECEIVED_BYTES, Channel

SMALL_FRAME_BYTES = 64 * 1024
"""Frames up to this size are not charged to the budget, so that a full budget delays no ordinary request."""

RATE_BYTES_PER_TIMEOUT = 1024 * 1024
"""A frame under way must bring this much in each connection.receive.timeout.ms, or its peer is too slow."""

AHEAD_BYTES_MAX = 1024 * 1024
"""Largest frame that is taken in while the one before it is still being served."""


class ConnectionLimits(NamedTuple):
    """The limits of one connection; times in seconds, sizes in bytes. `idle` None: no limit."""

    idle: float | None
    receive: float
    produce_frame: int
    other_frame: int

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Take the limits from the settings."""
        idle_ms = settings.connections_max_idle_ms
        return cls(
            idle=None if idle_ms < 0 else idle_ms / 1000,
            receive=settings.connection_receive_timeout_ms / 1000,
            produce_frame=settings.socket_request_max_bytes,
            other_frame=min(settings.request_control_max_bytes, settings.socket_request_max_bytes),
        )


class Frame:
    """A request's bytes, without the size, and what they and their decoding take of the budgets until `close`.

    `arrived` is when the last of them was received, `came_after` when the socket was last found empty before the first
    (time.monotonic): they may have lain there since. `fetched` is charged with the records of its response.
    """

    __slots__ = ("_channel", "_decoded", "_received", "arrived", "came_after", "data", "fetched")

    def __init__(
        self,
        data: bytearray | memoryview,
        received: Charge | None,
        decoded: Charge,
        fetched: Charge,
        times: tuple[float, float],
        channel: Channel,
    ) -> None:
        self.data = data
        self.arrived, self.came_after = times
        self.fetched = fetched
        self._channel = channel
        self._received = received
        self._decoded = decoded

    def reserve_memory(self, size: int) -> None:
        """Take `size` bytes that serving the request needs beyond the frame; negative: no longer needs."""
        self._decoded.reserve(size)

    def is_client_gone(self) -> bool:
        """Return whether the client has closed the connection; one that only sends no more looks the same."""
        return self._channel.is_peer_gone()

    def end_serving(self) -> None:
        """Release what the request took of the budgets: it has a response."""
        if self._received is not None:
            self._received.close()
        self._decoded.close()

    def close(self) -> None:
        """Release what request and response took: it is sent, or there will be none."""
        self.end_serving()
        self.fetched.close()


class FrameReader:
    """Reads the frames of one connection. `waiting`: it waits for the first byte of a frame.

    What has arrived and belongs to no frame yet is `_received` from `_at` on. Several frames may arrive in one piece;
    each is then a view of it. Only a frame that arrives in several pieces is copied together. `_ahead`: the peer has
    sent a request before the one before it was answered; only then is it worth looking for another.
    """

    def __init__(self, channel: Channel, limits: ConnectionLimits, budgets: Budgets) -> None:
        self._channel = channel
        self._limits = limits
        self._budgets = budgets
        self._received: bytes | bytearray = b""
        self._at = 0
        self._ahead = False
        self._arrived = self._came_after = 0.0
        self._emptied = time.monotonic()
        self.waiting = False

    def next(self, size_max: int | None = None, *, raw: bool = False) -> Frame | None:
        """Wait for the next frame; None if the peer has closed between two of them.

        `size_max` replaces the limits of the connection, for a client that has not logged in. A `raw` frame holds no
        request, and no header.
        Raises ProtocolError (a size that cannot be, an end within a frame), OverBudgetError, TimeoutError, OSError.
        """
        limits = self._limits
        maxima = (limits.other_frame, limits.produce_frame) if size_max is None else (size_max, size_max)
        announced = self._announced(maxima[0], None if raw else maxima[1])
        if announced is None:
            return None
        size, produces = announced
        came_after = self._came_after
        budgets, seconds = self._budgets, limits.receive
        received = None
        if size > SMALL_FRAME_BYTES:
            received = Charge(budgets.received if size_max is None else budgets.logins, seconds)
        decoded = Charge(budgets.decoded, seconds)
        try:
            data = self._read_frame(size, received)
            times = self._arrived, came_after
            if produces and budgets.decoded.free < 1:
                decoded.add(1)  # waits for anything to be free
            return Frame(data, received, decoded, Charge(budgets.fetched, seconds), times, self._channel)
        except BaseException:
            if received is not None:
                received.close()
            decoded.close()
            raise

    @property
    def may_follow(self) -> bool:
        """Whether it is worth asking for `next_at_once`."""
        return self._ahead or self._at < len(self._received)

    def next_at_once(self) -> Frame | None:
        """Return the next frame if all of it is here already, up to AHEAD_BYTES_MAX; else None. Errors as `next`."""
        while not self._complete():
            if not self._ahead or self._here > AHEAD_BYTES_MAX:
                return None
            data = self._channel.receive_at_once(RECEIVED_BYTES)
            if not data:
                return None  # nothing yet; or the end, which `next` sees again
            self._take_in(data)
        # Waiting for room here would be waiting for the requests that this connection has begun.
        budgets = self._budgets
        return self.next() if budgets.received.free >= self._here and budgets.decoded.free >= 1 else None

    @property
    def _here(self) -> int:
        return len(self._received) - self._at

    def _complete(self) -> bool:
        limits = self._limits
        announced = announced_frame(self._received, self._at, limits.other_frame, limits.produce_frame)
        return announced is not None and self._here >= SIZE_BYTES + announced[0]

    def _note_arrival(self, size: int, size_max: int) -> None:
        """Note when `size` bytes came, of as many as were asked for."""
        self._arrived = now = time.monotonic()
        waited = self._channel.waited
        self._came_after = now if waited else self._emptied
        if waited or size < size_max:
            self._emptied = now

    def _take_in(self, data: bytes) -> None:
        self._note_arrival(len(data), RECEIVED_BYTES)
        if self._at == len(self._received):
            self._received = data
        elif isinstance(self._received, bytearray):
            del self._received[: self._at]
            self._received += data
        else:
            self._received = bytearray(memoryview(self._received)[self._at :]) + data
        self._at = 0

    def _announced(self, other_max: int, produce_max: int | None) -> tuple[int, bool] | None:
        """Read on until a frame's size is known and allowed; returns as `announced_frame` does, None at the end."""
        # If the first bytes of a frame came with the one before it, the rest is due like that of any other frame.
        self.waiting = not self._here
        while (announced := announced_frame(self._received, self._at, other_max, produce_max)) is None:
            data = self._channel.receive(
                RECEIVED_BYTES, self._limits.idle if self.waiting else self._limits.receive
            )
            if not data:
                if self._here:
                    raise ProtocolError(f"closed after {self._here} bytes of a frame")
                return None
            self._take_in(data)
            self._ahead = not self._channel.waited
            self.waiting = False
        return announced

    def _read_frame(self, size: int, charge: Charge | None) -> bytearray | memoryview:
        """Return a frame, or read the rest of it; it is never larger in memory than what has arrived of it."""
        start = self._at + SIZE_BYTES
        self._at = min(start + size, len(self._received))
        here = memoryview(self._received)[start : self._at]
        if charge:
            charge.add(len(here))
        if len(here) == size and isinstance(self._received, bytes):
            return here
        frame = bytearray(here)
        here.release()
        deadline = time.monotonic() + self._limits.receive * (1 + size / RATE_BYTES_PER_TIMEOUT)
        while len(frame) < size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            piece_max = min(size - len(frame), RECEIVED_BYTES)
            data = self._channel.receive(piece_max, min(self._limits.receive, remaining))
            if not data:
                raise ProtocolError(f"closed after {len(frame)} bytes of a frame of {size}")
            self._note_arrival(len(data), piece_max)
            if charge:
                charge.add(len(data))
                # The wait for the budget does not make the peer slow.
                deadline += time.monotonic() - self._arrived
            frame += data
        return frame
