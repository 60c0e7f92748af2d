"""Redis: every key, every script, and the connections to it.

    keys           every name in Redis, as functions
    scripts        the Lua scripts under lua/ and their digests
    resp           one multiplexed connection: commands, pipelines, scripts
    subscriptions  one pub/sub connection: news of appends
    entry          a record as a stream entry, and back
    log_store, topic_store, topic_removal, producer_store    one typed function per script or question

Knows Redis and nothing of Kafka's wire; what Redis answers is checked like any other input.
"""
