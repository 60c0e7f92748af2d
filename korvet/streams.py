"""The standard streams of a process, where whoever started it has closed some.

Knows descriptors and no command. Python leaves None for a closed stream, and the next file or socket would get its
descriptor: then what is meant for a terminal goes to a broker.
"""

from __future__ import annotations

import os
import sys


def open_closed() -> None:
    """Take the place of each closed stream.

    Reading from stdin and writing to stdout then fail with EBADF, as in other languages: an input that is closed is no
    empty one, and records that nobody gets do not count as read. What goes to stderr is lost: there is nowhere to tell
    it.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def forget_output() -> None:
    """Let what could not be written to stdout go nowhere: its buffer keeps it, and each later flush fails again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
