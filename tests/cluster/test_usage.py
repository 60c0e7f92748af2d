"""Memory and append-only file as a server reports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from korvet.cluster.usage import Disk, UsageStore
from korvet.errors import StorageUnavailableError
from korvet.redis.client import Redis
from korvet.redis.replies import MemoryFullError
from tests.support import processes

# A store reads one node; tests/server/test_nodes_of_redis.py has several.
pytestmark = pytest.mark.embedded


def test_memory_limit_and_policy_are_the_server_s(redis: Redis, raw_redis: Any) -> None:
    # What tests before this one have left is freed in the background.
    processes.wait_until(lambda: not raw_redis.info("memory")["lazyfree_pending_objects"], "memory is free")
    raw_redis.config_set("maxmemory", 10**9)
    raw_redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        before = UsageStore(redis, with_file=False).read()
        raw_redis.set("much", b"x" * 10_000_000)
        usage = UsageStore(redis, with_file=False).read()
    finally:
        raw_redis.config_set("maxmemory", 0)
        raw_redis.config_set("maxmemory-policy", "noeviction")
    assert (usage.memory_limit, usage.policy) == (10**9, "allkeys-lru")
    assert usage.memory_used >= before.memory_used + 9_000_000
    assert (usage.file_bytes, usage.rewriting) == (0, False)
    assert UsageStore(redis, with_file=False).read().memory_limit == 0


def test_a_file_is_reported_and_rewritten(redis: Redis, raw_redis: Any) -> None:
    store = UsageStore(redis, with_file=True)

    def at_rest() -> bool:
        return not store.read().rewriting

    raw_redis.config_set("appendonly", "yes")
    try:
        processes.wait_until(at_rest, "the file is begun")
        raw_redis.set("much", b"x" * 1_000_000)
        assert store.read().file_bytes >= 1_000_000
        raw_redis.delete("much")
        assert store.rewrite_file() == ""
        processes.wait_until(at_rest, "the file is rewritten")
        assert store.read().file_bytes < 1_000_000
    finally:
        raw_redis.config_set("appendonly", "no")


def test_a_rewrite_under_way_is_not_begun_again(redis: Redis, raw_redis: Any) -> None:
    store = UsageStore(redis, with_file=True)
    raw_redis.set("slow", "to write")
    raw_redis.config_set("rdb-key-save-delay", 60_000_000)
    try:
        assert store.rewrite_file() == ""
        assert store.read().rewriting
        assert store.rewrite_file() == "", "another worker has begun it for the same reason"
    finally:
        raw_redis.config_set("rdb-key-save-delay", 0)
        raw_redis.config_set("appendonly", "yes")
        raw_redis.config_set("appendonly", "no")  # ends who is writing


def test_a_user_without_permission_gets_the_error_of_an_outage(redis_server: str, raw_redis: Any) -> None:
    raw_redis.acl_setuser("blind", enabled=True, passwords=["+word"], keys="*", categories=["-@all"])
    url = redis_server.replace("unix://", "unix://blind:word@")
    blind = Redis(url, timeout_ms=5000, connect_timeout_ms=5000)
    try:
        with pytest.raises(StorageUnavailableError, match="may not"):
            UsageStore(blind, with_file=True).read()
    finally:
        blind.close()
        raw_redis.acl_deluser("blind")


def test_a_server_at_its_limit_says_so_in_an_error_of_its_own(redis: Redis, raw_redis: Any) -> None:
    raw_redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(MemoryFullError, match="maxmemory"):
            redis.call("SET", "key", "value")
    finally:
        raw_redis.config_set("maxmemory", 0)


def test_a_directory_counts_with_the_append_only_file_and_without_what_others_keep_there(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path)
    assert disk.used_bytes() == 0
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "server.log").write_bytes(b"x" * 10)
    (tmp_path / "appendonlydir" / "base").write_bytes(b"x" * 1000)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "large").write_bytes(b"x" * 10_000)
    (tmp_path / "elsewhere").symlink_to("/")
    assert disk.used_bytes() == 1010
    assert disk.free_bytes() > 0


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        Disk(tmp_path / "gone").used_bytes()
