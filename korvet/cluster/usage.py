"""What the store uses: memory and append-only file of the server (INFO), and the disk under the embedded one.

A field that a server does not report counts as 0: no memory limit, no file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from korvet.errors import StorageUnavailableError
from korvet.redis.replies import RespError, value_of

if TYPE_CHECKING:  # the supervisor reads a disk too, and loads no gevent
    from korvet.redis.client import Redis, RedisNode

_FILE_DIRECTORY = "appendonlydir"  # the server's own name for it (appenddirname)

DISK_FREE_BYTES_MIN = 64 * 1024 * 1024
"""Left on the embedded server's disk: what trims and deletes the log is written to the append-only file too."""

DISK_BYTES_MIN = 256 * 1024 * 1024
"""Free at the start of an embedded server at least, or it says that there is little room."""


class Share(NamedTuple):
    """How much of a resource is used, 1.0 is all, and the sentence that says so."""

    used: float
    reason: str


UNUSED = Share(0.0, "")


class ServerUsage(NamedTuple):
    """One reading, in bytes.

    `memory_used` counts against `memory_limit` (0: none); `policy` is maxmemory-policy, "" if it is not reported;
    `file_bytes` is the size of the append-only file, `rewriting` whether a rewrite of it is scheduled or under way,
    `write_failed` whether the last write to it failed, `rewrites` how many were begun since the server's start, and
    `rewrite_failed` whether the last one that ended did.
    """

    memory_used: int
    memory_limit: int
    policy: str
    file_bytes: int
    rewriting: bool
    write_failed: bool = False
    rewrites: int = 0
    rewrite_failed: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> ServerUsage:
        rewriting = _number(fields, "aof_rewrite_in_progress") + _number(fields, "aof_rewrite_scheduled")
        return cls(
            # Buffers of replicas and of the append-only file do not count, as for the server itself.
            memory_used=_number(fields, "used_memory") - _number(fields, "mem_not_counted_for_evict"),
            memory_limit=_number(fields, "maxmemory"),
            policy=fields.get("maxmemory_policy", ""),
            file_bytes=_number(fields, "aof_current_size"),
            rewriting=rewriting > 0,
            write_failed=fields.get("aof_last_write_status") == "err",
            rewrites=_number(fields, "aof_rewrites"),
            rewrite_failed=fields.get("aof_last_bgrewrite_status") == "err",
        )


def memory_share(usage: ServerUsage, name: str = "Redis") -> Share:
    """Return how much of the memory of the server `name` is used: nothing if it has no limit."""
    if not usage.memory_limit:
        return UNUSED
    reason = f"{name} has {usage.memory_used} bytes in memory, and its maxmemory is {usage.memory_limit}"
    return Share(usage.memory_used / usage.memory_limit, reason)


def disk_share(used_bytes: int, free_bytes: int, max_bytes: int) -> Share:
    """Return how much is used of the data directory's limit (`max_bytes`, 0 is none) and of its disk."""
    reason = (
        f"the disk of the data directory has {free_bytes} bytes left, and {DISK_FREE_BYTES_MIN} are kept free"
    )
    of_disk = Share(DISK_FREE_BYTES_MIN / max(free_bytes, 1), reason)
    if not max_bytes:
        return of_disk
    reason = f"the data directory has {used_bytes} bytes, and embedded.disk.max.bytes is {max_bytes}"
    return max(of_disk, Share(used_bytes / max_bytes, reason))


_REWRITING = "rewriting already in progress"
"""Redis' answer to BGREWRITEAOF then (its aof.c); Valkey's too."""


class UsageStore:
    """Reads the usage of one server; of its file only for the embedded one (`with_file`)."""

    def __init__(self, redis: Redis | RedisNode, *, with_file: bool) -> None:
        self._redis = redis
        self._commands = [("INFO", "memory"), *([("INFO", "persistence")] if with_file else [])]

    def read(self) -> ServerUsage:
        """Ask once; raises StorageUnavailableError if Redis is away or refuses INFO."""
        fields: dict[str, str] = {}
        for reply in self._redis.pipeline(self._commands):
            if isinstance(reply, RespError):
                raise StorageUnavailableError(f"Redis refused INFO: {reply}")
            fields |= _fields(value_of(reply))
        return ServerUsage.of(fields)

    def rewrite_file(self) -> str:
        """Start a rewrite of the append-only file if none is under way; returns why Redis refused, or "".

        Raises StorageUnavailableError if Redis is away.
        """
        try:
            self._redis.call("BGREWRITEAOF")
        except RespError as error:
            # Each worker starts one for the same reason at the same time.
            return "" if _REWRITING in str(error) else str(error)
        return ""


def _fields(reply: object) -> dict[str, str]:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0


class Disk:
    """The disk that holds one data directory.

    Each call costs a few system calls on a handful of files: a directory that belongs to others is not entered.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def used_bytes(self) -> int:
        """Return the bytes of the files in the directory and in that of the append-only file; raises OSError."""
        total = _bytes_in(self._directory)
        with suppress(FileNotFoundError):  # the server has not made it yet
            total += _bytes_in(self._directory / _FILE_DIRECTORY)
        return total

    def needed_bytes(self, max_bytes: int) -> int:
        """Return how many bytes should be free; raises OSError.

        They are for a rewrite of the file beside itself, and for what `max_bytes` (0: no limit) still allows.
        """
        used = self.used_bytes()
        return max(DISK_BYTES_MIN, used + DISK_FREE_BYTES_MIN, max_bytes - used)

    def free_bytes(self) -> int:
        """Return the bytes of the disk that are free for this process; raises OSError."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize


def _bytes_in(directory: Path) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            # The server replaces its files: one may vanish between the listing and its stat.
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
