"""Redis: every key, every script, and the connections to it. What Redis answers is checked like any other input.

keys             every name in Redis, as functions
scripts          the Lua scripts under lua/ and their digests
url              redis.url, parsed
embedded_socket  the URL of the embedded server, whose socket is in the data directory
replies          replies, and error replies as Korvet's errors
client           commands, pipelines and scripts, for greenlets; reconnects
multiplex        one connection shared by many greenlets
connection       one socket: handshake, RESP, coalesced writes
pubsub           subscriptions to channels, on a connection of their own
blocking         redis-py, for processes without greenlets
server_info      memory and append-only file of the server
"""
