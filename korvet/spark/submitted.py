"""Whether spark-submit has started this process: then it has said where Spark is, and a command is to use it.

Knows how pyspark is told of the Java that waits for it; imports nothing of it, for most commands start without.
"""

from __future__ import annotations

import os


def is_submitted() -> bool:
    """Return whether spark-submit, or a cluster to which it went, runs this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
