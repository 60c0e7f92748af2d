"""Jobs on Spark: the work of the lake that is worth more than one process.

The work itself is in `korvet.lake`, which imports nothing of Spark. These modules need the extra `korvet[lake]` and
Java; no part of a broker imports them, except the program that archives.

    session        Spark as the jobs use it, and its Java process
    jobs           archiving and compaction, spread over the tasks of Spark
    service        the process of a broker that archives, and its lease
    archiver_loop  what that process does while it holds the lease, and its metrics
    source         the data source `korvet`: topics as DataFrames over both tiers; Spark finds it by pyspark_korvet
    sink           the same as a format to write: rows as records, through a broker
    exactly_once   what the sink stages in files, and writes in one transaction
    options        the options of both
    names          topics as views by their names, korvet.orders
    query          SQL, in which topics are views
    pipelines      from topics to tables, as files declare it
    metastore      a Hive metastore as a catalog of the tables
    daemon         Spark's Python workers, quiet when a query has its rows
"""

from __future__ import annotations

import os


def is_submitted() -> bool:
    """Return whether spark-submit, or a cluster that it submitted to, runs this program: then it has set up Spark.

    Here, without an import of pyspark: most commands start without it.
    """
    return "PYSPARK_GATEWAY_PORT" in os.environ
