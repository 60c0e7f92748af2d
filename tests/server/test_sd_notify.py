"""What a service manager is told: by the module alone, and by a broker that one has started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.server.supervisor.service_manager import ServiceManager
from tests.support import processes
from tests.support.broker import echo_broker


def ask(address: tuple[str, int], line: str) -> str:
    with socket.create_connection(address, 10) as connection:
        connection.sendall(f"{line}\n".encode())
        return connection.makefile().readline().strip()


class Manager:
    """A service manager's end of the socket; `address` is as it stands in NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(0)

    def messages(self) -> list[dict[str, str]]:
        """Return all that was told so far, each message as its assignments."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(65536).decode().split("\n")
                self.heard.append(dict(line.split("=", 1) for line in lines))
        return self.heard

    def told(self, name: str) -> list[dict[str, str]]:
        """Return the messages in which `name` is assigned."""
        return [message for message in self.messages() if name in message]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="korvet-test-") as directory:
        name = f"{directory}/notify"
        manager = Manager(f"@{name}" if request.param == "abstract" else name)
        yield manager
        manager.close()


def test_each_message_says_what_systemd_understands(manager: Manager) -> None:
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    environ = {"NOTIFY_SOCKET": manager.address, "PATH": "/bin"}
    told = ServiceManager.out_of(environ)
    assert environ == {"PATH": "/bin"}
    told.starting("loading")
    told.reloading("replacing")
    told.ready("serving")
    told.stopping("draining", 1.5)
    starting, reloading, ready, stopping = manager.messages()
    assert starting == {"STATUS": "loading", "EXTEND_TIMEOUT_USEC": "30000000"}
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert before_us <= int(reloading.pop("MONOTONIC_USEC")) <= now_us
    assert reloading == {"RELOADING": "1", "STATUS": "replacing"}
    assert ready == {"READY": "1", "STATUS": "serving", "MAINPID": str(os.getpid())}
    assert stopping == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": "1500000"}


def test_without_a_manager_nothing_is_sent_and_nothing_due() -> None:
    nobody = ServiceManager.out_of({"WATCHDOG_USEC": "1000"})
    assert nobody.ping_at is None
    nobody.ready("serving")
    nobody.ping()


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative/path"])
def test_an_address_of_another_kind_is_told_of_once_and_left_alone(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = ServiceManager({"NOTIFY_SOCKET": address})
    other.ready("serving")
    other.stopping("draining", 1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_manager_that_is_gone_costs_a_line_in_the_log_and_nothing_else(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": manager.address})
    manager.close()
    told.ready("serving")
    assert "cannot notify the service manager" in caplog.text


@pytest.mark.parametrize(
    ("variables", "waits"),
    [
        ({"WATCHDOG_USEC": "3000000"}, True),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
def test_a_sign_of_life_is_given_where_the_watchdog_waits_for_this_process(
    manager: Manager, variables: dict[str, str], *, waits: bool
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": manager.address, **variables})
    told.ping()
    told.ping()
    # The second one is not due yet.
    assert len(manager.told("WATCHDOG")) == int(waits)
    assert (told.ping_at is not None) == waits


@pytest.fixture
def managed(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """Let brokers of this test be started by `manager`, which waits 400 ms for a sign of life."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    return manager


def test_a_broker_tells_when_it_is_ready_reloads_and_stops(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path) as broker:
        (ready,) = managed.told("READY")
        assert ready["MAINPID"] == str(broker.pid)
        host, port = broker.address
        assert ready["STATUS"] == f"serving clients at {host}:{port}"
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: len(managed.told("READY")) == 2, "the end of the reload")
        assert broker.stop() == 0
        kinds = ("READY", "RELOADING", "STOPPING")
        said = [kind for message in managed.messages() for kind in kinds if kind in message]
        assert said == ["READY", "RELOADING", "READY", "STOPPING"]


def test_the_watchdog_is_fed_while_nothing_happens(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path, workers=1):
        enough = len(managed.told("WATCHDOG")) + 5
        processes.wait_until(lambda: len(managed.told("WATCHDOG")) >= enough, "signs of life")


def test_a_supervisor_that_stands_still_gives_no_sign_of_life(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        broker.signal(signal.SIGSTOP)
        processes.wait_until(
            lambda: "T (stopped)" in Path(f"/proc/{broker.pid}/status").read_text(), "stopped"
        )
        managed.messages()
        told = len(managed.heard)
        # Ops, keeper and worker live on: were one of them to speak for the supervisor, this would hear it.
        with contextlib.suppress(AssertionError):
            processes.wait_until(lambda: len(managed.messages()) > told, "a sign of life", seconds=1.0)
        broker.signal(signal.SIGCONT)
        assert len(managed.heard) == told


def test_children_do_not_see_the_managers_variables(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        seen = ask(broker.address, "environ").split()
        assert "PATH" in seen
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"}.intersection(seen)
