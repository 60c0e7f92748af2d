"""The lake: archived topics as Delta tables, one each, that any engine reads.

Everything here works without Spark and imports nothing of it. It needs the extra `korvet[lake]`: these modules import
pyarrow, so nothing outside imports them before a topic has a remote tier.

    schema        the columns of a table
    files         Parquet files: written, discarded, and read in the order of offsets
    table         a topic's Delta table, commits that come first or not at all, and the tables of a lake
    iceberg       the same table in an Iceberg catalog, in step with Delta's log
    decoding      record batches and records from Redis as Arrow
    encoding      Arrow as record batches, for consumers and for brokers
    source        the Redis that topics come from, and which of them have a remote tier
    tasks         what is archived next; a range of a partition, read from Redis and written to a file
    archiver      rounds of archiving: plan, write, commit, report to Redis
    reader        archived records by offset and by time, for consumers
    service       the process that reads them; child is what it and the archiver's have in common
    scan          ranges of a topic over both tiers, and their rows
    compaction    the rows of small files in fewer large ones
    expiry        retention of whole logs, and upkeep: compaction and expiry of all topics
    rewind        what a restored Redis does not have leaves the tables
    verify        how far topics are archived, and whether tables hold what they say
    registration  the names of tables in a catalog of others
    replay        ranges of a topic produced into another one, each record once; replay_state is its progress
"""
