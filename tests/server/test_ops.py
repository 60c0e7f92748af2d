"""/healthz, /readyz and /metrics of a broker that is ready, draining, without Redis, or missing workers."""

from __future__ import annotations

import http.client
import json
import platform
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from korvet import __version__
from tests.support import processes
from tests.support.broker import Broker, echo_broker

pytestmark = pytest.mark.slow


def get(broker: Broker, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(broker.ops_address, timeout=20)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with echo_broker(tmp_path_factory.mktemp("broker"), workers=2) as broker:
        yield broker


def test_a_ready_broker_is_healthy_ready_and_has_metrics(running: Broker) -> None:
    assert get(running, "/healthz") == (200, b'{"status": "ok"}\n')
    status, body = get(running, "/readyz")
    assert status == 200
    assert json.loads(body)["workers"]["accepting"] == 2
    status, body = get(running, "/metrics")
    assert status == 200
    assert (
        f'korvet_build_info{{format="2",python="{platform.python_version()}",version="{__version__}"}} 1.0'.encode()
        in body
    )
    assert b'korvet_workers{state="accepting"} 2.0' in body


def test_head_answers_without_a_body_and_all_else_is_refused(running: Broker) -> None:
    assert get(running, "/healthz", "HEAD") == (200, b"")
    assert get(running, "/nothing") == (404, b"Not Found: the pages are /, /healthz, /readyz, /metrics\n")
    assert get(running, "/healthz", "DELETE") == (405, b"Method Not Allowed: /healthz is only read\n")
    status, body = get(running, "/healthz", "PUT")
    assert status == 501
    assert b"<" not in body


def workers(broker: Broker) -> dict[str, int]:
    counts: dict[str, int] = json.loads(get(broker, "/readyz")[1])["workers"]
    return counts


def test_workers_that_were_replaced_are_not_counted_as_dead(tmp_path: Path) -> None:
    whole = {"starting": 0, "accepting": 2, "draining": 0, "dead": 0}
    with echo_broker(tmp_path, workers=2) as broker:
        before = broker.worker_pids()
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: not set(before) & set(broker.worker_pids()), "the workers are replaced")
        processes.wait_until(
            lambda: "child=ops pid" in broker.log().partition("are replaced")[2], "a new ops"
        )
        processes.wait_until(lambda: workers(broker) == whole, "nobody is missing after a reload")
        # The replacements hold other rows than the first workers did, and so does the one that follows them.
        processes.kill(broker.worker_pids()[0])
        processes.wait_until(lambda: "died" in broker.log(), "the death is noticed")
        processes.wait_until(lambda: workers(broker) == whole, "nobody is missing after a death")


def test_a_draining_broker_is_not_ready_but_alive(tmp_path: Path) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        with socket.create_connection(broker.address, 30) as connection:
            connection.sendall(b"hello\n")
            connection.recv(1)
            broker.signal(signal.SIGTERM)
            processes.wait_until(lambda: get(broker, "/readyz")[0] == 503, "it is draining")
            assert json.loads(get(broker, "/readyz")[1])["draining"] is True
            assert get(broker, "/healthz")[0] == 200
        assert broker.process.wait(30) == 0


def test_a_broker_whose_redis_is_away_is_not_ready(tmp_path: Path) -> None:
    # A probe waits for a few seconds only, however patient the broker is with Redis.
    with echo_broker(tmp_path, "redis.timeout.ms=3600000", workers=1) as broker:
        server = broker.server_pid()
        processes.kill(server, signal.SIGSTOP)
        try:
            status, body = get(broker, "/readyz")
            assert status == 503
            assert json.loads(body)["redis"] != "ok"
        finally:
            processes.kill(server, signal.SIGCONT)
        processes.wait_until(lambda: get(broker, "/readyz")[0] == 200, "it is ready again")


def test_restarts_are_counted_and_dead_workers_are_not_among_the_accepting(tmp_path: Path) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        for number in range(1, 4):
            (pid,) = broker.worker_pids()
            processes.kill(pid)
            counted = f"korvet_child_restarts_total {number}.0".encode()
            processes.wait_until(lambda: counted in get(broker, "/metrics")[1], "the restart is counted")  # noqa: B023 - called before the loop goes on
            processes.wait_until(lambda: broker.worker_pids() not in ([], [pid]), "a new worker")  # noqa: B023 - called before the loop goes on
        accepting = b'korvet_workers{state="accepting"} 1.0'
        processes.wait_until(lambda: accepting in get(broker, "/metrics")[1], "the last one accepts")


def row(client: redis.Redis) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(cast("bytes", client.hget("korvet:brokers", "0")))
    return result


def test_a_stopping_broker_is_unregistered_at_once_and_serves_on_for_its_drain_delay(tmp_path: Path) -> None:
    with echo_broker(tmp_path, "drain.delay.ms=3600000", workers=1) as broker:
        with redis.Redis(unix_socket_path=str(broker.data_dir / "server.sock")) as client:
            processes.wait_until(lambda: client.hlen("korvet:brokers") == 1, "it is registered")
            broker.signal(signal.SIGTERM)
            processes.wait_until(lambda: "listed" in row(client), "it is registered no more")
            # Its clients go after the delay, and look for it then.
            assert row(client)["listed"] > row(client)["until"] + 3_600_000
        assert get(broker, "/readyz")[0] == 503
        body = json.loads(get(broker, "/readyz")[1])
        assert body["draining"] is True
        assert body["workers"]["accepting"] == 1
        with socket.create_connection(broker.address, 20) as connection:
            connection.sendall(b"hello\n")
            assert connection.recv(100).endswith(b" hello\n")
        # A second signal is from somebody who does not want to wait.
        broker.signal(signal.SIGTERM)
        assert broker.process.wait(30) == 0
