"""One client's connection: requests from its frames, responses in the order of the requests.

The core has the socket (sockets.py), and says when there is a request. A peer that breaks the protocol, stalls in the
middle of a frame or does not read its responses loses the connection, with one log line; nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gevent import GreenletExit

from korvet.errors import KafkaError, ProtocolError
from korvet.logs import Log, RateLimitedLogger
from korvet.protocol.frame import SIZE_BYTES
from korvet.protocol.wire import Buffer
from korvet.security import audit
from korvet.security.sasl import Authenticator
from korvet.security.session import ANONYMOUS, Session
from korvet.security.tls import ListenerTls, NoPrincipalError
from korvet.server.net.budget import Charge, Frame
from korvet.server.net.dispatch import Dispatcher, FaultError
from korvet.server.net.sockets import Sockets
from korvet.server.net.throttle import THROTTLED_BY
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

_ENDED_BY_PRODUCE = {"unanswered": "unanswered", "failed": "protocol error"}
"""What the metric calls it if the core ends a connection for what became of a Produce request."""

_WARNED = {"protocol error", "unanswered", "over budget", "handshake"}
_TIMED_OUT = {"idle": "idle", "slow": "the peer was too slow to send its request or to take its answer"}

_MECHANISM = "TLS"
"""What stands for the mechanism where a certificate is refused, in the metric and in the audit log."""


class ClientConnection:
    """Serves one client until either side ends the connection.

    `session` is that of its client. `served_by` is the greenlet that serves it now, if any.
    """

    __slots__ = (
        "_core",
        "_dispatcher",
        "_ending",
        "_is_closed",
        "_is_logged_in",
        "_is_over",
        "_on_end",
        "_reason",
        "_sockets",
        "_tls",
        "_unsent",
        "number",
        "sasl",
        "served_by",
        "session",
    )

    def __init__(
        self,
        fd: int,
        sockets: Sockets,
        session: Session,
        dispatcher: Dispatcher,
        on_end: Callable[[ClientConnection], object],
        *,
        sasl: Authenticator | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        """Hand a connected socket to the core, which closes it; `on_end` is called when it is over. Raises OSError."""
        self._sockets, self._core = sockets, sockets.core
        self.session = session
        self._dispatcher = dispatcher
        self._on_end = on_end
        self.sasl, self._tls = sasl, tls
        self._unsent: list[Charge] = []
        self._ending = self._reason = ""
        self._is_closed = self._is_over = self._is_logged_in = False
        self.served_by: Any = None
        login = None if sasl is None else (sasl.token_bytes_max, sasl.seconds_left)
        self.number = self._core.adopt(fd, self, login, None if tls is None else tls.server)
        """By which the core knows it."""
        if sasl is None and tls is None:
            self._may_produce()

    def serve(self) -> None:
        """Answer the requests that have arrived, in their order; if the connection is over do what is left to do."""
        reason, said = "fault", ""  # by any other error, which is raised
        sasl = self.sasl
        try:
            while not self._reason and (frame := self._next_frame()) is not None:
                if sasl is not None and sasl.raw and not sasl.complete:
                    self._take_token(sasl, frame)
                else:
                    self._serve_frame(frame)
                give_turn()
            reason = ""
        except ProtocolError as error:
            reason, said = "protocol error", str(error)
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
                self._sockets.handle(self._core.end(self.number))
            if self._is_closed:
                self._finish()

    def drain(self) -> None:
        """End the connection after the requests it serves now, at once if there are none."""
        self._leave("draining")

    def cut_off(self, reason: str, said: str = "") -> None:
        """End the connection at once; no greenlet serves it any more."""
        self._note_end(reason, said)
        self._sockets.handle(self._core.close(self.number))

    def note(self, word: str, detail: object) -> None:
        """Do what follows from an event of the core; it has closed the socket after all but "open" and "written"."""
        if word == "written":
            self._release()
        elif word == "open":
            self._open(detail if isinstance(detail, bytes) else None)
        elif word == "throttled":
            reason, ms = (int(item) for item in str(detail).split())
            metrics.THROTTLED_REQUESTS.labels(THROTTLED_BY[reason]).inc()
            metrics.THROTTLE_SECONDS.labels(THROTTLED_BY[reason]).inc(ms / 1000)
        elif word in _ENDED_BY_PRODUCE:
            self._note_end(_ENDED_BY_PRODUCE[word], str(detail))
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
            self.session.principal = principal
        if self.sasl is None:
            self._may_produce()

    def _may_produce(self, ends_s: float | None = None) -> None:
        self._sockets.put_session(self.number, ends_s)

    def _said(self, word: str, detail: object) -> str:
        """Return what the log is to say about an end that came by itself."""
        if word == "handshake" and detail is None:
            return f"not TLS: the listener {self.session.listener} expects it of its clients"
        if word in {"handshake", "refused"}:
            return f"TLS handshake failed: {detail}"
        return _TIMED_OUT.get(word) or str(detail or "")

    def _note_refusal(self, said: str) -> None:
        metrics.AUTHENTICATIONS.labels(self.session.listener, _MECHANISM, "refused").inc()
        audit.refused(self.session, "authentication refused", mechanism=_MECHANISM, reason=said)

    def _note_end(self, reason: str, said: str) -> None:
        """Note why the connection ends; the first reason counts."""
        if self._reason:
            return
        self._reason = reason
        peer = self.session.peer
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
            self.session.end()
        finally:
            self._on_end(self)

    def _leave(self, reason: str) -> None:
        """Take no further request, and end when all is answered and the client has closed too."""
        self._ending = self._ending or reason
        # Unless it is announced, the peer sees the end no sooner: some clients drop an answer that the end comes with.
        events = self._core.leave(self.number, LEAVING_SECONDS_MAX, self._ending == "draining")
        self._sockets.handle(events)

    def _take_token(self, sasl: Authenticator, frame: Frame) -> None:
        try:
            token, _ = sasl.authenticate(bytes(frame.data))
            answer: list[Buffer] = [len(token).to_bytes(SIZE_BYTES, "big"), token]
        except KafkaError:
            answer = []  # there is no form for an error
        finally:
            frame.close()
        self._send(frame.number, answer)

    def _note_login(self, sasl: Authenticator) -> None:
        """Let the core know how far the login has come: once this is answered it judges the next frame by that."""
        self._is_logged_in = sasl.complete
        if sasl.complete:
            self._may_produce(sasl.expires_at)
        if sasl.failed:
            self._leave("authentication failed")
        else:
            size_max = None if sasl.complete else sasl.token_bytes_max
            self._core.set_login(self.number, size_max, sasl.raw, sasl.seconds_left)

    def _next_frame(self) -> Frame | None:
        """Return the next request or token; None if there is none for Python: Produce is the core's."""
        taken = self._core.next_frame(self.number)
        if taken is None:
            return None
        number, data, arrived, came_after = taken
        return Frame(number, data, arrived, came_after, self._sockets.path)

    def is_gone(self) -> bool:
        return self._core.is_gone(self.number)

    def _serve_frame(self, frame: Frame) -> None:
        REQUEST_METRICS.begun(SIZE_BYTES + len(frame.data))
        try:
            chunks, throttle_ms, throttled_by = self._dispatcher.serve(frame, self)
        except BaseException:
            frame.close()
            raise
        finally:
            REQUEST_METRICS.ended()
        if throttle_ms:
            self._mute(throttle_ms, throttled_by)
        self._unsent.append(frame.fetched)
        self._send(frame.number, chunks)

    def _mute(self, throttle_ms: int, reason: str) -> None:
        """Leave the peer's next request unread until the throttle is over, or the connection is to end.

        That is before the answer: with it the core begins what has arrived of Produce.
        """
        metrics.THROTTLED_REQUESTS.labels(reason).inc()
        metrics.THROTTLE_SECONDS.labels(reason).inc(throttle_ms / 1000)
        self._core.mute(self.number, throttle_ms / 1000)

    def _send(self, number: int, chunks: Sequence[Buffer]) -> None:
        sasl = self.sasl
        if sasl is not None and not (sasl.complete and self._is_logged_in):
            self._note_login(sasl)
        is_written, events = self._core.answer(self.number, [(number, chunks)])
        if is_written:
            self._release()
        if chunks and not self._is_closed:
            REQUEST_METRICS.sent(sum(map(len, chunks)))
        if events:
            self._sockets.handle(events)

    def _release(self) -> None:
        """Release what answers took that are with the kernel, or with nobody any more."""
        for charge in self._unsent:
            charge.close()
        self._unsent.clear()
