"""Redis has no memory left, or its disk no room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.faults.servers import Server
from tests.faults.work import Work
from tests.support import processes
from tests.support.broker import korvet_broker

MIB = 1 << 20
DISK_BYTES = 48 * MIB


@pytest.mark.timeout(300)
def test_redis_has_no_memory_left(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "redis") as server,
        server.client() as client,
        korvet_broker(tmp_path / "broker", "--redis-url", server.url) as broker,
        Work(broker.bootstrap) as work,
    ):
        for _ in range(2):
            client.config_set("maxmemory", int(client.info("memory")["used_memory"]))
            processes.wait_until(work.stands_still, "no record is acknowledged any more")
            # Refused by Korvet or by Redis, nothing has left the log to make room.
            assert client.info("stats")["evicted_keys"] == 0
            client.config_set("maxmemory", 0)
            work.goes_on("memory was full")


@pytest.mark.timeout(300)
def test_the_disk_of_the_append_only_file_is_full(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    assert unshare, "unshare is not on PATH (on Debian or Ubuntu: apt-get install util-linux)"
    directory = tmp_path / "redis"
    directory.mkdir()
    # A disk that nobody else sees, in a mount namespace of its own, and without root in a user namespace besides.
    mount = f'mount -t tmpfs -o size={DISK_BYTES} korvet-test "{directory}" && exec "$@"'
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    before = (unshare, *namespaces, "--", "sh", "-c", mount, "sh")
    # The broker has to see the socket, so that lies elsewhere. No rewrite of the file is to make room.
    where = tmp_path / "redis.sock"
    options = ("--auto-aof-rewrite-percentage", "0")
    with Server(directory, *options, before=before, socket=where) as server, server.client() as client:
        disk = Path(f"/proc/{server.pid}/root{directory}")
        ballast = disk / "ballast"
        flags = ("--redis-url", server.url)
        with korvet_broker(tmp_path / "broker", *flags) as broker, Work(broker.bootstrap) as work:
            free = shutil.disk_usage(disk).free
            ballast.write_bytes(bytes(max(free - MIB, 0)))
            processes.wait_until(
                lambda: client.info("persistence")["aof_last_write_status"] != "ok", "the disk is full", 60.0
            )
            processes.wait_until(work.stands_still, "no record is acknowledged any more")
            ballast.unlink()
            work.goes_on("the disk was full")
            assert client.info("persistence")["aof_last_write_status"] == "ok"
        # What was acknowledged is in the file, behind the place where a write failed half-way, too.
        shutil.copytree(disk / "appendonlydir", tmp_path / "copy/appendonlydir")
    with (
        Server(tmp_path / "copy") as again,
        korvet_broker(tmp_path / "again", "--redis-url", again.url) as broker,
    ):
        work.check(broker.bootstrap)
