"""What Korvet uses of Linux and other systems lack, and what follows: `korvet serve` names it at its start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_KERNEL = Path("/proc/self/stat")


def shortcomings() -> list[str]:
    """Return a line for each facility that this system lacks: none on Linux."""
    linux = sys.platform == "linux"
    lacks = {
        "the kernel does not spread connections over workers: one worker is the default": linux,
        "if the supervisor is killed, the next start ends the embedded server that goes on": linux,
        "/metrics has no CPU, memory and files of processes, and doctor reads no limits of the kernel": _has_proc(),
        "keys of TLS are in a file without a name for a moment, not only in memory": hasattr(
            os, "memfd_create"
        ),
        "a full disk may end processes that write metrics": hasattr(os, "posix_fallocate"),
    }
    lines = [line for line, has in lacks.items() if not has]
    return [f"{sys.platform}, for development only", *lines] if lines else []


def _has_proc() -> bool:
    try:
        return bool(_KERNEL.read_bytes())
    except OSError:
        return False
