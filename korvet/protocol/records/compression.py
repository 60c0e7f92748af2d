"""Kafka's compression codecs (korvet_core), none of which decompresses more than a limit.

The settings that name codecs, `compression.type` and `storage.compression`, list their values in
korvet/config/settings.py; how values and batches are compressed in Redis is in korvet/log/record_format.py and
batch_format.py, and a codec at rest also stands in korvet/topics/config.py and types.py. `korvet produce` lists its
codecs in korvet/cli/options.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import IntEnum

import korvet_core

from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.wire import Buffer


class Codec(IntEnum):
    """The three lowest attribute bits of a batch; the names are the values of `compression.type`."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise KafkaError for what korvet_core refuses."""
    try:
        yield
    except korvet_core.RefusedError as refused:
        code, message = refused.args
        raise KafkaError(ErrorCode(code), message) from None


def compress(codec: int, data: Buffer) -> bytes:
    """Return `data` in `codec`, a member of Codec, as every client reads it."""
    return korvet_core.compress(codec, data)


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Undo `codec` on `data`, to `limit` bytes at the most.

    Raises KafkaError: MESSAGE_TOO_LARGE beyond the limit, INVALID_RECORD if the data is not what the codec writes,
    UNSUPPORTED_COMPRESSION_TYPE for a number that is no codec.
    """
    with refusals():
        return korvet_core.decompress(codec, data, limit)
