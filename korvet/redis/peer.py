"""What answers at an address of `redis.url`: a start tries it first, because a client of Redis waits for its answer.

A plain Redis takes the beginning of TLS for an unfinished command, and says nothing to it.
"""

from __future__ import annotations

import socket
import ssl

from korvet.redis.url import RedisAddress

_WAIT_SECONDS = 0.8
"""For each of two connections: a start says what is wrong within 2 s."""

# HTTP takes it for a request, and Redis for a command with one word too many.
_QUESTION = b"PING / HTTP/1.0\r\n\r\n"
_HTTP, _RESP = (b"HTTP/", b"<"), (b"+", b"-", b"$", b"*", b":")


def misnamed(address: RedisAddress) -> str | None:
    """Return what is wrong with an address at which something else answers than the URL says; None if nothing is.

    Raises TimeoutError if the address takes connections and answers nothing.
    """
    is_tls = address.tls is not None
    head = _head(address, tls=is_tls)
    if head and head.startswith(_RESP):
        return None
    is_known = address.path or (head and head.startswith(_HTTP))
    other = head if is_known else _head(address, tls=not is_tls)
    if head is None and other is None:
        raise TimeoutError
    if (head or other or b"").startswith(_HTTP):
        return f"{address} is an HTTP server, not Redis"
    if other and other.startswith(_RESP):
        if is_tls:
            return f"{address} takes no TLS: give redis in place of rediss"
        return f"{address} takes TLS only: give rediss in place of redis"
    return f"{address} does not speak the protocol of Redis" if head else None


def _head(address: RedisAddress, *, tls: bool) -> bytes | None:
    """Return the beginning of an answer; None if nothing came, and empty without a connection, or if it was closed."""
    try:
        plain = _connect(address)
    except OSError:
        return b""
    with plain:
        try:
            if not tls:
                return _ask(plain)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(plain, server_hostname=address.host) as wrapped:
                return _ask(wrapped)
        except TimeoutError:
            return None
        except OSError:
            return b""


def _connect(address: RedisAddress) -> socket.socket:
    if not address.path:
        return socket.create_connection((address.host, address.port), _WAIT_SECONDS)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_WAIT_SECONDS)
    try:
        connection.connect(address.path)
    except OSError:
        connection.close()
        raise
    return connection


def _ask(connection: socket.socket) -> bytes:
    connection.sendall(_QUESTION)
    return connection.recv(16)
