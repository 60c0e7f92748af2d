"""Frames from a client's socket, with limits on all that enters.

Knows sizes, time-outs and budgets; of what a frame holds only the API key, since the limit depends on it. A frame is
never larger in memory than what has arrived of it, whatever its peer has announced.
"""

from __future__ import annotations

import time

import gevent.socket
import msgspec

from korvet.config import Settings
from korvet.errors import ProtocolError
from korvet.protocol.frame import REQUEST_HEADER_MIN, SIZE_BYTES, check_frame_size, peek_api, read_size
from korvet.protocol.messages.produce import ProduceRequest
from korvet.server.budget import Budgets, Charge

RECEIVE_BYTES = 256 * 1024
"""Bytes asked of the socket at once: a typical request comes whole, and a frame grows no faster than it arrives."""

SMALL_FRAME_BYTES = 64 * 1024
"""Frames up to this size are not charged to the budget, so that those who fill it hold up no ordinary request."""

RATE_BYTES_PER_TIMEOUT = 1024 * 1024
"""A frame under way must bring this much in each connection.receive.timeout.ms, or its peer is called slow."""

AHEAD_BYTES_MAX = 1024 * 1024
"""Largest frame that is taken in while the one before it is still being served."""


class Limits(msgspec.Struct, frozen=True):
    """What one connection may do; times in seconds, sizes in bytes. `idle` None is without a limit."""

    idle: float | None
    receive: float
    produce_frame: int
    other_frame: int

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Take the limits from the settings."""
        idle_ms = settings.connections_max_idle_ms
        return cls(
            idle=None if idle_ms < 0 else idle_ms / 1000,
            receive=settings.connection_receive_timeout_ms / 1000,
            produce_frame=settings.socket_request_max_bytes,
            other_frame=min(settings.request_control_max_bytes, settings.socket_request_max_bytes),
        )


class Frame:
    """A request's bytes, without the size, and what they and their decoding take of the budgets until `close`."""

    __slots__ = ("_decoded", "_received", "data")

    def __init__(self, data: bytearray, received: Charge, decoded: Charge) -> None:
        self.data = data
        self._received = received
        self._decoded = decoded

    def hold(self, size: int) -> None:
        """Say that serving the request takes `size` bytes more, or, negative, less."""
        self._decoded.hold(size)

    def close(self) -> None:
        """Give back what the request took of the budgets: it is answered."""
        self._received.close()
        self._decoded.close()


class FrameReader:
    """Reads the frames of one connection. `waiting` says that it waits for the first byte of one."""

    def __init__(self, socket: gevent.socket.socket, limits: Limits, budgets: Budgets) -> None:
        self._socket = socket
        self._limits = limits
        self._budgets = budgets
        self._received = bytearray()
        self.waiting = False

    def next(self) -> Frame | None:
        """Wait for the next frame; None where the peer has closed between two of them.

        Raises ProtocolError (a size that cannot be, an end within a frame), OverBudgetError, TimeoutError, OSError.
        """
        size = self._read_size()
        if size is None:
            return None
        produces = peek_api(self._received, SIZE_BYTES)[0] == ProduceRequest.api.key
        received = self._budgets.received.charge(self._limits.receive)
        decoded = self._budgets.decoded.charge(self._limits.receive)
        try:
            data = self._read_frame(size, received if size > SMALL_FRAME_BYTES else None)
            if produces and not self._budgets.decoded.has(1):
                decoded.add(1)  # waits for anything to be free
            return Frame(data, received, decoded)
        except BaseException:
            received.close()
            decoded.close()
            raise

    def next_at_once(self) -> Frame | None:
        """Return the next frame if all of it is here already, up to AHEAD_BYTES_MAX; else None. Errors as `next`."""
        self._socket.settimeout(0)
        while not self._complete():
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return None
            if not data:
                return None  # `next` will see it again
            self._received += data
            if len(self._received) > AHEAD_BYTES_MAX:
                return None
        # Waiting for room here would be waiting for the requests that this connection has begun.
        budgets = self._budgets
        return self.next() if budgets.received.has(len(self._received)) and budgets.decoded.has(1) else None

    def _complete(self) -> bool:
        received = self._received
        return len(received) >= SIZE_BYTES and len(received) >= SIZE_BYTES + max(0, read_size(received))

    def _read_size(self) -> int | None:
        """Read on until a frame's size and API key are there, and check the size against the limit of that API."""
        self.waiting = not self._received
        # Of a frame whose first bytes came with the one before it the rest is due like that of any other.
        self._socket.settimeout(self._limits.idle if self.waiting else self._limits.receive)
        while len(self._received) < SIZE_BYTES + REQUEST_HEADER_MIN:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                if self._received:
                    message = f"closed after {len(self._received)} bytes of a frame"
                    raise ProtocolError(message)
                return None
            self._received += data
            if self.waiting:
                self.waiting = False
                self._socket.settimeout(self._limits.receive)
            if len(self._received) >= SIZE_BYTES:
                check_frame_size(read_size(self._received), self._limits.produce_frame)
        size = read_size(self._received)
        api_key, _ = peek_api(self._received, SIZE_BYTES)
        limit = self._limits.produce_frame if api_key == ProduceRequest.api.key else self._limits.other_frame
        check_frame_size(size, limit)
        return size

    def _read_frame(self, size: int, charge: Charge | None) -> bytearray:
        """Read the rest of a frame; it is never larger in memory than what has arrived of it."""
        frame = self._received[SIZE_BYTES : SIZE_BYTES + size]
        del self._received[: SIZE_BYTES + size]
        deadline = time.monotonic() + self._limits.receive * (1 + size / RATE_BYTES_PER_TIMEOUT)
        if charge:
            charge.add(len(frame))
        while len(frame) < size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(min(self._limits.receive, remaining))
            data = self._socket.recv(min(size - len(frame), RECEIVE_BYTES))
            if not data:
                message = f"closed after {len(frame)} bytes of a frame of {size}"
                raise ProtocolError(message)
            if charge:
                arrived = time.monotonic()
                charge.add(len(data))
                deadline += time.monotonic() - arrived  # held back by us: the peer is not slow for that
            frame += data
        return frame
