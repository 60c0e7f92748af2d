"""One client's connection: requests from its frames, answers in the order of the requests.

Knows when a request may begin and when it is answered; nothing of what it means. A peer that breaks the protocol,
stalls in the middle of a frame or does not take its answers loses the connection, with one log line, and nothing else
happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import gevent.socket

from korvet.errors import ProtocolError
from korvet.logs import Log
from korvet.protocol.decoding import Buffer
from korvet.protocol.frame import SIZE_BYTES
from korvet.server import metrics
from korvet.server.budget import Budgets, OverBudgetError
from korvet.server.dispatch import Dispatcher, Exchange, FaultError, Refusal
from korvet.server.frames import Frame, FrameReader, Limits

_log = Log(__name__)

JOIN_BYTES = 16 * 1024
"""Responses up to this size are joined before they are sent: cheaper than telling the kernel of each piece."""

OVERLAPPING_MAX = 5
"""Requests of one connection under way at once: as many as an idempotent producer keeps in flight."""

PIECES_MAX = 512
"""Pieces of a response given to the kernel at once; it takes 1024 (IOV_MAX)."""


class Connection:
    """Serves one client until either side has had enough."""

    def __init__(
        self,
        socket: gevent.socket.socket,
        peer: str,
        dispatcher: Dispatcher,
        limits: Limits,
        budgets: Budgets,
    ) -> None:
        self._socket = socket
        self._peer = peer
        self._dispatcher = dispatcher
        self._limits = limits
        self._frames = FrameReader(socket, limits, budgets)
        self._begun: deque[tuple[Frame, Exchange | Refusal]] = deque()
        self._draining = False

    def serve(self) -> None:
        """Answer requests in their order until the connection ends; closes the socket."""
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
        except FaultError:
            reason = "fault"
        except TimeoutError:
            idle = self._frames.waiting
            reason = "idle" if idle else "slow"
            said = "idle" if idle else "the peer was too slow to send its request or to take its answer"
            _log.info("connection closed", peer=self._peer, reason=said)
        except OSError as error:
            reason = "lost"
            _log.debug("connection closed", peer=self._peer, reason=str(error))
        finally:
            metrics.CONNECTIONS_CLOSED.labels(reason).inc()
            self._socket.close()

    def drain(self) -> None:
        """End the connection behind the requests it serves now, at once where it serves none."""
        self._draining = True
        if self._frames.waiting:
            try:
                self._socket.shutdown(gevent.socket.SHUT_RD)
            except OSError:
                return  # the peer went first

    def _serve_one(self) -> bool:
        """Begin the next request and answer it; False where the peer has closed.

        Producers send several requests before the first is answered. While Redis works on one, the next of them may
        begin, as far as it is here already: answers keep the order, and appends are sent to Redis in it.
        """
        frame = self._frames.next()
        if frame is None:
            return False
        try:
            self._begin(frame)
            in_order = True
            while self._begun:
                following = self._following() if in_order else None
                if following is not None:
                    self._begin(following)
                else:
                    in_order = self._answer() and in_order
        except ProtocolError:
            while self._begun:  # those before the bad one are answered still
                self._answer()
            raise
        finally:
            for left, _ in self._begun:  # none, unless something went wrong
                left.close()
                metrics.REQUESTS_IN_FLIGHT.dec()
        return True

    def _following(self) -> Frame | None:
        """Return the next request where it may begin now, and is here."""
        if self._draining or len(self._begun) >= OVERLAPPING_MAX or not self._begun[-1][1].overlaps:
            return None
        return self._frames.next_at_once()

    def _begin(self, frame: Frame) -> None:
        metrics.RECEIVED_BYTES.inc(SIZE_BYTES + len(frame.data))
        try:
            exchange = self._dispatcher.begin(frame.data, self._peer, frame.hold)
        except BaseException:
            frame.close()
            raise
        self._begun.append((frame, exchange))
        metrics.REQUESTS_IN_FLIGHT.inc()

    def _answer(self) -> bool:
        """Answer the oldest; tells whether others may begin before those that have begun are answered."""
        frame, exchange = self._begun.popleft()
        try:
            response = exchange.answer()
        finally:
            metrics.REQUESTS_IN_FLIGHT.dec()
            frame.close()
        if response is not None:
            self._send(response)
        return exchange.overlaps

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
