"""What Redis tells of its memory and of its append-only file, and the request to write that file anew.

Knows INFO and BGREWRITEAOF; nothing of limits or of who produces. A field that a server does not tell counts as 0:
no memory limit, no file.
"""

from __future__ import annotations

from typing import NamedTuple

from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.replies import RespError, value_of


class ServerUsage(NamedTuple):
    """One reading.

    Sizes are in bytes. `memory_used` is what the server holds against `memory_limit` (0 is none); `policy` is its
    maxmemory-policy, "" where it does not say; `file_bytes` is its append-only file, `rewriting` whether that is being
    written anew.
    """

    memory_used: int
    memory_limit: int
    policy: str
    file_bytes: int
    rewriting: bool


class UsageStore:
    """Reads the usage of one worker's Redis; of its file only where that is the embedded server's (`with_file`)."""

    def __init__(self, redis: Redis, *, with_file: bool) -> None:
        self._redis = redis
        self._questions = [("INFO", "memory"), *([("INFO", "persistence")] if with_file else [])]

    def read(self) -> ServerUsage:
        """Ask once; raises StorageUnavailableError where Redis is away or refuses to tell."""
        told: dict[str, str] = {}
        for reply in self._redis.pipeline(self._questions):
            if isinstance(reply, RespError):
                raise StorageUnavailableError(f"Redis does not tell its usage: {reply}")
            told |= _fields(value_of(reply))
        return ServerUsage(
            # Buffers of replicas and of the append-only file do not count, as for the server itself.
            memory_used=_number(told, "used_memory") - _number(told, "mem_not_counted_for_evict"),
            memory_limit=_number(told, "maxmemory"),
            policy=told.get("maxmemory_policy", ""),
            file_bytes=_number(told, "aof_current_size"),
            rewriting=_number(told, "aof_rewrite_in_progress") + _number(told, "aof_rewrite_scheduled") > 0,
        )

    def rewrite_file(self) -> str:
        """Have the append-only file written anew, with what is still there; returns why not, or "".

        Raises StorageUnavailableError where Redis is away.
        """
        try:
            self._redis.call("BGREWRITEAOF")
        except RespError as error:
            return str(error)
        return ""


def _fields(reply: object) -> dict[str, str]:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0
