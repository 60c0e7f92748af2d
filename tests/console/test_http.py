"""HTTP of the ops port when the system is out of threads or fails."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest

from korvet.console.http import CONNECTIONS_MAX, Answer, HttpServer, Request, plain


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[HttpServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield HttpServer(listener, answer)


def ask(server: HttpServer) -> bytes:
    """Ask, and return all that is answered."""
    with socket.create_connection(server.socket.getsockname(), 30) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        server.handle_request()
        received = b""
        try:
            while piece := client.recv(4096):
                received += piece
        except ConnectionResetError:
            pass  # closed with the question unread
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


def test_a_system_error_while_answering_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_request: Request) -> Answer:
        raise OSError("the disk is gone")

    with serving(fail) as server, caplog.at_level(logging.ERROR):
        assert ask(server) == b""
        assert "cannot answer a request on the ops port" in caplog.text
        assert "the disk is gone" in caplog.text
