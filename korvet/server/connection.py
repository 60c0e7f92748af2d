"""One client's connection: bytes to frames, answers in the order of the requests, limits on all that enters.

Knows sockets, time-outs and budgets; nothing of what a request means. A peer that breaks the protocol, stalls in the
middle of a frame or does not take its answers loses the connection, with one log line, and nothing else happens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

import gevent.socket
import msgspec

from korvet.config import Settings
from korvet.errors import ProtocolError
from korvet.logs import Log
from korvet.protocol.decoding import Buffer
from korvet.protocol.frame import REQUEST_HEADER_MIN, SIZE_BYTES, check_frame_size, peek_api, read_size
from korvet.protocol.messages.produce import ProduceRequest
from korvet.server import metrics
from korvet.server.budget import ByteBudget, Charge, OverBudgetError
from korvet.server.dispatch import Dispatcher

_log = Log(__name__)

RECEIVE_BYTES = 256 * 1024
"""Bytes asked of the socket at once: a typical request comes whole, and a frame grows no faster than it arrives."""

SMALL_FRAME_BYTES = 64 * 1024
"""Frames up to this size are not charged to the budget, so that those who fill it hold up no ordinary request."""

RATE_BYTES_PER_TIMEOUT = 1024 * 1024
"""A frame under way must bring this much in each connection.receive.timeout.ms, or its peer is called slow."""

JOIN_BYTES = 16 * 1024
"""Responses up to this size are joined before they are sent: cheaper than telling the kernel of each piece."""

PIECES_MAX = 512
"""Pieces of a response given to the kernel at once; it takes 1024 (IOV_MAX)."""


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


class Connection:
    """Serves one client until either side has had enough."""

    def __init__(
        self,
        socket: gevent.socket.socket,
        peer: str,
        dispatcher: Dispatcher,
        limits: Limits,
        budget: ByteBudget,
    ) -> None:
        self._socket = socket
        self._peer = peer
        self._dispatcher = dispatcher
        self._limits = limits
        self._budget = budget
        self._received = bytearray()
        self._waiting = False
        self._draining = False

    def serve(self) -> None:
        """Answer requests, one after the other, until the connection ends; closes the socket."""
        reason = "peer closed"
        try:
            while not self._draining and self._serve_one():
                pass
            if self._draining:
                reason = "draining"
        except ProtocolError as error:
            reason = "protocol error"
            _log.warning("connection closed", peer=self._peer, reason=str(error))
        except OverBudgetError as error:
            reason = "over budget"
            _log.warning("connection closed", peer=self._peer, reason=str(error))
        except TimeoutError:
            reason = "idle" if self._waiting else "slow"
            said = (
                "idle" if self._waiting else "the peer was too slow to send its request or to take its answer"
            )
            _log.info("connection closed", peer=self._peer, reason=said)
        except OSError as error:
            reason = "lost"
            _log.debug("connection closed", peer=self._peer, reason=str(error))
        finally:
            metrics.CONNECTIONS_CLOSED.labels(reason).inc()
            self._socket.close()

    def drain(self) -> None:
        """End the connection behind the request it serves now, at once where it serves none."""
        self._draining = True
        if self._waiting:
            try:
                self._socket.shutdown(gevent.socket.SHUT_RD)
            except OSError:
                return  # the peer went first

    def _serve_one(self) -> bool:
        """Read one request and answer it; False where the peer has closed between two of them."""
        size = self._read_size()
        if size is None:
            return False
        with self._budget.charge(self._limits.receive) as charge:
            frame = self._read_frame(size, charge if size > SMALL_FRAME_BYTES else None)
            metrics.RECEIVED_BYTES.inc(SIZE_BYTES + size)
            with metrics.REQUESTS_IN_FLIGHT.track_inprogress():
                response = self._dispatcher.answer(frame, self._peer)
        if response is not None:
            self._send(response)
        return True

    def _read_size(self) -> int | None:
        """Read on until a frame's size and API key are there, and check the size against the limit of that API."""
        self._waiting = not self._received
        # Of a frame whose first bytes came with the one before it the rest is due like that of any other.
        self._socket.settimeout(self._limits.idle if self._waiting else self._limits.receive)
        while len(self._received) < SIZE_BYTES + REQUEST_HEADER_MIN:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                if self._received and not self._draining:
                    message = f"closed after {len(self._received)} bytes of a frame"
                    raise ProtocolError(message)
                return None
            self._received += data
            if self._waiting:
                self._waiting = False
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

    def _send(self, chunks: Sequence[Buffer]) -> None:
        """Send a response: a small one joined, a large one as it lies in memory, without a copy.

        The time-out is for each piece that the kernel takes, so a large response may take its time.
        """
        self._socket.settimeout(self._limits.receive)
        size = sum(map(len, chunks))
        if size <= JOIN_BYTES:
            self._socket.sendall(b"".join(chunks))
        else:
            self._send_pieces(deque(memoryview(chunk) for chunk in chunks))
        metrics.SENT_BYTES.inc(size)

    def _send_pieces(self, left: deque[memoryview]) -> None:
        while left:
            sent = self._socket.sendmsg(list(islice(left, PIECES_MAX)))
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = left[0][sent:]
