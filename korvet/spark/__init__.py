"""Jobs on Spark: what of the lake is worth more than one process.

Knows PySpark, sessions and how work is spread; what the work is stands in `korvet.lake`, which knows nothing of Spark.
It needs the extra `korvet[lake]` and Java; no part of a broker imports it, but for the program that archives.

    session  Spark as the jobs use it, and what to say where it does not start
    submitted  whether spark-submit runs the process
    archive  ranges of topics into their tables, spread over the tasks of Spark
    compact  merges of files into larger ones, spread likewise
    service  the process of a broker that archives, and the lease that lets one of all do so
    acting   what that does: rounds of archiving, upkeep beside them, and figures of both
    figures  what that counts, for /metrics; java_process: Java beside it, what it prints and its end
    source   the data source `korvet`: topics as DataFrames over both tiers
    options  what that is told; filters: what of a query it takes into account
    sink     the same as a format to write: rows as records, through a broker; sink_options is what that is told
    query    SQL, in which topics are views
    daemon   Spark's Python workers, quiet where a query has its rows

Whether spark-submit has started this process: then it has said where Spark is, and a command is to use it.

Knows how pyspark is told of the Java that waits for it; imports nothing of it, for most commands start without.
"""

from __future__ import annotations

import os


def is_submitted() -> bool:
    """Return whether spark-submit, or a cluster to which it went, runs this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
