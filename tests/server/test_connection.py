"""Connections with limits other than the defaults: none on idleness, few on memory, and an end by SIGTERM."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.fetch import FetchResponse
from tests.support import processes, redis_servers
from tests.support.batches import values
from tests.support.broker import Broker, korvet_broker, steady_broker
from tests.support.peers import lines_about
from tests.support.topic_client import Client, fetch_request
from tests.support.wire_client import request_frame

pytestmark = pytest.mark.slow

SETTINGS = {
    "connections.max.idle.ms": -1,
    "connection.receive.timeout.ms": 6_000,
    "queued.max.request.bytes": 1_000_000,
    "socket.request.max.bytes": 1_000_000,
    "request.control.max.bytes": 1_000_000,
    "max.connections": 30,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with steady_broker(tmp_path_factory.mktemp("broker"), settings=SETTINGS, workers=1) as running:
        yield running


def test_without_a_limit_on_idleness_a_connection_is_served_and_a_begun_frame_is_due(
    broker: Broker, client: Client
) -> None:
    assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    request = request_frame(ApiVersionsRequest(), 0)
    client.send_bytes(request + request[:3])
    assert client.receive_frame()
    assert client.is_closed_by_broker()
    [line] = lines_about(broker, client)
    assert "too slow" in line


def test_a_worker_may_open_as_many_descriptors_as_the_system_allows(broker: Broker) -> None:
    [pid] = broker.worker_pids()
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    [soft, hard] = next(line for line in lines if line.startswith("Max open files")).split()[3:5]
    assert soft == hard == str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_a_worker_that_ends_answers_what_it_has_begun_and_resets_no_connection(tmp_path: Path) -> None:
    """A reset takes answers with it that are on their way: a producer would send again what was appended."""
    with (
        korvet_broker(tmp_path, workers=1) as broker,
        Client(broker.address) as client,
        Client(broker.address) as idle,
    ):
        client.create("ending")
        client.append("ending", b"v")
        assert idle.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        client.send(fetch_request("ending", max_wait_ms=60_000, min_bytes=10_000), 11, correlation_id=5)
        with redis_servers.connected(broker.redis_url) as stored:
            processes.wait_until(lambda: redis_servers.listeners(stored, "korvet:ending:0"), "a parked fetch")
        client.send(ApiVersionsRequest(), 0, correlation_id=6)
        broker.signal(signal.SIGTERM)
        [answer] = client.receive(FetchResponse, 11, correlation_id=5).responses
        assert values(answer.partitions[0].records) == [b"v"]
        assert client.socket.recv(1) == idle.socket.recv(1) == b""
        client.close()
        assert broker.process.wait(30) == 0
        assert "Traceback" not in broker.log()
        assert "cut off" not in broker.log()
