"""Workers as the kernel and other workers see them."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.errors import ErrorCode
from tests.support import processes
from tests.support.batches import batch, values
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client
from tests.support.wire_client import clients_of_two_workers, worker_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker with two workers."""
    with korvet_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running
        assert "Traceback" not in running.log()


def test_a_worker_may_open_as_many_descriptors_as_the_system_allows(broker: Broker) -> None:
    for pid in broker.worker_pids():
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        [soft, hard] = next(line for line in lines if line.startswith("Max open files")).split()[3:5]
        assert soft == hard == str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_a_killed_worker_costs_its_clients_a_reconnect_and_others_nothing(broker: Broker) -> None:
    pids = broker.worker_pids()
    with clients_of_two_workers(broker.address, pids, Client) as (victim, other):
        victim.create("killed")
        records = batch(b"once", producer_id=1, epoch=0, sequence=0)
        first = victim.produce("killed", records)
        assert first.error_code == ErrorCode.NONE
        processes.kill(worker_of(victim, pids), signal.SIGKILL)
        assert victim.is_closed_by_broker()
        # The retry of the batch that may or may not have been answered goes to the other worker.
        assert other.produce("killed", records).base_offset == first.base_offset
        assert values(other.fetch("killed").records) == [b"once"]
    processes.wait_until(lambda: len(set(broker.worker_pids()) - set(pids)) == 1, "another worker")
    processes.wait_until(lambda: _new_worker_serves(broker, pids), "connections of the new worker")


def _new_worker_serves(broker: Broker, old: list[int]) -> bool:
    with Client(broker.address) as client:
        pid = worker_of(client, broker.worker_pids())
        return pid not in old and values(client.fetch("killed").records) == [b"once"]
