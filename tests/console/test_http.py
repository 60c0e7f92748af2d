"""HTTP of the ops port: what a bad peer can do to it, which is nothing, and a system without room."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from korvet.console.http import CONNECTIONS_MAX, Answer, HttpServer, Request, plain
from tests.support.authority import Authority
from tests.support.processes import wait_until


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[HttpServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield HttpServer(listener, answer)


def ask(server: HttpServer, request: bytes = b"GET / HTTP/1.0\r\n\r\n") -> bytes:
    with socket.create_connection(server.socket.getsockname(), 30) as client:
        client.sendall(request)
        server.handle_request()
        received = b""
        try:
            while piece := client.recv(4096):
                received += piece
        except ConnectionResetError:
            pass  # closed with the request unread
        return received


def test_a_connection_without_a_thread_is_not_counted() -> None:
    with serving(lambda _request: plain(HTTPStatus.OK, "here")) as server:
        # More than there is: no thread can be started.
        threading.stack_size(2**45)
        try:
            assert [ask(server) for _ in range(CONNECTIONS_MAX)] == [b""] * CONNECTIONS_MAX
        finally:
            threading.stack_size(0)
        assert ask(server).endswith(b"OK: here\n")


def test_silent_peers_do_not_keep_others_away() -> None:
    with serving(lambda _request: plain(HTTPStatus.OK, "here")) as server, contextlib.ExitStack() as open_:
        peers = []
        for _ in range(2 * CONNECTIONS_MAX):
            peers.append(open_.enter_context(socket.create_connection(server.socket.getsockname(), 30)))
            server.handle_request()
        assert [ask(server).endswith(b"OK: here\n") for _ in range(3)] == [True] * 3
        assert peers[0].recv(1) == b""  # closed for others
        peers[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert peers[-1].recv(12) == b"HTTP/1.0 200"


def slow_sender(server: HttpServer) -> socket.socket:
    """Send a request but for the end of its body."""
    peer = socket.create_connection(server.socket.getsockname(), 30)
    peer.sendall(b"POST / HTTP/1.0\r\nContent-Length: 10\r\n\r\n{")
    return peer


def slow_receiver(server: HttpServer) -> socket.socket:
    """Ask for what is larger than the kernel holds, and receive none of it but the first byte."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(server.socket.getsockname())
    peer.settimeout(30)
    peer.sendall(b"GET /large HTTP/1.0\r\n\r\n")
    return peer


@pytest.mark.parametrize("slow_peer", [slow_sender, slow_receiver])
def test_slow_peers_do_not_keep_others_away(
    slow_peer: Callable[[HttpServer], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.console.http._SECONDS_MAX", 60.0)  # none is closed for being slow
    large, small = plain(HTTPStatus.OK, "x" * 16_000_000), plain(HTTPStatus.OK, "here")
    with (
        serving(lambda request: large if request.path == "/large" else small) as server,
        contextlib.ExitStack() as open_,
    ):
        for _ in range(CONNECTIONS_MAX):
            peer = open_.enter_context(slow_peer(server))
            server.handle_request()
            if slow_peer is slow_receiver:
                assert peer.recv(1) == b"H"
        wait_until(lambda: len(server.waiting) == CONNECTIONS_MAX, "the server waits for each of them")
        assert [ask(server).endswith(b"OK: here\n") for _ in range(3)] == [True] * 3


def test_a_system_error_while_answering_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_request: Request) -> Answer:
        raise OSError("the disk is gone")

    with serving(fail) as server, caplog.at_level(logging.ERROR):
        assert ask(server) == b""
        assert "cannot answer a request on the ops port" in caplog.text
        assert "the disk is gone" in caplog.text


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """Give a server that answers every request with its method."""
    with serving(lambda request: plain(HTTPStatus.OK, request.method)) as running:
        yield running


def test_a_head_that_is_too_long_is_refused(server: HttpServer) -> None:
    assert b" 431 " in ask(server, b"GET / HTTP/1.0\r\nx: " + b"x" * 8192)
    assert b" 200 " in ask(server)


def test_a_body_has_a_length_and_not_too_much_of_it(server: HttpServer) -> None:
    post = b"POST / HTTP/1.0\r\n"
    assert b"OK: POST" in ask(server, post + b"Content-Length: 2\r\n\r\n{}")
    assert b" 411 " in ask(server, post + b"\r\n")
    assert b" 411 " in ask(server, post + b"Content-Length: -1\r\n\r\n")
    assert b" 411 " in ask(server, post + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert b" 413 " in ask(server, post + b"Content-Length: 65537\r\n\r\n")


def test_a_head_that_says_two_things_is_refused(server: HttpServer) -> None:
    for name in (b"Host", b"Content-Length", b"Authorization"):
        assert b" 400 " in ask(server, b"GET / HTTP/1.0\r\n" + (name + b": 1\r\n") * 2 + b"\r\n")
    assert b" 200 " in ask(server, b"GET / HTTP/1.0\r\nVia: a\r\nVia: b\r\n\r\n")


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/1.0\r\n\r\n", b"PUT / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nx: " + b"x" * 8192]
)
def test_browsers_may_take_no_answer_for_anything_else(server: HttpServer, request_: bytes) -> None:
    assert ask(server, request_).count(b"X-Content-Type-Options: nosniff\r\n") == 1


def test_an_error_is_plain_text_without_what_the_peer_sent(server: HttpServer) -> None:
    answer = ask(server, b"PUT /<b> HTTP/1.0\r\n\r\n")
    assert b"Content-Type: text/plain" in answer
    assert b"<" not in answer


def test_a_peer_that_sends_half_of_a_request_is_closed_without_an_answer(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.console.http._SECONDS_MAX", 0.1)
    assert ask(server, b"GET / HTTP/1.0\r\n") == b""
    assert ask(server, b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n{}") == b""


@pytest.mark.slow
def test_a_connection_that_is_ended_for_another_still_encrypts_what_it_sends(tmp_path: Path) -> None:
    """Its thread may be about to send: nothing of it may go out in plain."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("/CN=broker").store)
    with serving(lambda _request: plain(HTTPStatus.OK, "here")) as server:
        ours, theirs = socket.socketpair()
        with theirs, context.wrap_socket(ours, server_side=True, do_handshake_on_connect=False) as waiting:
            server.waiting[waiting] = None
            server._close_waiting()
            assert waiting._sslobj is not None  # type: ignore[attr-defined]  # what encrypts; typeshed leaves it out
            assert theirs.recv(1) == b""
