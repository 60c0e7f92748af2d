"""Spark's daemon of Python workers, but quiet about rows that nobody needs any more: `python -m korvet.spark.daemon`.

Knows that Spark hangs up on a worker where a query has its rows, as with LIMIT. The worker can only end then, and does;
pyspark's own daemon would print a traceback first. A failure is told to Spark before, and by Spark.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - pyspark's signature
    """Serve Spark as pyspark's worker does."""
    try:
        code: int = _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        # As the daemon does after its traceback: no flushing, and nothing of the parent's is run.
        os._exit(1)
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
