"""One client's connection: requests from its frames, responses in the order of the requests.

The core has the socket (sockets.py), and says when there is a request. A peer that breaks the protocol, stalls in the
middle of a frame or does not read its responses loses the connection, with one log line; nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gevent import GreenletExit

from korvet.errors import KafkaError, ProtocolError, UnansweredError
from korvet.logs import Log, RateLimitedLogger
from korvet.pending import Pending
from korvet.protocol.frame import SIZE_BYTES
from korvet.protocol.wire import Buffer
from korvet.security import audit
from korvet.security.sasl import Authenticator
from korvet.security.session import ANONYMOUS, Session
from korvet.security.tls import ListenerTls, NoPrincipalError
from korvet.server.net.budget import Charge, Frame, OverBudgetError
from korvet.server.net.dispatch import Dispatcher, FaultError, ResponseFrame
from korvet.server.net.sockets import PIPELINED_MAX, Sockets
from korvet.telemetry import metrics
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.turns import give_turn

CLOSED_LINES_MAX = 100
"""Lines about connections closed for one reason, in PAUSE_SECONDS: thousands of bad peers are one event."""

LEAVING_SECONDS_MAX = 1.0
"""Time for a client to close its side of a connection that is drained; clients do as soon as they see its end."""

_log = Log(__name__)
_rate_limited_log = RateLimitedLogger(_log, burst=CLOSED_LINES_MAX)

_REASONS = {"closed": "peer closed", "malformed": "protocol error", "refused": "handshake"}
"""What the metric calls ends that have another name in the core."""

_WARNED = {"protocol error", "unanswered", "over budget", "handshake"}
_TIMED_OUT = {"idle": "idle", "slow": "the peer was too slow to send its request or to take its answer"}

_MECHANISM = "TLS"
"""What stands for the mechanism where a certificate is refused, in the metric and in the audit log."""


class ClientConnection:
    """Serves one client until either side ends the connection.

    `served_by` is the greenlet that serves it now, if any. `counted_as` are its listener, by index, and the address of
    its client, as quotas name it.
    """

    __slots__ = (
        "_begun",
        "_core",
        "_dispatcher",
        "_ending",
        "_is_closed",
        "_is_logged_in",
        "_is_over",
        "_number",
        "_on_end",
        "_order_version",
        "_reason",
        "_session",
        "_sockets",
        "_throttle_ms",
        "_throttled_by",
        "_tls",
        "_unsent",
        "counted_as",
        "served_by",
    )

    def __init__(
        self,
        fd: int,
        sockets: Sockets,
        session: Session,
        dispatcher: Dispatcher,
        on_end: Callable[[ClientConnection], object],
        *,
        tls: ListenerTls | None = None,
        counted_as: tuple[int, str] = (0, ""),
    ) -> None:
        """Hand a connected socket to the core, which closes it; `on_end` is called when it is over. Raises OSError."""
        self._sockets, self._core = sockets, sockets.core
        self._session = session
        self._dispatcher = dispatcher
        self._on_end = on_end
        self._tls = tls
        self.counted_as = counted_as
        # A list, since a deque takes 600 bytes more, and a connection has few of them at a time.
        self._begun: list[tuple[Frame, Pending[ResponseFrame]]] = []
        self._unsent: list[Charge] = []
        self._ending = self._reason = ""
        self._is_closed = self._is_over = self._is_logged_in = False
        # That of SendOrder when the oldest of them began.
        self._order_version = 0
        self._throttle_ms = 0
        self._throttled_by = ""
        self.served_by: Any = None
        sasl = session.sasl
        login = None if sasl is None else (sasl.token_bytes_max, sasl.seconds_left)
        self._number = self._core.adopt(fd, self, login, None if tls is None else tls.server)

    def serve(self) -> None:
        """Answer the requests that have arrived, in their order; if the connection is over do what is left to do."""
        reason, said = "fault", ""  # by any other error, which is raised
        sasl = self._session.sasl
        try:
            while not self._reason and (
                self._serve_some() if sasl is None or sasl.complete else self._log_in(sasl)
            ):
                give_turn()
            reason = ""
        except ProtocolError as error:
            reason = "unanswered" if isinstance(error, UnansweredError) else "protocol error"
            said = str(error)
        except OverBudgetError as error:
            reason, said = "over budget", str(error)
        except FaultError:
            pass  # it is logged already
        except GreenletExit:
            reason = ""  # by a drain, which cuts it off
            raise
        finally:
            self.served_by = None
            if reason:
                self._note_end(reason, said)
                # Answers of before are still sent.
                self._sockets.handle(self._core.end(self._number))
            if self._is_closed:
                self._finish()

    def drain(self) -> None:
        """End the connection after the requests it serves now, at once if there are none."""
        self._leave("draining")

    def cut_off(self, reason: str, said: str = "") -> None:
        """End the connection at once; no greenlet serves it any more."""
        self._note_end(reason, said)
        self._sockets.handle(self._core.close(self._number))

    def note(self, word: str, detail: object) -> None:
        """Do what follows from an event of the core; it has closed the socket after all but "open" and "written"."""
        if word == "written":
            self._release()
        elif word == "open":
            self._open(detail if isinstance(detail, bytes) else None)
        else:
            self._is_closed = True
            said = self._said(word, detail)
            if word == "refused":
                self._note_refusal(said)
            # Once the connection is to end, a peer that goes does what it is to do.
            is_left = self._ending and word in {"ended", "closed", "lost"}
            self._note_end(self._ending if is_left else _REASONS.get(word, word), said)
            if self.served_by is None:
                self._sockets.serve(self)  # what ends with a session may wait for Redis

    def _open(self, certificate: bytes | None) -> None:
        """Take the client as whom its certificate shows it: the TLS handshake is done."""
        try:
            principal = ANONYMOUS if self._tls is None else self._tls.principal(certificate)
        except NoPrincipalError as error:
            said = f"TLS: {error}"
            self._note_refusal(said)
            self.cut_off("handshake", said)
            return
        if principal is not ANONYMOUS:
            self._session.principal = principal

    def _said(self, word: str, detail: object) -> str:
        """Return what the log is to say about an end that came by itself."""
        if word == "handshake" and detail is None:
            return f"not TLS: the listener {self._session.listener} expects it of its clients"
        if word in {"handshake", "refused"}:
            return f"TLS handshake failed: {detail}"
        return _TIMED_OUT.get(word) or str(detail or "")

    def _note_refusal(self, said: str) -> None:
        metrics.AUTHENTICATIONS.labels(self._session.listener, _MECHANISM, "refused").inc()
        audit.refused(self._session, "authentication refused", mechanism=_MECHANISM, reason=said)

    def _note_end(self, reason: str, said: str) -> None:
        """Note why the connection ends; the first reason counts."""
        if self._reason:
            return
        self._reason = reason
        peer = self._session.peer
        if reason in _WARNED:
            _rate_limited_log.warning(reason, "connection closed", peer=peer, reason=said)
        elif reason in _TIMED_OUT:
            _rate_limited_log.info(reason, "connection closed", peer=peer, reason=said)
        elif reason == "lost":
            _log.debug("connection closed", peer=peer, reason=said)

    def _finish(self) -> None:
        """Do once what is to be done when the connection is over, and nobody serves it any more."""
        if self._is_over:
            return
        self._is_over = True
        self._release()
        metrics.CONNECTIONS_CLOSED.labels(self._reason).inc()
        try:
            self._session.end()
        finally:
            self._on_end(self)

    def _leave(self, reason: str) -> None:
        """Take no further request, and end when all is answered and the client has closed too."""
        self._ending = self._ending or reason
        # Unless it is announced, the peer sees the end no sooner: some clients drop an answer that the end comes with.
        events = self._core.leave(self._number, LEAVING_SECONDS_MAX, self._ending == "draining")
        self._sockets.handle(events)

    def _log_in(self, sasl: Authenticator) -> bool:
        """Serve one request, or token, of a client that has to log in; False if there is none."""
        frame = self._next_frame()
        if frame is None:
            return False
        if not sasl.raw:
            self._begin(frame)
            self._answer()
            return True
        try:
            token, _ = sasl.authenticate(bytes(frame.data))
            answer: list[Buffer] = [len(token).to_bytes(SIZE_BYTES, "big"), token]
        except KafkaError:
            answer = []  # there is no form for an error
        finally:
            frame.close()
        self._send([(frame.number, answer)])
        return True

    def _note_login(self, sasl: Authenticator) -> None:
        """Let the core know how far the login has come: once this is answered it judges the next frame by that."""
        self._is_logged_in = sasl.complete
        if sasl.failed:
            self._leave("authentication failed")
        else:
            size_max = None if sasl.complete else sasl.token_bytes_max
            self._core.set_login(self._number, size_max, sasl.raw, sasl.seconds_left)

    def _next_frame(self) -> Frame | None:
        """Take the next frame, if it has arrived; one to decode waits until anything is free for that."""
        taken = self._core.next_frame(self._number)
        if taken is None:
            return None
        number, data, produces, arrived, came_after = taken
        budgets = self._sockets.budgets
        frame = Frame(number, data, arrived, came_after, budgets, self._is_client_gone)
        if produces and budgets.decoded.free < 1:
            try:
                frame.decoded.add(1)
            except BaseException:
                frame.close()
                raise
        return frame

    def _is_client_gone(self) -> bool:
        return self._core.is_gone(self._number)

    def _serve_some(self) -> bool:
        """Begin the next request and answer it; False if there is none.

        Producers send several requests before the first is answered. While Redis works on one, the next of them may
        begin if it has arrived: responses keep the order, and appends are sent to Redis in that order.
        """
        frame = self._next_frame()
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
            self._begun.clear()
        if self._throttle_ms:
            self._mute()
        return True

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

    def _following(self) -> Frame | None:
        """Return the next request, if it may begin now and has arrived."""
        if not self._begun[-1][1].in_order or len(self._begun) >= PIPELINED_MAX:
            return None
        # Any of them may have been refused for a reason that has ended since, which others have learned.
        if self._ending or self._throttle_ms or self._order_version != self._dispatcher.order.version:
            return None
        # Waiting for room here would be waiting for the requests that this connection has begun.
        return self._next_frame() if self._sockets.budgets.decoded.free >= 1 else None

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

    def _mute(self) -> None:
        """Leave the peer's next request unread until the throttle is over, or the connection is to end."""
        # A peer that leaves meanwhile is noticed afterwards: it is kept no longer than one that says nothing.
        idle_s = self._sockets.idle_s
        seconds = self._throttle_ms / 1000
        if idle_s:
            seconds = min(seconds, idle_s)
        metrics.THROTTLE_SECONDS.labels(self._throttled_by).inc(seconds)
        self._core.mute(self._number, seconds)
        self._throttle_ms = 0

    def _answer(self) -> bool:
        """Answer the oldest request, and those after it that are ready: one write, and one wake-up of the client.

        Returns whether others may begin before those that have begun are answered.
        """
        begun, in_order = self._begun, True
        answers: list[tuple[int, Sequence[Buffer]]] = []
        try:
            while begun and (not answers or begun[0][1].ready):
                frame, pending = begun.pop(0)
                try:
                    answers.append((frame.number, self._result(frame, pending)))
                except BaseException:
                    frame.close()
                    raise
                self._unsent.append(frame.fetched)
                in_order = in_order and pending.in_order
        finally:
            self._send(answers)
        return in_order or not begun

    def _result(self, frame: Frame, pending: Pending[ResponseFrame]) -> list[Buffer]:
        try:
            chunks, throttle_ms, throttled_by = pending.result()
        finally:
            REQUEST_METRICS.ended()
            frame.decoded.close()
        if throttle_ms:
            metrics.THROTTLED_REQUESTS.labels(throttled_by).inc()
            if throttle_ms > self._throttle_ms:
                self._throttle_ms, self._throttled_by = throttle_ms, throttled_by
        return chunks

    def _send(self, answers: Sequence[tuple[int, Sequence[Buffer]]]) -> None:
        sasl = self._session.sasl
        if sasl is not None and not (sasl.complete and self._is_logged_in):
            self._note_login(sasl)
        is_written, events = self._core.answer(self._number, answers)
        if is_written:
            self._release()
        for _, chunks in answers:
            if chunks and not self._is_closed:
                REQUEST_METRICS.sent(sum(map(len, chunks)))
        if events:
            self._sockets.handle(events)

    def _release(self) -> None:
        """Release what answers took that are with the kernel, or with nobody any more."""
        for charge in self._unsent:
            charge.close()
        self._unsent.clear()
