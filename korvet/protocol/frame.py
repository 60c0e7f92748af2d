"""Frames: the size prefix, and the headers in front of every request and response body.

Kafka has two request headers and two response headers; the caller says which versions are flexible. Source: the Kafka
protocol guide, "Common Request and Response Structure", and KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from korvet.errors import ProtocolError
from korvet.protocol.schema import RequestHeader
from korvet.protocol.wire import REPLACE_MALFORMED, Buffer, raise_short, skip_tagged_fields

SIZE_BYTES = 4
"""A frame opens with its size as int32; the size does not count itself."""

REQUEST_HEADER_MIN = 8
"""Key, version and correlation id: no request is smaller."""

_TLS_HANDSHAKE = range(0x16030000, 0x16030500)
"""What the first four bytes of a client that begins a TLS handshake are as a size."""

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")
_LENGTH = struct.Struct(">h")
_RESPONSE = struct.Struct(">ii")


def check_frame_size(size: int, limit: int, least: int = REQUEST_HEADER_MIN) -> None:
    """Refuse a size prefix that no request has, before a byte is read or allocated for it.

    Raises ProtocolError for a size that holds no header (which a negative one is too) and for one above
    `limit` bytes.
    """
    if size < least:
        raise ProtocolError(f"a frame of {size} bytes holds no request")
    if size > limit:
        tls = "; so begins TLS, which this listener does not speak" if size in _TLS_HANDSHAKE else ""
        raise ProtocolError(f"a frame of {size} bytes is above the limit of {limit}{tls}")


def read_size(buffer: Buffer, position: int = 0) -> int:
    """Return the size prefix at `position`, unchecked; the caller has made sure that SIZE_BYTES are there."""
    size: int = _SIZE.unpack_from(buffer, position)[0]
    return size


def peek_api(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Return API key and version of the request at `position`, before the rest of its frame has arrived.

    Raises ProtocolError if fewer than REQUEST_HEADER_MIN bytes are there.
    """
    if len(buffer) - position < REQUEST_HEADER_MIN:
        raise_short(position + REQUEST_HEADER_MIN, buffer)
    api_key, api_version, _ = _REQUEST.unpack_from(buffer, position)
    return api_key, api_version


def read_request_header(buffer: Buffer, flexible: Callable[[int, int], bool | None]) -> RequestHeader:
    """Read the header of the request that `buffer` (a frame without its size prefix) holds.

    `flexible` says whether an API key and version is flexible, and None for an unknown one: then the header is read up
    to the client id, which is at the same place in both headers, and `body` means nothing. In the flexible header too
    the client id is a plain nullable string with an int16 length, so that a broker can read it before it knows the
    version (KIP-511); the tagged fields after it are skipped, since none is defined.

    Raises ProtocolError if the header ends too early, or a long client id is not UTF-8.
    """
    try:
        api_key, api_version, correlation_id = _REQUEST.unpack_from(buffer)
        position = _REQUEST.size
        (length,) = _LENGTH.unpack_from(buffer, position)
        position += _LENGTH.size
        client_id = None
        if length >= 0:
            stop = position + length
            if stop > len(buffer):
                raise_short(stop, buffer)
            client_id = str(buffer[position:stop], "utf-8", REPLACE_MALFORMED)
            position = stop
        if flexible(api_key, api_version):
            position = skip_tagged_fields(buffer, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"a frame of {len(buffer)} bytes ends within its request header") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def response_frame(correlation_id: int, chunks: Sequence[Buffer], *, flexible_header: bool) -> list[Buffer]:
    """Put size prefix and header before the chunks of an encoded response; nothing is copied.

    `flexible_header` adds an empty block of tagged fields: for the flexible versions of every API but
    ApiVersions, whose response always has the plain header (KIP-511).
    """
    size = _RESPONSE.size - SIZE_BYTES + flexible_header + sum(map(len, chunks))
    header = _RESPONSE.pack(size, correlation_id)
    return [header + b"\0" if flexible_header else header, *chunks]
