"""What workers and the lake's reading process say to each other, on a unix socket of the broker.

Knows shapes and framing; nothing of sockets or of the lake. A frame is its length in four bytes, big-endian, and then
one message in MessagePack. Requests carry a number that their answer repeats; answers come in any order.
"""

from __future__ import annotations

import math
import struct
from typing import Literal

import msgspec

LENGTH = struct.Struct(">I")

FRAME_BYTES_MAX = 256 * 1024 * 1024
"""No frame is larger: an answer holds what one fetch may, or one record whatever its size."""


Kind = Literal["read", "first_from", "largest"]


class ColdRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A question about one partition of a topic; `topic_id` is the text of 22 characters.

    It is about what is archived from `offset` on, and `archived` is how far that is known to go. `read` wants batches
    of `bytes_max` bytes at the most, but for one record with `at_least_one`, in the codec of that number. `first_from`
    wants the first record whose timestamp (ms) is not smaller, `largest` the first of those with the largest one.
    `until` (seconds of the machine's monotonic clock) is when nobody waits for the answer any more: a reader that is
    behind passes such questions over, or it would never catch up.
    """

    number: int
    kind: Kind
    topic: str
    topic_id: str
    partition: int
    offset: int
    archived: int
    bytes_max: int = 0
    at_least_one: bool = True
    codec: int = 0
    leader_epoch: int = 0
    timestamp: int = -1
    until: float = math.inf


class ColdAnswer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to one question: an error in words, or what was asked for.

    To `read`: batches, the number of their records, the offset to read next, and whether that one is archived too. To
    the others: offset and timestamp (ms) of the record, -1 where there is none.
    """

    number: int
    error: str = ""
    data: bytes = b""
    record_count: int = 0
    next_offset: int = -1
    more: bool = False
    offset: int = -1
    timestamp: int = -1


def framed(message: ColdRequest | ColdAnswer) -> bytes:
    """Return a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
