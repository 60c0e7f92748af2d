"""Idempotent producers while a worker is killed every second: nothing is lost, doubled or out of order."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest
import redis

from tests.support import processes, reading
from tests.support.broker import Broker, korvet_broker
from tests.support.load import Load

PARTITIONS = 3
SECONDS_OF_LOAD = 20
SETTLED_SECONDS = 0.15
PAUSE_MS = 60_000


def written(stored: redis.Redis, topic: str) -> int:
    """Return the records in all streams of a topic."""
    return sum(int(stored.xlen(f"korvet:{topic}:{index}")) for index in range(PARTITIONS))


def progress(stored: redis.Redis, load: Load) -> tuple[int, int]:
    return written(stored, load.topic), len(load.acknowledged)


def written_without_an_answer(stored: redis.Redis, load: Load) -> int:
    """Return how many records of a load are in the log though no answer came for them; 0 where it goes on.

    Its records go through one connection. While a worker is stopped, a load whose records neither reach the log
    nor are acknowledged is that worker's, and written but not acknowledged records are in its requests.
    """
    before = progress(stored, load)
    time.sleep(SETTLED_SECONDS)
    after = progress(stored, load)
    return after[0] - after[1] if after == before else 0


def is_append_held(stored: redis.Redis) -> bool:
    """Return whether Redis, which takes no writes now, holds back the script of an append."""
    return any(
        "b" in client["flags"] and client["cmd"].startswith("evalsha") for client in stored.client_list()
    )


def kill_one_that_owes_an_answer(broker: Broker, stored: redis.Redis, load: Load) -> int:
    """Kill a worker in the middle of requests of this load; returns how many of its records they hold.

    Redis holds back all writes until the worker is stopped: the answer to an append is too fast to be met by chance.
    """
    deadline = time.monotonic() + processes.WAIT_SECONDS_MAX
    for turn in itertools.count():
        assert time.monotonic() < deadline, f"no worker was met with requests of {load.topic} in flight"
        pids = broker.worker_pids()
        if not pids:
            time.sleep(0.02)
            continue
        pid = pids[turn % len(pids)]
        stored.client_pause(PAUSE_MS, all=False)
        processes.wait_until(lambda: is_append_held(stored), "an append waits in Redis")
        processes.kill(pid, signal.SIGSTOP)
        processes.wait_until(lambda: processes.is_stopped(pid), "the worker is stopped")  # noqa: B023 - used at once
        stored.client_unpause()
        unanswered = written_without_an_answer(stored, load)
        if unanswered > 0:
            processes.kill(pid)
            processes.wait_until(lambda: not processes.alive(pid), "the worker is gone")  # noqa: B023 - called before the loop goes on
            return unanswered
        processes.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError


@pytest.mark.smoke
def test_a_worker_killed_every_second_costs_idempotent_producers_no_record_and_no_double(
    tmp_path: Path,
) -> None:
    with (
        korvet_broker(tmp_path, workers=2) as broker,
        redis.Redis(unix_socket_path=str(broker.data_dir / "server.sock")) as stored,
    ):
        loads = [
            Load(broker.bootstrap, "librdkafka", PARTITIONS),
            Load(broker.bootstrap, "kafka-python", PARTITIONS, "kafka-python"),
        ]
        for load in loads:
            reading.create_topic(broker.bootstrap, load.topic, PARTITIONS)
            load.start()
        processes.wait_until(lambda: all(len(load.acknowledged) > 100 for load in loads), "both have begun")
        kills: list[int] = []
        begun = time.monotonic()
        for number in range(SECONDS_OF_LOAD):
            time.sleep(max(0.0, begun + number - time.monotonic()))
            kills.append(kill_one_that_owes_an_answer(broker, stored, loads[number % 2]))
        for load in loads:
            load.end()
        assert len(kills) == SECONDS_OF_LOAD
        assert min(kills) > 0
        noticed = 'how="signal SIGKILL"'
        processes.wait_until(lambda: broker.log().count(noticed) >= SECONDS_OF_LOAD, "each is noticed")
        assert broker.log().count(noticed) == SECONDS_OF_LOAD
        for load in loads:
            load.check(reading.read_all(broker.bootstrap, load.topic, range(PARTITIONS), load.sent))
        processes.wait_until(lambda: len(broker.worker_pids()) == 2, "both workers are back")
