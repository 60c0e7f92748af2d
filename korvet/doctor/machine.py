"""The machine of a broker: descriptors, queues, cores, the kernel's memory, the clock and the disk.

Files of /proc and /sys that are not there yield no finding.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from korvet.config.definition import INT32_MAX
from korvet.config.settings import Settings
from korvet.config.values import is_local
from korvet.redis import url as redis_url
from korvet.server.finding import Finding, error, ok, warning
from korvet.server.supervisor import startup

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")

_FILES_MIN = 65_536
_FILES_BESIDE = 128
"""Descriptors of a worker that are no connections of clients."""
_BACKLOG = 4096
"""As in server/net/listener.py, which imports gevent."""
CLOCK_WARNING_S = 1.0
_DISK_ERROR_BYTES, _DISK_WARNING_BYTES = 256 * 2**20, 2 * 2**30


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what is true of this machine, for a broker with these settings."""
    yield open_files(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from backlog(SOMAXCONN)
    workers, cores = startup.worker_count(settings), os.cpu_count() or 1
    if workers > cores:
        yield warning(
            "workers",
            f"{workers} on {cores} cores: workers wait for each other",
            f"set workers to 0 (one for each core), or to {cores} at most",
        )
    servers = redis_url.parse_url(settings.redis_url).addresses if settings.redis_url else ()
    if all(is_local(server.host or "localhost") for server in servers):
        yield from kernel_memory(HUGE_PAGES, OVERCOMMIT)
    if not settings.redis_url:
        yield disk(settings)


def open_files(settings: Settings, hard: int) -> Finding:
    """Say whether the limit of descriptors, `hard`, is enough for a worker's connections."""
    advice = "raise the limit: LimitNOFILE in the unit, `ulimit -Hn`, or --ulimit nofile of the container"
    limited = settings.max_connections < INT32_MAX
    if hard == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    if limited and settings.max_connections + _FILES_BESIDE > hard:
        said = f"{hard} for each worker: too few for max.connections ({settings.max_connections}) and its own files"
        return error("open files", said, f"{advice}; or lower max.connections")
    if not limited and hard < _FILES_MIN:
        return warning(
            "open files", f"{hard} for each worker: a worker takes fewer client connections than that", advice
        )
    return ok("open files", f"{hard} for each worker")


def backlog(path: Path) -> Iterator[Finding]:
    """Say whether the kernel lets enough connections wait for a worker; `path` is its setting."""
    with contextlib.suppress(OSError, ValueError):
        most = int(path.read_text())
        said = f"up to {most} connections wait to be accepted"
        if most < _BACKLOG:
            said += ": if more clients connect at once, they are refused"
            yield warning("somaxconn", said, f"sysctl -w net.core.somaxconn={_BACKLOG}")
        else:
            yield ok("somaxconn", said)


def kernel_memory(huge_pages: Path, overcommit: Path) -> Iterator[Finding]:
    """Say what of the kernel's memory a Redis on this machine suffers from; the paths are its settings."""
    with contextlib.suppress(OSError):
        if "[always]" in huge_pages.read_text():
            said = "transparent huge pages are on: each fork of Redis takes longer and costs memory"
            yield warning("huge pages", said, f"echo madvise > {huge_pages}")
        else:
            yield ok("huge pages", "off, or on only for programs that ask for them")
    with contextlib.suppress(OSError):
        if overcommit.read_text().strip() != "1":
            said = "the kernel may refuse Redis the fork that it needs to rewrite its append-only file"
            yield warning("overcommit", said, "sysctl -w vm.overcommit_memory=1")
        else:
            yield ok("overcommit", "the kernel lets Redis fork at any time")


def clock(client: redis.Redis, now: Callable[[], float] = time.time) -> Finding:
    """Say how far this machine's clock, `now`, is from Redis', which decides; both in seconds since 1970."""
    before = now()
    seconds, microseconds = client.time()
    after = now()
    difference_s = seconds + microseconds / 1e6 - (before + after) / 2
    said = f"{abs(difference_s):.3f} s {'behind' if difference_s > 0 else 'ahead of'} Redis' clock"
    if abs(difference_s) > CLOCK_WARNING_S + (after - before):
        return warning("clock", said, "keep the clocks of all machines in step (chrony, systemd-timesyncd)")
    return ok("clock", said)


def disk(settings: Settings) -> Finding:
    path = Path(settings.data_dir).expanduser().absolute()
    there = next(item for item in (path, *path.parents) if item.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        said = f"this user cannot write to {there}"
        return error("data.dir", said, "choose another data.dir")
    usage = shutil.disk_usage(there)
    log = sum(_size(item) for item in path.glob("appendonlydir/*"))
    said = f"{usage.free / 2**30:.1f} GiB free at {there}"
    if usage.free < _DISK_ERROR_BYTES:
        return error("data.dir", said, "free disk space: the embedded server refuses writes on a full disk")
    if settings.embedded_disk_max_bytes > usage.free + log:
        limit = settings.embedded_disk_max_bytes / 2**30
        said += f", less than embedded.disk.max.bytes ({limit:.1f} GiB)"
        return warning("data.dir", said, "free disk space, or lower the limit")
    if usage.free < max(_DISK_WARNING_BYTES, log):
        said += f"; a rewrite of the append-only file needs {log / 2**30:.1f} GiB more"
        return warning("data.dir", said, "free disk space")
    return ok("data.dir", said)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
