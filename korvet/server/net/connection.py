"""One client's connection: requests from its frames, responses in the order of the requests.

A peer that breaks the protocol, stalls in the middle of a frame or does not read its responses loses the connection,
with one log line; nothing else happens.
"""

from __future__ import annotations

import math

from gevent.event import Event

from korvet.errors import KafkaError, ProtocolError, UnansweredError
from korvet.logs import Log, RateLimitedLogger
from korvet.pending import Pending
from korvet.protocol.frame import SIZE_BYTES
from korvet.protocol.wire import Buffer
from korvet.security import audit
from korvet.security.sasl import Authenticator
from korvet.security.session import ANONYMOUS, Session
from korvet.server.net.budget import Budgets, OverBudgetError
from korvet.server.net.dispatch import Dispatcher, FaultError, ResponseFrame
from korvet.server.net.framing import ConnectionLimits, Frame, FrameReader
from korvet.server.net.socket import Channel
from korvet.server.net.tls import CertificateRefusedError, HandshakeError
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REQUEST_METRICS

CLOSED_LINES_MAX = 100
"""Lines about connections closed for one reason, in PAUSE_SECONDS: thousands of bad peers are one event."""

_log = Log(__name__)
_rate_limited_log = RateLimitedLogger(_log, burst=CLOSED_LINES_MAX)

_REASONS = {
    UnansweredError: "unanswered",
    HandshakeError: "handshake",
    CertificateRefusedError: "handshake",
}

_MECHANISM = "TLS"
"""What stands for the mechanism where a certificate is refused, in the metric and in the audit log."""

LEAVING_SECONDS_MAX = 1.0
"""Time for a client to close its side of a connection that is drained; clients do as soon as they see its end."""

PIPELINED_MAX = 5
"""Requests of one connection under way at once: as many as an idempotent producer has in flight."""


class ClientConnection:
    """Serves one client until either side ends the connection."""

    def __init__(
        self,
        channel: Channel,
        session: Session,
        dispatcher: Dispatcher,
        limits: ConnectionLimits,
        budgets: Budgets,
    ) -> None:
        self._channel = channel
        self._session = session
        self._dispatcher = dispatcher
        self._limits = limits
        self._frames = FrameReader(channel, limits, budgets)
        # A list, since a deque takes 600 bytes more, and a connection has few of them at a time.
        self._begun: list[tuple[Frame, Pending[ResponseFrame]]] = []
        self._open = self._draining = False
        # That of SendOrder when the oldest of them began.
        self._order_version = 0
        self._throttle_ms = 0
        self._throttled_by = ""
        self._throttled: Event | None = None

    def serve(self) -> None:
        """Answer requests in their order until the connection ends; closes the channel."""
        reason = "peer closed"
        try:
            self._shake_hands()
            reason = self._serve_all()
        except ProtocolError as error:
            reason = _REASONS.get(type(error), "protocol error")
            _rate_limited_log.warning(reason, "connection closed", peer=self._session.peer, reason=str(error))
        except OverBudgetError as error:
            reason = "over budget"
            _rate_limited_log.warning(reason, "connection closed", peer=self._session.peer, reason=str(error))
        except FaultError:
            reason = "fault"
        except TimeoutError:
            idle = self._frames.waiting
            reason = "idle" if idle else "slow"
            said = "idle" if idle else "the peer was too slow to send its request or to take its answer"
            _rate_limited_log.info(reason, "connection closed", peer=self._session.peer, reason=said)
        except OSError as error:
            reason = "lost"
            _log.debug("connection closed", peer=self._session.peer, reason=str(error))
        finally:
            metrics.CONNECTIONS_CLOSED.labels(reason).inc()
            try:
                self._session.end()
            finally:
                if reason in {"draining", "authentication failed"}:
                    self._channel.close_after_peer(LEAVING_SECONDS_MAX, announced=reason == "draining")
                else:
                    self._channel.close()

    def drain(self) -> None:
        """End the connection after the requests it serves now, at once if there are none."""
        self._draining = True
        if self._throttled is not None:
            self._throttled.set()
        if self._frames.waiting or not self._open:
            self._channel.end_receiving()

    def _serve_all(self) -> str:
        """Serve requests while there are any, and return why no more are served."""
        while not self._draining and self._serve_next():
            if self._throttle_ms:
                self._wait_throttled()
        if self._draining:
            return "draining"
        failed = self._session.sasl is not None and self._session.sasl.failed
        return "authentication failed" if failed else "peer closed"

    def _serve_next(self) -> bool:
        sasl = self._session.sasl
        return self._serve_one() if sasl is None or sasl.complete else self._log_in(sasl)

    def _log_in(self, sasl: Authenticator) -> bool:
        """Serve one request, or token, of a client that has to log in; False if it has closed, or failed."""
        if sasl.failed:
            return False
        with sasl.time_limit():
            frame = self._frames.next(sasl.token_bytes_max, raw=sasl.raw)
        if frame is None:
            return False
        if not sasl.raw:
            self._begin(frame)
            self._answer()
            return True
        try:
            answer, _ = sasl.authenticate(bytes(frame.data))
        except KafkaError:
            return False  # there is no form for an error
        finally:
            frame.close()
        self._send([len(answer).to_bytes(SIZE_BYTES, "big"), answer])
        return True

    def _shake_hands(self) -> None:
        try:
            principal = self._channel.handshake(self._limits.receive)
        except CertificateRefusedError as error:
            metrics.AUTHENTICATIONS.labels(self._session.listener, _MECHANISM, "refused").inc()
            audit.refused(self._session, "authentication refused", mechanism=_MECHANISM, reason=str(error))
            raise
        if principal is not ANONYMOUS:
            self._session.principal = principal
        self._open = True

    def _serve_one(self) -> bool:
        """Begin the next request and answer it; False if the peer has closed.

        Producers send several requests before the first is answered. While Redis works on one, the next of them may
        begin if it has arrived: responses keep the order, and appends are sent to Redis in that order.
        """
        frame = self._frames.next()
        if frame is None:
            return False
        try:
            self._begin(frame)
            in_order = True
            while self._begun:
                if not (in_order and self._begin_following()):
                    in_order = self._answer() and in_order
        finally:
            # Left only after an error: no later request is answered.
            for left, _ in self._begun:
                left.close()
                REQUEST_METRICS.ended()
        return True

    def _following(self) -> Frame | None:
        """Return the next request, if it may begin now and has arrived."""
        if self._draining or self._throttle_ms or not self._frames.may_follow:
            return None
        if len(self._begun) >= PIPELINED_MAX or not self._begun[-1][1].in_order:
            return None
        # Any of them may have been refused for a reason that has ended since, which others have learned.
        if self._order_version != self._dispatcher.order.version:
            return None
        return self._frames.next_at_once()

    def _begin(self, frame: Frame) -> None:
        if self._begun:
            self._session.order_version = self._order_version
        else:
            self._session.order_version = None
            self._order_version = self._dispatcher.order.version
        try:
            pending = self._dispatcher.begin(frame, self._session)
        except BaseException:
            frame.close()
            raise
        self._begun.append((frame, pending))
        REQUEST_METRICS.begun(SIZE_BYTES + len(frame.data))

    def _begin_following(self) -> bool:
        """Begin the next request, if it may begin now and has arrived."""
        try:
            frame = self._following()
            if frame is not None:
                self._begin(frame)
        except ProtocolError:
            while self._begun:  # those before the bad one are still answered
                self._answer()
            raise
        return frame is not None

    def _wait_throttled(self) -> None:
        """Leave the peer's next request unread until the throttle is over, or the connection is to end."""
        # A peer that leaves meanwhile is noticed afterwards: it is kept no longer than one that says nothing.
        seconds = min(self._throttle_ms / 1000, self._limits.idle or math.inf)
        metrics.THROTTLE_SECONDS.labels(self._throttled_by).inc(seconds)
        self._throttled = Event()
        if not self._draining:
            self._throttled.wait(seconds)
        self._throttled, self._throttle_ms = None, 0

    def _answer(self) -> bool:
        """Answer the oldest request, and those after it that are ready: one write, and one wake-up of the client.

        Returns whether others may begin before those that have begun are answered.
        """
        out: list[Buffer] = []
        answered: list[tuple[Frame, Pending[ResponseFrame]]] = []
        try:
            while True:
                answered.append(self._begun.pop(0))
                self._answer_one(out, *answered[-1])
                if not self._begun or not self._begun[0][1].ready:
                    break
            self._send(out)
        except (ProtocolError, FaultError):
            self._send(out)
            raise
        finally:
            for frame, _ in answered:
                frame.fetched.close()
        return not self._begun or all(pending.in_order for _, pending in answered)

    def _answer_one(self, out: list[Buffer], frame: Frame, pending: Pending[ResponseFrame]) -> None:
        try:
            chunks, throttle_ms, throttled_by = pending.result()
        finally:
            REQUEST_METRICS.ended()
            frame.end_serving()
        out += chunks
        if throttle_ms:
            metrics.THROTTLED_REQUESTS.labels(throttled_by).inc()
            if throttle_ms > self._throttle_ms:
                self._throttle_ms, self._throttled_by = throttle_ms, throttled_by

    def _send(self, out: list[Buffer]) -> None:
        if out:
            REQUEST_METRICS.sent(self._channel.send(out, self._limits.receive))
