"""Spark's daemon of Python workers, quiet when a query needs no more rows: `python -m korvet.spark.daemon`.

Spark closes the connection to a worker when a query has its rows, as with LIMIT. The worker can only end then, and
does; pyspark's own daemon would print a traceback first. A failure is reported to Spark before, and by Spark.
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
        # As the daemon does after its traceback: no flushing, and no exit handlers of the parent.
        os._exit(1)
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
