"""A Redis that hangs and many requests to the console delay neither probes nor metrics."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.broker import korvet_broker
from tests.support.console import Caller
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

REQUESTS = 24


def test_probes_are_answered_while_requests_wait_for_redis(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as broker, ThreadPoolExecutor(REQUESTS) as pool:
        with Client(broker.address) as client:
            client.create("topic")
        caller = Caller(broker.ops_address)
        assert caller.data("topics")["total"] == 1
        server = broker.server_pid()
        processes.kill(server, signal.SIGSTOP)
        try:
            paths = ("/api/groups", "/api/topics", "/api/records?topic=topic", "/api/lake")
            sent = [pool.submit(caller.get, paths[number % len(paths)]) for number in range(REQUESTS)]
            # Each request ends within its time limit, while Redis still hangs; these are answered meanwhile.
            assert caller.get("/healthz").status == 200
            assert caller.get("/api/overview").status == 200
            assert caller.get("/").status == 200
            statuses = {record.result().status for record in sent}
        finally:
            processes.kill(server, signal.SIGCONT)
        assert statuses <= {502, 503, 504}
        processes.wait_until(lambda: caller.get("/api/topics").status == 200, "it answers again")


def test_the_console_finds_a_new_worker_after_one_was_killed(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as broker:
        caller = Caller(broker.ops_address)
        assert caller.data("topics")["total"] == 0
        killed = broker.worker_pids()
        processes.kill(killed[0])
        processes.wait_until(lambda: broker.worker_pids() not in ([], killed), "a new worker")
        processes.wait_until(lambda: caller.get("/api/topics").status == 200, "the console has found it")
        assert caller.data("overview")["restarts"] == 1
