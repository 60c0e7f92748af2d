"""Korvet: a Kafka-compatible broker that keeps its log in Redis Streams.

The packages, from the top down. Imports point down only; tests/test_layers.py holds them, and this map, to the tree.

    cli         the `korvet` command: one file per noun
    spark       jobs on Spark: archiving, compaction, SQL, the data source `korvet`; the only importer of pyspark
    lake        archived topics as Delta tables, without Spark
    doctor      what `korvet doctor` examines: Redis, the machine, addresses, settings
    server      the processes of a broker: supervisor, workers, keeper, ops; connections and dispatch (net/)
    console     the console's pages and their JSON, a client of the broker
    admin       an admin client of any Kafka broker
    handlers    one file per API key: from request to response
    security    who may connect, and what each may do
    transactions  the coordinator of transactions
    share       share groups: records delivered to any member, and acknowledged one by one
    groups      consumer groups: membership, committed offsets, lag, expiry
    log         a partition's log: append, fetch, index, retention, compaction, the remote tier
    topics      the registry of topics, their configs, creation, deletion, placement
    cluster     live brokers, leases, dynamic settings, back-pressure
    telemetry   metrics: what processes count, and the page that shows it
    redis       keys, scripts, and connections to Redis
    protocol    the Kafka wire format, pure: no input or output, no clock
    config      settings: one definition each, where values come from, listeners
    logs        log lines, as text or JSON
    java        where Java is, for Spark
    extras      what the extra `lake` brings, and how it is installed
    clock       what time it is, and waits for time to pass
    turns       long loops that let other greenlets run
    backoff     pauses between attempts that failed
    pending     what is under way, and its result
    errors      Kafka's error codes and Korvet's exceptions

`lua/`, beside this package (inside it in a wheel), holds the scripts; `docs/redis-schema.md` lists every key in Redis.
"""

import korvet_core

__version__ = korvet_core.__version__

FORMAT = 2
"""Highest format of data that this version reads and writes (korvet/cluster/data_format.py)."""
