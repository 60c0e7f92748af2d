"""Names of Kafka's compression codecs, and errors of korvet_core, which has the codecs.

The settings that name codecs, `compression.type` and `storage.compression`, list their values in
korvet/config/settings.py; a codec at rest also stands in korvet/topics/config.py and types.py. `korvet produce` lists
its codecs in korvet/cli/options.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import IntEnum

import korvet_core

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError


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
        code, message, *others = refused.args
        if any(others):
            raise StorageUnavailableError(message) from None
        raise KafkaError(ErrorCode(code), message) from None
