"""What a service manager is notified of: by the module alone, and by a broker that one has started."""

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


class Manager:
    """A service manager's end of the socket; `address` is as it stands in NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(0)

    def messages(self) -> list[dict[str, str]]:
        """Return all messages so far, each as its assignments."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(65536).decode().split("\n")
                self.heard.append(dict(line.split("=", 1) for line in lines))
        return self.heard

    def assigned(self, name: str) -> list[dict[str, str]]:
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
    notifier = ServiceManager(environ)
    assert environ == {"PATH": "/bin"}
    notifier.starting("loading")
    notifier.reloading("replacing")
    notifier.ready("serving")
    notifier.stopping("draining", 1.5)
    starting, reloading, ready, stopping = manager.messages()
    assert starting == {"STATUS": "loading", "EXTEND_TIMEOUT_USEC": "30000000"}
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert before_us <= int(reloading.pop("MONOTONIC_USEC")) <= now_us
    assert reloading == {"RELOADING": "1", "STATUS": "replacing"}
    assert ready == {"READY": "1", "STATUS": "serving", "MAINPID": str(os.getpid())}
    assert stopping == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": "1500000"}


def test_without_a_manager_nothing_is_sent_and_nothing_due() -> None:
    nobody = ServiceManager({"WATCHDOG_USEC": "1000"})
    assert nobody.ping_at is None
    nobody.ready("serving")
    nobody.ping()


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative/path"])
def test_an_address_of_another_kind_is_logged_once_and_not_used(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = ServiceManager({"NOTIFY_SOCKET": address})
    other.ready("serving")
    other.stopping("draining", 1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_manager_that_is_gone_costs_a_line_in_the_log_and_nothing_else(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = ServiceManager({"NOTIFY_SOCKET": manager.address})
    manager.close()
    notifier.ready("serving")
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
def test_the_watchdog_is_fed_if_it_waits_for_this_process(
    manager: Manager, variables: dict[str, str], *, waits: bool
) -> None:
    notifier = ServiceManager({"NOTIFY_SOCKET": manager.address, **variables})
    notifier.ping()
    notifier.ping()
    # The second one is not due yet.
    assert len(manager.assigned("WATCHDOG")) == int(waits)
    assert (notifier.ping_at is not None) == waits


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """Let brokers of this test be started by a manager that waits 400 ms for a sign of life."""
    directory = tempfile.TemporaryDirectory(prefix="korvet-test-")
    manager = Manager(f"{directory.name}/notify")
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with directory:
        yield manager
        manager.close()


def test_a_broker_notifies_of_ready_reload_and_stop(
    tmp_path: Path, managed: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Signs of life would fill the socket during a slow start: it takes 11 messages, and loses those after them.
    monkeypatch.delenv("WATCHDOG_USEC")
    with echo_broker(tmp_path) as broker:
        (ready,) = managed.assigned("READY")
        assert ready["MAINPID"] == str(broker.pid)
        host, port = broker.address
        assert ready["STATUS"] == f"serving clients at {host}:{port}"
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: len(managed.assigned("READY")) == 2, "the end of the reload")
        assert broker.stop() == 0
        kinds = ("READY", "RELOADING", "STOPPING")
        said = [kind for message in managed.messages() for kind in kinds if kind in message]
        assert said == ["READY", "RELOADING", "READY", "STOPPING"]


def test_the_watchdog_is_fed_while_nothing_happens(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path, workers=1):
        enough = len(managed.assigned("WATCHDOG")) + 5
        processes.wait_until(lambda: len(managed.assigned("WATCHDOG")) >= enough, "signs of life")


def test_a_stopped_supervisor_does_not_feed_the_watchdog(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        broker.signal(signal.SIGSTOP)
        processes.wait_until(
            lambda: "T (stopped)" in Path(f"/proc/{broker.pid}/status").read_text(), "stopped"
        )
        managed.messages()
        heard = len(managed.heard)
        # Ops, keeper and worker live on: were one of them to speak for the supervisor, this would hear it.
        with contextlib.suppress(AssertionError):
            processes.wait_until(lambda: len(managed.messages()) > heard, "a sign of life", seconds=1.0)
        broker.signal(signal.SIGCONT)
        assert len(managed.heard) == heard


def test_children_do_not_see_the_managers_variables(tmp_path: Path, managed: Manager) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        seen = broker.ask("environ").split()
        assert "PATH" in seen
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"}.intersection(seen)
