"""Redis: every key, every script, and the connections to it.

    keys         every name in Redis, as functions
    scripts      the Lua scripts under lua/ and their digests
    url          redis.url, parsed
    replies      replies, and error replies as Korvet's errors
    client       commands, pipelines and scripts; reconnects
    multiplex    one connection shared by many greenlets
    connection   one socket: handshake, RESP, coalesced writes
    pubsub       subscriptions to channels, on a connection of their own
    server_info  memory and append-only file of the server

Knows Redis and nothing of Kafka's wire. What Redis answers is checked like any other input.
"""
