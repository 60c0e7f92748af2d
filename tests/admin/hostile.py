"""A peer that takes connections and answers each request with the bytes that a test has made up."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from korvet.protocol.compile import decode, encode
from korvet.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.schema import Message

M = TypeVar("M", bound=Message)

_REQUEST_BYTES_MAX = 1 << 24
"""What begins with more is no Kafka, as the questions of a client whether its peer speaks TLS or HTTP."""

Answer = Callable[[int, int, int], bytes | None]
"""Of API key, version and correlation id: the bytes to send, or None to close the connection."""


def frame(correlation_id: int, body: bytes) -> bytes:
    """Return an answer as it goes over the wire."""
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def versions(served: dict[int, tuple[int, int]], version: int) -> bytes:
    """Return the body of an answer to ApiVersions."""
    keys = [
        ApiVersion(api_key=key, min_version=first, max_version=last) for key, (first, last) in served.items()
    ]
    return b"".join(encode(ApiVersionsResponse(api_keys=keys), version))


def is_versions(api_key: int) -> bool:
    return api_key == ApiVersionsRequest.api.key


def read(cls: type[M], request: bytes) -> M:
    _, version, _, length = struct.unpack_from(">hhih", request)
    position = struct.calcsize(">hhih") + length
    return decode(cls, version, request, position + cls.api.is_flexible(version))


@contextlib.contextmanager
def peer(answer: Answer, heard: list[bytes] | None = None) -> Iterator[str]:
    """Run the peer; gives its HOST:PORT. Requests are put into `heard`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, answer, heard), daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        # Closing alone does not wake who waits in accept.
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, answer: Answer, heard: list[bytes] | None) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_serve, args=(connection, answer, heard), daemon=True).start()


def _serve(connection: socket.socket, answer: Answer, heard: list[bytes] | None) -> None:
    with connection, contextlib.suppress(OSError), connection.makefile("rb") as incoming:
        while size := incoming.read(4):
            length = struct.unpack(">i", size)[0]
            if length > _REQUEST_BYTES_MAX:
                return
            request = incoming.read(length)
            if heard is not None:
                heard.append(request)
            data = answer(*struct.unpack_from(">hhi", request))
            if data is None:
                return
            connection.sendall(data)
