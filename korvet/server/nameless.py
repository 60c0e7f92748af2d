"""Files without a name: what they hold outlives the program, and goes with the last process that has one open.

Knows memfd_create of Linux and, elsewhere, a temporary file whose name is removed at once.
"""

from __future__ import annotations

import os
import tempfile


def file(what: str) -> int:
    """Return the descriptor of an empty one, closed by exec; `what` is seen in /proc."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(what)
    fd, path = tempfile.mkstemp(prefix=what)
    os.unlink(path)  # noqa: PTH108 - made by its number, and removed by its name
    return fd
