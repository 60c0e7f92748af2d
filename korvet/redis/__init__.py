"""Redis: every key, every script, and the connections to it. What Redis answers is checked like any other input.

keys             every name in Redis, as functions
scripts          the Lua scripts under lua/ and their digests
url              redis.url, parsed; the URL of the embedded server
replies          replies, and error replies as Korvet's errors
client           commands, pipelines and scripts, over lanes of one client in the core
write_watch      to which nodes a change goes
base_driver      what the client in the core asks for, and TLS
driver           gevent under it
blocking_driver  for threads that may block
observer         what is reported to metrics
slots            slots of a cluster, and how keys are spread over them
pubsub           subscriptions to channels, and waiting for their messages
blocking         redis-py, for processes without greenlets
peer             what answers at an address that is no Redis
"""
