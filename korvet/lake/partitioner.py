"""Which partition a key goes to, by the rule that Kafka's clients have in common: murmur2 of its bytes.

Knows keys as Arrow, many at once; nothing of topics. The hash is MurmurHash2 of 32 bits with Kafka's seed, read as a
number that is not negative (org.apache.kafka.common.utils.Utils, BuiltInPartitioner).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

NO_KEY = -1
"""The partition of a null key: any."""

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_R = 24
_WORD = 4

Hashes = npt.NDArray[np.uint32]
Partitions = npt.NDArray[np.int64]


def partitions_of(keys: pa.BinaryArray, count: int) -> Partitions:
    """Return for each key its partition of `count`, NO_KEY where it is null."""
    positive = murmur2(keys).astype(np.int64) & 0x7FFFFFFF
    found: Partitions = positive % count
    if keys.null_count:
        found[np.asarray(keys.is_null())] = NO_KEY
    return found


def murmur2(keys: pa.BinaryArray) -> Hashes:
    """Return the hash of each key; whatever for a null one."""
    _, offsets_buffer, data_buffer = keys.buffers()
    at = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset :][: len(keys) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    lengths = np.diff(at)
    found: Hashes = np.zeros(len(keys), dtype=np.uint32)
    # Keys of one length take the same steps.
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        found[rows] = _murmur2(data[at[rows][:, None] + np.arange(length)], length)
    return found


def _murmur2(keys: npt.NDArray[np.uint8], length: int) -> Hashes:
    """Return the hashes of keys that are the rows of a matrix."""
    hashes: Hashes = np.full(len(keys), _SEED ^ length, dtype=np.uint32)
    whole = length - length % _WORD
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4")
    for place in range(words.shape[1]):
        word = words[:, place] * _M
        word ^= word >> _R
        hashes = hashes * _M ^ word * _M
    if whole < length:
        for place in range(whole, length):
            hashes ^= keys[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes
