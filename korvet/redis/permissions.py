"""What Korvet's user in Redis must be allowed (ACL): each key of a namespace, and these commands.

`lua/check/permissions` tries them at the start of a broker.
"""

from __future__ import annotations

import hashlib

COMMANDS = (
    *("auth", "select", "ping", "info", "config|get", "client|setname"),
    *("cluster|slots", "cluster|info", "asking", "evalsha", "script|load", "multi", "exec", "wait"),
    *("spublish", "ssubscribe", "sunsubscribe", "time", "type", "exists", "del", "unlink"),
    *("get", "set", "setnx", "incr", "incrby", "pttl"),
    *("hget", "hmget", "hgetall", "hset", "hincrby", "hexists", "hdel", "hkeys", "hlen", "hscan"),
    *("xack", "xadd", "xclaim", "xdel", "xgroup|create", "xgroup|delconsumer", "xgroup|destroy"),
    *("xgroup|setid", "xinfo|groups", "xinfo|stream", "xlen", "xpending", "xrange", "xrevrange"),
    *("xsetid", "xtrim"),
    *("zadd", "zcard", "zcount", "zpopmin", "zrange", "zrangebyscore", "zrem", "zremrangebyrank"),
    *("zremrangebyscore", "zrevrange", "zrevrangebyscore", "zscan", "zscore"),
)


def rules(namespace: str) -> list[str]:
    """Return the rules of a user that may do what Korvet does in a namespace, and nothing else."""
    keys = ["resetkeys", f"~{namespace}:*", f"~{{{namespace}:*"]
    return [*keys, "resetchannels", f"&{namespace}:*", "-@all", *(f"+{command}" for command in COMMANDS)]


def user_line(user: str, namespace: str, password: str | None) -> str:
    """Return a line of an `aclfile`, with the password's hash; without one nobody can log in as this user yet."""
    secret = "resetpass" if password is None else f"#{hashlib.sha256(password.encode()).hexdigest()}"
    return " ".join(["user", user, "on", secret, *rules(namespace)])
