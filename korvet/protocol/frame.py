"""Frames: the size prefix and the header of a response; korvet_core reads those of requests.

Source: the Kafka protocol guide, "Common Request and Response Structure", and KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from korvet.protocol.wire import Buffer

SIZE_BYTES = 4
"""A frame opens with its size as int32; the size does not count itself."""

_RESPONSE = struct.Struct(">ii")


def response_frame(correlation_id: int, chunks: Sequence[Buffer], *, flexible_header: bool) -> list[Buffer]:
    """Put size prefix and header before the chunks of an encoded response; nothing is copied.

    `flexible_header` adds an empty block of tagged fields: for the flexible versions of every API but
    ApiVersions, whose response always has the plain header (KIP-511).
    """
    size = _RESPONSE.size - SIZE_BYTES + flexible_header + sum(map(len, chunks))
    header = _RESPONSE.pack(size, correlation_id)
    return [header + b"\0" if flexible_header else header, *chunks]
