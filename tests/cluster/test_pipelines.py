"""The rows and leases of pipelines: their content, the running ones, and the identity of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from korvet.cluster.pipelines import (
    LEASE_MS,
    PipelineProcess,
    PipelineStatus,
    PipelineStore,
    QueryPosition,
    QueryStatus,
)
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.permissions import user_line
from tests.support import processes
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_servers import connected, embedded_server

KEYS = Keys("korvet")
ROW = "korvet:pipelines"
OWN = str(PipelineProcess.own())


def status(name: str = "sales", **fields: Any) -> PipelineStatus:
    row = PipelineStatus(name=name, state="running", since_ms=2, started_ms=1, holder=OWN)
    return msgspec.structs.replace(row, **fields)


@pytest.fixture
def store(redis: Redis) -> PipelineStore:
    return PipelineStore(redis, KEYS)


def test_a_row_is_read_as_it_was_written(store: PipelineStore) -> None:
    query = QueryStatus(
        batch=3,
        ended_ms=9,
        records=7,
        duration_ms=5,
        positions={"orders": QueryPosition("id", {0: 8, 11: 2})},
    )
    rows = [status("b", state="stopped", queries={"main": query}), status("a", state="failed", error="no")]
    for row in rows:
        store.write(row)
    assert store.read() == rows[::-1]
    store.write(status("a", state="completed"))
    assert [row.state for row in store.read()] == ["completed", "stopped"]


def test_a_pipeline_whose_process_has_no_lease_is_lost(store: PipelineStore, raw_redis: Any) -> None:
    for name in ("held", "ended", "taken", "stopped"):
        store.write(status(name, state="stopped" if name == "stopped" else "running"))
    for name, holder in (("held", OWN), ("taken", "another/1/boot:1/1")):
        assert store.lease(name).acquire(holder, LEASE_MS)
    states = {row.name: row.state for row in store.read()}
    assert states == {"held": "running", "ended": "lost", "taken": "lost", "stopped": "stopped"}
    assert 0 < raw_redis.pttl(KEYS.pipeline_lease("held")) <= LEASE_MS == 30_000
    # Only as it is shown: its process may come back.
    assert b'"state":"running"' in raw_redis.hget(ROW, "ended")


def test_a_row_that_cannot_be_read_hides_no_other(store: PipelineStore, raw_redis: Any) -> None:
    store.write(status(state="stopped"))
    raw_redis.hset(ROW, mapping={"a": "no JSON", "z": '{"name": "z"}'})
    assert [row.name for row in store.read()] == ["sales"]


def test_a_pipeline_is_forgotten_with_all_its_keys(store: PipelineStore, raw_redis: Any) -> None:
    assert store.lease("sales").acquire(OWN, LEASE_MS)
    store.write(status())
    store.lease("sales").release(OWN)
    store.forget("sales")
    assert store.read() == []
    assert raw_redis.keys() == []


@pytest.mark.slow
def test_on_a_cluster_rows_and_leases_lie_on_any_node(redis_cluster: RedisCluster) -> None:
    redis = blocking_redis(redis_cluster.url, timeout_ms=10_000, connect_timeout_ms=10_000)
    store = PipelineStore(redis, KEYS)
    names = [f"p{number}" for number in range(20)]
    assert len({redis.node_of(KEYS.pipeline_lease(name)).name for name in names}) == 3
    for name in names:
        assert store.lease(name).acquire(OWN, LEASE_MS)
        store.write(status(name))
    assert {(row.name, row.state) for row in store.read()} == {(name, "running") for name in names}
    for name in names:
        store.lease(name).release(OWN)
        store.forget(name)
    assert store.read() == []
    redis.close()


@pytest.mark.slow
def test_the_user_that_korvet_prints_may_do_all_of_it() -> None:
    with embedded_server() as url, connected(url) as admin:
        admin.execute_command("ACL", "SETUSER", *user_line("korvet", "korvet", "secret").split()[1:])
        redis = blocking_redis(
            url.replace("unix://", "unix://korvet:secret@"),
            timeout_ms=10_000,
            connect_timeout_ms=10_000,
        )
        store = PipelineStore(redis, KEYS)
        assert redis.call("PING") == b"PONG"
        assert store.lease("sales").acquire(OWN, LEASE_MS)
        store.write(status())
        assert [row.state for row in store.read()] == ["running"]
        store.lease("sales").release(OWN)
        store.forget("sales")
        assert store.read() == []
        assert admin.acl_log() == []
        redis.close()


def test_of_a_topic_that_several_queries_read_the_smallest_positions_count() -> None:
    row = status(
        queries={
            "one": QueryStatus(
                positions={"a": QueryPosition("x", {0: 5, 1: 9}), "b": QueryPosition("y", {0: 1})}
            ),
            "two": QueryStatus(positions={"a": QueryPosition("x", {0: 7, 1: 2, 2: 4})}),
        }
    )
    assert row.positions() == {"a": QueryPosition("x", {0: 5, 1: 2, 2: 4}), "b": QueryPosition("y", {0: 1})}


def test_the_last_batch_is_that_of_the_query_which_writes_the_target() -> None:
    batches = {"main": QueryStatus(batch=2, ended_ms=5), "dead_letters_a": QueryStatus(batch=9, ended_ms=6)}
    assert status(queries=batches).last_batch.batch == 2
    assert status().last_batch.ended_ms is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.mark.slow
def test_a_process_is_known_by_machine_and_start_not_by_its_number_alone(
    sleeper: subprocess.Popen[bytes],
) -> None:
    own = PipelineProcess.own()
    assert PipelineProcess.parse(str(own)) == own
    assert (own.is_here, own.has_ended) == (True, False)
    # A process that got the number of one that ended.
    assert own._replace(start=f"{own.start}0").has_ended
    assert own._replace(id=sleeper.pid, start=_started(sleeper.pid)).has_ended is False
    elsewhere = own._replace(machine="another", id=sleeper.pid, start="0")
    assert (elsewhere.is_here, elsewhere.has_ended) == (False, False)
    # Of process 1 signals of other users are refused; it lives.
    first = own._replace(id=1, start=_started(1))
    assert not first.has_ended


def _started(number: int) -> str:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.mark.slow
def test_a_killed_process_has_ended_before_its_parent_has_seen_it(sleeper: subprocess.Popen[bytes]) -> None:
    process = PipelineProcess.own()._replace(id=sleeper.pid, start=_started(sleeper.pid))
    assert not process.has_ended
    os.kill(sleeper.pid, signal.SIGKILL)
    processes.wait_until(lambda: process.has_ended, "it has ended")
    sleeper.wait()
    assert process.has_ended
