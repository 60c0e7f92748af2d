"""What the console may cost: Redis that hangs and many who ask keep nobody from probes and metrics."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import processes
from tests.support.broker import Broker, korvet_broker
from tests.support.console import Caller
from tests.support.topic_client import Client

ASKING = 24


def test_probes_are_answered_while_all_who_ask_wait_for_redis(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as broker, ThreadPoolExecutor(ASKING) as pool:
        with Client(broker.address) as client:
            client.create("topic")
        caller = Caller(broker.ops_address)
        assert caller.asked("topics")["total"] == 1
        server = broker.server_pid()
        processes.kill(server, signal.SIGSTOP)
        try:
            paths = ("/api/groups", "/api/topics", "/api/records?topic=topic", "/api/lake")
            asked = [pool.submit(caller.get, paths[number % len(paths)]) for number in range(ASKING)]
            # Each of them ends by itself, while Redis still hangs, and none before has kept these from an answer.
            assert caller.get("/healthz").status == 200
            assert caller.get("/api/overview").status == 200
            assert caller.get("/").status == 200
            statuses = {each.result().status for each in asked}
        finally:
            processes.kill(server, signal.SIGCONT)
        assert statuses <= {502, 503, 504}
        processes.wait_until(lambda: caller.get("/api/topics").status == 200, "it answers again")


def test_a_worker_that_is_killed_is_asked_again_when_there_is_a_new_one(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as broker:
        caller = Caller(broker.ops_address)
        assert caller.asked("topics")["total"] == 0
        killed = broker.worker_pids()
        processes.kill(killed[0])
        processes.wait_until(lambda: _replaced(broker, killed), "a new worker")
        processes.wait_until(lambda: caller.get("/api/topics").status == 200, "the console has found it")
        assert caller.asked("overview")["restarts"] == 1


def _replaced(broker: Broker, killed: list[int]) -> bool:
    return broker.worker_pids() not in ([], killed)
