"""Arrow's binary views over bytes that are there already.

Knows the layout of a view (Arrow columnar format, "Variable-size Binary View Layout"): 16 bytes, a length and then the
bytes themselves where they are twelve at the most, else their first four, the number of a buffer, and a position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from korvet.lake.varints import Bytes, Ints

_INLINE_BYTES_MAX = 12
_PREFIX_BYTES = 4


def binary_views(buffer: bytes, data: Bytes, at: Ints, lengths: Ints) -> pa.Array:
    """Return a binary view of `lengths` bytes from each of `at` in `buffer`; null where the length is negative.

    `data` is the buffer as an array; all of them lie within it.
    """
    count = len(lengths)
    sizes = np.maximum(lengths, 0)
    views = np.zeros((count, 4), dtype=np.int32)
    views[:, 0] = sizes
    short = sizes <= _INLINE_BYTES_MAX
    whole = _Slices(data, at, views)
    if short.all():
        whole.inline(slice(None), sizes)
    elif not short.any():
        whole.outside(slice(None))
    else:
        rows = np.flatnonzero(short)
        whole.inline(rows, sizes[rows])
        whole.outside(np.flatnonzero(~short))
    nulls = lengths < 0
    validity = None
    if nulls.any():
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(views), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers, null_count=int(nulls.sum()))


class _Slices:
    def __init__(self, data: Bytes, at: Ints, views: npt.NDArray[np.int32]) -> None:
        self._data = data
        self._at = at
        self._views = views

    def outside(self, rows: Ints | slice) -> None:
        """Point at the bytes, which are more than fit into a view."""
        at = self._at[rows]
        self._views[rows, 1] = self._take(at, _PREFIX_BYTES).view(np.int32)[:, 0]
        self._views[rows, 3] = at

    def inline(self, rows: Ints | slice, sizes: Ints) -> None:
        """Copy the bytes; those behind a short one are to be zero."""
        taken = self._take(self._at[rows], _INLINE_BYTES_MAX)
        taken[np.arange(_INLINE_BYTES_MAX) >= sizes[:, None]] = 0
        self._views[rows, 1:] = taken.view(np.int32)

    def _take(self, at: Ints, count: int) -> Bytes:
        last = max(len(self._data) - 1, 0)
        if not len(self._data):
            return np.zeros((len(at), count), dtype=np.uint8)
        # What is read beyond the end of the buffer is not of the bytes that are wanted.
        taken: Bytes = self._data[np.minimum(at[:, None] + np.arange(count), last)]
        return taken
