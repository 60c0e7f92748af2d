"""The lake: archived topics as Delta tables, one each, that any engine reads.

Knows tables, files and Arrow; nothing of Spark, and nothing of clients. It needs the extra `korvet[lake]`: whoever
imports one of these modules imports pyarrow, so nothing outside does before a topic has a cold tier.

    schema      the columns of a table, and how a timestamp and a header's name stand in them
    varints     many varints at once
    views       bytes that are there already as Arrow's binaries
    batches     record batches as Arrow
    entries     records that lie one by one in a stream as Arrow
    serving     Arrow as record batches for a consumer
    files       Parquet files, and what the table is told of them
    data_files  files as they are read: footers and row groups, kept for the next fetch
    windows     the rows of files in the order of their offsets, whoever has written them
    reader      archived records by offset and by time, for consumers
    table       a topic's Delta table: what is archived, and commits that come first or not at all
    source      the Redis that topics come from, and which of them have a cold tier
    plan        what is to be archived next: pure functions over offsets
    task        a range of a partition, read from Redis and written to a file
    archiver    rounds of archiving: look, plan, write, commit, tell Redis
    continuity  whether Redis still has the log that was archived
    leftovers   files that were written and that no table took
    rounds      what a round of archiving did
    status      how far topics are archived
    tables      which tables there are, and their removal
    compaction  the rows of small files in fewer large ones; compaction_plan says of which
    expiry      retention of whole logs: out of the log, then the table, then the disk
    upkeep      both for all topics, as a broker does it
    producing   rows as record batches for a broker; partitioner: where their keys go
    replay      ranges of a topic produced into another one, each record once; replay_state is what that has come to
    pace        how fast records may pass
    scan        ranges of a topic over both tiers, and their rows; scan_offsets finds offsets by time and number
    verify      whether tables hold what they say, and the same as Redis where both hold it
"""
