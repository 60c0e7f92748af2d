"""HTTP of the ops port: one request per connection, read whole and answered by a function.

Anyone may reach the port, so everything is bounded: the size of head and body, the time to read them and to send the
answer, and the number of connections.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from korvet.logs import Log

_log = Log(__name__)

HEAD_BYTES_MAX = 8 * 1024
BODY_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 64

_SECONDS_MAX = 5.0
"""Time limit for receiving a request, and for sending its answer."""

_HEAD_ENDS = (b"\r\n\r\n", b"\n\n")
_PIECE_BYTES = 8 * 1024
_LENGTH_DIGITS_MAX = 10

_ONCE = ("Host", "Origin", "Sec-Fetch-Site", "Authorization", "Content-Type", "Content-Length")
"""Headers that decide something: with two of them a proxy may have acted on the other one."""


class Request(NamedTuple):
    """One request of `peer`, an address; `target` is path and query as they came, names of `headers` in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    peer: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Answer(NamedTuple):
    """One response; HEAD is answered by the headers of GET."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def plain(status: HTTPStatus, message: str, *headers: tuple[str, str]) -> Answer:
    """Return an answer of one line of text."""
    return Answer(status, "text/plain; charset=utf-8", f"{status.phrase}: {message}\n".encode(), headers)


class HttpServer(ThreadingHTTPServer):
    """Serves a listening socket that the supervisor bound, with a thread for each of a few connections."""

    daemon_threads = True
    # Each call accepts a pending connection; the process itself waits for one.
    timeout = 0

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[Request], Answer],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`answer` is called in the thread of the connection, for GET, HEAD (as GET), POST and DELETE.

        `tls` returns what encrypts the next connection.
        """
        super().__init__(listener.getsockname()[:2], _RequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.answer = answer
        self._tls = tls
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.waiting: dict[socket.socket, None] = {}
        """Connections that wait for their peers to send a request, or to take its answer; the longest first."""

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if it is encrypted, its handshake comes with what is read first, in its own thread."""
        accepted, peer = super().get_request()
        if self._tls is None:
            return accepted, peer
        try:
            return self._tls().wrap_socket(accepted, server_side=True, do_handshake_on_connect=False), peer
        except BaseException:
            accepted.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's types
        """Accept a connection; if there are too many, in place of the one that has waited for its peer for longest.

        So peers that are slow, or say nothing, do not keep probes away. If none waits the new one is closed.
        """
        if not self._room.acquire(blocking=False) and not self._close_waiting():
            self.shutdown_request(request)
            return
        self.waiting[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread was started that would release it: the system is out of memory or threads.
            self.waiting.pop(request, None)
            self._room.release()
            raise

    def _close_waiting(self) -> bool:
        """End the connection that has waited for longest; returns whether there is room in its place."""
        for oldest in list(self.waiting):
            # Unless it is served meanwhile.
            if self.waiting.pop(oldest, oldest) is None:
                break
        else:
            return False
        # Its thread finds that the peer has closed, and ends.
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown: it drops the encryption first, and its thread would go on in plain text.
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)
        return self._room.acquire(timeout=_SECONDS_MAX)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Serve one connection in a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.pop(request, None)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """Ignore a peer that went away; log all else, which is a fault of Korvet."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("cannot answer a request on the ops port", peer=client_address[0])


class _RequestHandler(BaseHTTPRequestHandler):
    """One request: its head is read here, whole and bounded, before the base class parses it."""

    server: HttpServer
    server_version = "korvet"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s: %(explain)s\n"

    def setup(self) -> None:
        super().setup()
        self._deadline = time.monotonic() + _SECONDS_MAX
        head, self._body = self._read_head()
        self.connection.settimeout(_SECONDS_MAX)
        self.rfile = io.BufferedReader(io.BytesIO(head))

    def _read_head(self) -> tuple[bytes, bytes]:
        """Return the request up to its empty line, and what came after; if too long or slow it is cut, and refused."""
        self.too_long = False
        received = b""
        while True:
            ends = [at + len(end) for end in _HEAD_ENDS if (at := received.find(end)) >= 0]
            if ends and min(ends) <= HEAD_BYTES_MAX:
                return received[: min(ends)], received[min(ends) :]
            if len(received) >= HEAD_BYTES_MAX:
                self.too_long = True
                return received[:HEAD_BYTES_MAX], b""
            piece = self._receive()
            if not piece:
                return b"", b""
            received += piece
            if received.startswith(b"\0"):
                # A Kafka client at the wrong port: it learns at once that nobody answers.
                return b"", b""

    def _receive(self) -> bytes:
        """Return what comes next; nothing if the peer has closed or the time is up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return b""
        self.connection.settimeout(left)
        try:
            piece: bytes = self.connection.recv(_PIECE_BYTES)
        except TimeoutError:
            return b""
        return piece

    def parse_request(self) -> bool:
        """Refuse a head that was cut, before the base class parses a part of it, and one with a header twice."""
        if self.too_long:
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        if not super().parse_request():
            return False
        twice = [name for name in _ONCE if len(self.headers.get_all(name, ())) > 1]
        if twice:
            self.send_error(HTTPStatus.BAD_REQUEST, explain=f"{twice[0]} is given twice")
        return not twice

    def do_GET(self) -> None:
        """Answer GET; a body is ignored."""
        self._answer("GET", b"")

    def do_HEAD(self) -> None:
        """Answer HEAD: as GET without the body."""
        self._answer("GET", b"", with_body=False)

    def do_POST(self) -> None:
        self._answer_with_body("POST")

    def do_DELETE(self) -> None:
        """Answer DELETE, which may have a body."""
        self._answer_with_body("DELETE")

    def end_headers(self) -> None:
        """Tell browsers to take no answer, be it an error or /metrics, for anything but what it is said to be."""
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the base class's signature
        """Log nothing: probes come every second, and their outcome is in the response."""

    def _answer_with_body(self, method: str) -> None:
        if "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.LENGTH_REQUIRED, explain="a body requires a Content-Length")
            return
        length = self.headers.get("Content-Length", "0" if method == "DELETE" else "")
        if not (length.isascii() and length.isdigit() and len(length) <= _LENGTH_DIGITS_MAX):
            self.send_error(HTTPStatus.LENGTH_REQUIRED, explain="a body requires a Content-Length")
            return
        if int(length) > BODY_BYTES_MAX:
            explain = f"a body has at most {BODY_BYTES_MAX} bytes"
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, explain=explain)
            return
        body = self._body
        while len(body) < int(length):
            piece = self._receive()
            if not piece:
                return
            body += piece
        self.connection.settimeout(_SECONDS_MAX)
        self._answer(method, body[: int(length)])

    def _answer(self, method: str, body: bytes, *, with_body: bool = True) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.waiting.pop(self.connection, None)
        try:
            answer = self.server.answer(Request(method, self.path, headers, body, self.client_address[0]))
        except OSError as error:
            # An OSError of reading or writing here means that the peer has gone; this one is not about it.
            raise RuntimeError(f"{method} {self.path}: {error}") from error
        self.server.waiting[self.connection] = None
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)
