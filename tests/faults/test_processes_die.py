"""A worker hangs, or the supervisor is killed and with it the embedded server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.work import Work
from tests.support import processes
from tests.support.broker import korvet_broker


@pytest.mark.timeout(300)
def test_a_worker_that_stands_still_is_replaced(tmp_path: Path) -> None:
    with korvet_broker(tmp_path) as broker, Work(broker.bootstrap) as work:
        hung = broker.worker_pids()[0]
        processes.kill(hung, signal.SIGSTOP)
        processes.wait_until(lambda: not processes.alive(hung), "the supervisor kills it", 90.0)
        work.goes_on("a worker that stood still was killed")
        assert "event loop hung, killing worker" in broker.log()


@pytest.mark.timeout(300)
def test_the_supervisor_is_killed_and_nothing_of_the_broker_is_left(tmp_path: Path) -> None:
    port = processes.free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    data_dir = tmp_path / "data"
    with (
        korvet_broker(tmp_path / "0", data_dir=data_dir, listen=listen) as first,
        Work(first.bootstrap) as work,
    ):
        broker = first
        for number in range(1, 4):
            left = processes.descendants(broker.pid)
            assert broker.server_pid() in left
            broker.kill()
            processes.wait_until(lambda: not any(map(processes.alive, left)), "workers and Redis end")  # noqa: B023 - called before the loop goes on
            broker = work.enter(korvet_broker(tmp_path / str(number), data_dir=data_dir, listen=listen))
            work.goes_on("the supervisor was killed")
