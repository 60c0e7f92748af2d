"""Redis: every key, every script, and the connections to it. What Redis answers is checked like any other input.

keys             every name in Redis, as functions
scripts          the Lua scripts under lua/ and their digests
url              redis.url, parsed; the URL of the embedded server
replies          replies, and error replies as Korvet's errors
client           commands, pipelines and scripts, for greenlets; reconnects
connection       one socket: handshake, RESP, coalesced writes
sentinel         the way to a server, or to the master that Sentinels name
pubsub           subscriptions to channels, and waiting for their messages
subscriber       the connection to one node for that
blocking         redis-py, for processes without greenlets
peer             what answers at an address that is no Redis
"""
