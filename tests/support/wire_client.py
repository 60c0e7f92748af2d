"""A blocking Kafka client of exact bytes: it sends what a test says, in the version it says, and reads the answer.

Nothing is hidden: no retries, no negotiation, no pool. `call` is for requests as they should be; `send_bytes` and
`receive_frame` are for the others.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from korvet.protocol.compile import decode, encode
from korvet.protocol.messages import all_messages
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.schema import Message
from tests.support.connections import as_kernel_writes, ends
from tests.support.messages import message

SECONDS_MAX = 30.0
"""How long an answer may take before the test fails."""

RESPONSES: dict[int, type[Message]] = {cls.api.key: cls for cls in all_messages() if not cls.is_request()}
"""The response of each API, by its key."""


class ClosedByBrokerError(Exception):
    """The broker closed the connection where an answer was awaited."""


def request_frame(
    request: Message, version: int, correlation_id: int = 1, client_id: str | None = "wire"
) -> bytes:
    """Return a request as it goes over the wire, size and header included."""
    return frame(
        header(type(request).api.key, version, correlation_id, client_id)
        + (b"\0" if type(request).api.is_flexible(version) else b"")
        + b"".join(encode(request, version))
    )


def header(api_key: int, version: int, correlation_id: int = 1, client_id: str | None = "wire") -> bytes:
    """Return a request header up to the client id."""
    start = struct.pack(">hhi", api_key, version, correlation_id)
    if client_id is None:
        return start + struct.pack(">h", -1)
    return start + struct.pack(">h", len(client_id.encode())) + client_id.encode()


def frame(body: bytes) -> bytes:
    """Put the size before a frame."""
    return struct.pack(">i", len(body)) + body


def decode_response(cls: type[Message], version: int, body: bytes) -> Any:
    """Decode a response, given with its header, to its last byte."""
    # KIP-511: the answer to ApiVersions has the plain header in every version.
    flexible = cls.api.is_flexible(version) and cls.api.key != ApiVersionsRequest.api.key
    assert not flexible or body[4] == 0, "tagged fields in a response header"
    body = body[5 if flexible else 4 :]
    message = decode(cls, version, body)
    assert b"".join(encode(message, version)) == body, "bytes after the response, or another form of it"
    return message


class WireClient:
    """One connection; a context manager."""

    def __init__(self, address: tuple[str, int] | socket.socket, *, client_id: str | None = "wire") -> None:
        """Connect to an address, or take a connection that is there."""
        if isinstance(address, tuple):
            address = socket.create_connection(address, SECONDS_MAX)
        self.socket = address
        self.client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def call(self, request: Message, version: int) -> Any:
        """Send a request and return its decoded response, of the class that belongs to it."""
        self._correlation_id += 1
        self.send(request, version, self._correlation_id)
        return self.receive(RESPONSES[type(request).api.key], version, self._correlation_id)

    def ask(self, kind: type[Message], version: int, **fields: Any) -> Any:
        """Send a request with these fields, all others null, zero or empty, and return its response."""
        return self.call(message(kind, fields, version), version)

    def send(self, request: Message, version: int, correlation_id: int = 1) -> None:
        """Send a request."""
        self.send_bytes(request_frame(request, version, correlation_id, self.client_id))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self, cls: type[Message], version: int, correlation_id: int | None = None) -> Any:
        """Return the next response, decoded to its last byte; `correlation_id` is the one it must carry."""
        body = self.receive_frame()
        (answered,) = struct.unpack_from(">i", body)
        assert correlation_id is None or answered == correlation_id, f"{answered} is not {correlation_id}"
        return decode_response(cls, version, body)

    def receive_frame(self) -> bytes:
        """Return the next frame without its size."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def is_silent(self, seconds: float = 0.5) -> bool:
        """Return whether nothing arrives in that time, not even the end of the connection."""
        return not select.select([self.socket], [], [], seconds)[0]

    def is_closed_by_broker(self) -> bool:
        """Wait for the broker to close the connection without a word; fails where it says something."""
        try:
            data = self.socket.recv(1)
        except ConnectionResetError:
            return True
        assert data == b"", "the broker answered"
        return True

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise ClosedByBrokerError from error
            if not piece:
                raise ClosedByBrokerError
            data += piece
        return bytes(data)


C = TypeVar("C", bound=WireClient)


def worker_of(client: WireClient, worker_pids: Iterable[int]) -> int:
    """Return the pid of the worker that serves a connection, according to the kernel."""
    client.call(ApiVersionsRequest(), 0)  # answered: so it was accepted
    # Both ends: elsewhere the kernel may have given the same port of ours to a connection to another server.
    wanted = as_kernel_writes(*client.socket.getpeername()), as_kernel_writes(*client.socket.getsockname())
    for pid in worker_pids:
        if wanted in ends(pid):
            return pid
    raise AssertionError("no worker holds the connection")


@contextlib.contextmanager
def clients_of_two_workers(
    address: tuple[str, int], worker_pids: Iterable[int], kind: type[C]
) -> Iterator[tuple[C, C]]:
    """Give two connections that the kernel has given to different workers."""
    with contextlib.ExitStack() as stack:
        pids = list(worker_pids)
        result: dict[int, C] = {}
        while len(result) < 2:
            client = kind(address)
            stack.enter_context(client)
            result.setdefault(worker_of(client, pids), client)
        first, second = result.values()
        yield first, second
