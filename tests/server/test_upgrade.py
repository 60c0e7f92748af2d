"""An upgrade in place: the supervisor becomes the program that is installed now, and nobody is refused meanwhile.

The brokers run from a copy of the package, which the tests alter as an installation would.
"""

from __future__ import annotations

import compileall
import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import redis

import korvet
from tests.support import processes
from tests.support.broker import Broker, started

_VERSION = f'__version__ = "{korvet.__version__}"'


class Installation:
    """A copy of Korvet with a command of its own; `broker` runs it."""

    def __init__(self, directory: Path, library: Path) -> None:
        shutil.copytree(library, directory / "lib")
        self.package = directory / "lib" / "korvet"
        self.command = directory / "korvet"
        self.command.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(self.package.parent)!r})\n"
            "from korvet.cli.main import main\nsys.exit(main())\n"
        )
        self.command.chmod(0o755)

    def alter(self, path: str, old: str, new: str) -> None:
        """Install another text of a file, as a whole."""
        file = self.package / path
        text = file.read_text()
        assert old in text
        other = file.with_suffix(".new")
        other.write_text(text.replace(old, new))
        # Bytecode counts as that of a text of the same length and second.
        seconds = file.stat().st_mtime + 10
        os.utime(other, (seconds, seconds))
        other.replace(file)

    def install_version(self, version: str) -> None:
        """Install a version that differs in its number alone."""
        self.alter("__init__.py", _VERSION, f'__version__ = "{version}"')

    def reload(self, broker: Broker, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run `korvet reload` for a broker."""
        command = [str(self.command), "reload", "--pid", str(broker.pid), *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package, compiled: many processes are going to start from it."""
    directory = tmp_path_factory.mktemp("library")
    source = Path(korvet.__file__).parent
    shutil.copytree(source, directory / "korvet", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(source.parent / "lua", directory / "lua")
    assert compileall.compile_dir(directory / "korvet", quiet=1)
    return directory


@pytest.fixture
def installation(tmp_path: Path, library: Path) -> Installation:
    return Installation(tmp_path / "installed", library)


@contextlib.contextmanager
def running(installation: Installation, tmp_path: Path, *flags: str, workers: int = 2) -> Iterator[Broker]:
    command = [str(installation.command), "serve", "--workers", str(workers)]
    common = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with started([*command, *common, *flags], tmp_path / "broker", tmp_path / "data") as broker:
        broker.wait_until_ready()
        yield broker


def page(broker: Broker, path: str) -> str:
    connection = http.client.HTTPConnection(broker.ops_address, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def api_versions(address: tuple[str, int]) -> bool:
    """Connect, ask what a client asks first, and return whether it was answered; raises OSError when refused."""
    with socket.create_connection(address, 20) as connection:
        connection.sendall(bytes.fromhex("0000000e 0012 0000 00000007 0004 74657374"))
        return connection.recv(8)[4:] == b"\0\0\0\7"


class Crowd:
    """Clients that connect and ask, one after the other, until told to stop."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._address = address
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                assert api_versions(self._address), "the connection was closed without an answer"
                self.answered += 1
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_an_upgrade_replaces_every_process_but_two_and_refuses_no_client(
    tmp_path: Path, installation: Installation
) -> None:
    with running(installation, tmp_path) as broker, Crowd(broker.address) as crowd:
        server = broker.server_pid()
        before = processes.children(broker.pid)
        installation.install_version("77.1")
        done = installation.reload(broker, "--upgrade")
        assert done.returncode == 0, done.stderr
        assert "now version 77.1" in done.stdout
        again = installation.reload(broker)
        assert again.returncode == 0, again.stderr
        assert ", version 77.1" in again.stdout
        processes.wait_until(
            lambda: before & processes.children(broker.pid) == {server}, "only the server is as before"
        )
        processes.wait_until(
            lambda: 'version="77.1"' in page(broker, "/metrics"), "ops is of the new version"
        )
        more = crowd.answered + 50
        processes.wait_until(lambda: crowd.answered > more, "clients are served afterwards")
        assert crowd.failures == []
        assert len(broker.worker_pids()) == 2
        assert broker.stop() == 0
        assert not processes.alive(server)


def test_an_upgrade_goes_on_with_counters_broker_id_and_a_second_upgrade(
    tmp_path: Path, installation: Installation
) -> None:
    with running(installation, tmp_path, workers=1) as broker:
        for _ in range(5):
            assert api_versions(broker.address)
        with redis.Redis(unix_socket_path=str(broker.data_dir / "server.sock")) as client:
            registered = client.hgetall("korvet:brokers").keys()
            for version in ("77.1", "77.2"):
                installation.alter("__init__.py", '__version__ = "', '__version__ = "7')
                assert installation.reload(broker, "--upgrade").returncode == 0, version
            assert client.hgetall("korvet:brokers").keys() == registered
        assert api_versions(broker.address)
        counted = [
            float(line.rpartition(" ")[2])
            for line in page(broker, "/metrics").splitlines()
            if line.startswith("korvet_connections_opened_total")
        ]
        assert counted == [6.0]
        for pid in broker.worker_pids():
            processes.kill(pid)
        processes.wait_until(lambda: 'how="signal SIGKILL"' in broker.log(), "its death is seen")
        processes.wait_until(lambda: _answers(broker), "another takes its place")


def _answers(broker: Broker) -> bool:
    with contextlib.suppress(OSError):
        return api_versions(broker.address)
    return False


@pytest.mark.parametrize("back", [False, True], ids=["more rows", "fewer rows"])
def test_an_upgrade_to_a_version_whose_table_of_processes_is_another(
    tmp_path: Path, installation: Installation, *, back: bool
) -> None:
    # The keeper's row, and with it the size of the table.
    changes = [
        ("KEEPER_ROW = WORKER_ROWS + 1\n", "KEEPER_ROW = WORKER_ROWS + 9\n"),
        ("_ROWS = WORKER_ROWS + 4\n", "_ROWS = WORKER_ROWS + 10\n"),
    ]
    if back:
        for old, new in changes:
            installation.alter("server/supervisor/slot.py", old, new)
        changes = [(new, old) for old, new in changes]
    with running(installation, tmp_path) as broker:
        before = processes.children(broker.pid) - {broker.server_pid()}
        for old, new in changes:
            installation.alter("server/supervisor/slot.py", old, new)
        done = installation.reload(broker, "--upgrade")
        assert done.returncode == 0, done.stderr
        processes.wait_until(lambda: not any(map(processes.alive, before)), "all others are replaced")
        processes.wait_until(lambda: '"accepting": 2' in page(broker, "/readyz"), "ops knows the new ones")
        assert len(processes.children(broker.pid)) == len(before) + 1
        assert broker.stop() == 0


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        ("__init__.py", _VERSION, "this is no Python", "SyntaxError"),
        ("server/worker.py", "import gevent\n", "import gevent_of_the_future\n", "gevent_of_the_future"),
        ("server/supervisor/upgrade.py", "_FORM = 1", "_FORM = 2", "in form 1, this version takes 2"),
        ("config/settings.py", "drain_timeout_ms:", "drain_timeout_of_old_ms:", "drain"),
    ],
    ids=["syntax", "import", "form", "setting"],
)
def test_a_version_that_cannot_start_is_told_of_and_everything_stays(
    tmp_path: Path, installation: Installation, path: str, old: str, new: str, reason: str
) -> None:
    with running(installation, tmp_path, "--set", "drain.timeout.ms=5000", workers=1) as broker:
        before = processes.children(broker.pid)
        installation.alter(path, old, new)
        broker.signal(signal.SIGUSR2)
        processes.wait_until(lambda: "does not start, and all stays as it was" in broker.log(), "the refusal")
        assert reason in broker.log()
        assert processes.children(broker.pid) == before
        assert api_versions(broker.address)
        installation.alter(path, new, old)
        assert installation.reload(broker, "--upgrade").returncode == 0


def test_an_upgrade_keeps_what_only_a_restart_may_alter(tmp_path: Path, installation: Installation) -> None:
    config = tmp_path / "korvet.toml"
    config.write_text('"num.partitions" = 3\n')
    with running(installation, tmp_path, "--config", str(config), workers=1) as broker:
        config.write_text('"num.partitions" = 5\n"namespace" = "other"\n')
        assert installation.reload(broker, "--upgrade").returncode == 0
        assert "a new value needs a restart setting=namespace" in broker.log()
        assert api_versions(broker.address)


def test_signals_that_come_during_an_upgrade_are_not_lost(tmp_path: Path, installation: Installation) -> None:
    with running(installation, tmp_path, workers=1) as broker:
        broker.signal(signal.SIGUSR2)
        processes.wait_until(lambda: "becoming the version on disk" in broker.log(), "the process changes")
        # From here on until it has its handlers, the default of this signal would be its death.
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: broker.log().count("the workers are replaced") == 2, "both changes")
        assert broker.stop() == 0


def test_a_broker_that_is_told_to_end_when_its_upgrade_is_due_ends(
    tmp_path: Path, installation: Installation
) -> None:
    with running(installation, tmp_path, workers=1) as broker:
        before = processes.children(broker.pid)
        broker.signal(signal.SIGUSR2)
        processes.wait_until(lambda: processes.children(broker.pid) - before, "the rehearsal begins")
        broker.signal(signal.SIGSTOP)
        processes.wait_until(lambda: processes.children(broker.pid) == before, "the rehearsal has ended")
        # It hears of both at the same moment.
        broker.signal(signal.SIGTERM)
        broker.signal(signal.SIGCONT)
        assert broker.process.wait(60) == 0


def test_no_change_begins_while_a_broker_lets_load_balancers_see_that_it_ends(
    tmp_path: Path, installation: Installation
) -> None:
    with running(installation, tmp_path, "--set", "drain.delay.ms=2000", workers=1) as broker:
        broker.signal(signal.SIGHUP)
        processes.wait_until(lambda: "replacing the workers" in broker.log(), "a change begins")
        broker.signal(signal.SIGUSR2)
        assert broker.stop() == 0
        assert "rehearsing the upgrade" not in broker.log()


def test_a_supervisor_that_is_killed_after_an_upgrade_leaves_no_process_behind(
    tmp_path: Path, installation: Installation
) -> None:
    with running(installation, tmp_path) as broker:
        assert installation.reload(broker, "--upgrade").returncode == 0
        pids = processes.descendants(broker.pid)
        assert len(pids) >= 5
        broker.kill()
        processes.wait_until(lambda: not any(map(processes.alive, pids)), "all end with the supervisor")


def test_an_embedded_server_that_dies_after_an_upgrade_is_started_again(
    tmp_path: Path, installation: Installation
) -> None:
    with running(installation, tmp_path, workers=1) as broker:
        assert installation.reload(broker, "--upgrade").returncode == 0
        server = broker.server_pid()
        processes.kill(server)
        processes.wait_until(lambda: "started the embedded server" in broker.log(), "a new server")
        assert broker.server_pid() != server
        assert broker.stop() == 0


def test_a_manager_hears_of_an_upgrade_from_the_same_process(
    tmp_path: Path, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"@korvet-test-{os.getpid()}-{tmp_path.name}"
        manager.bind("\0" + address[1:])
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with running(installation, tmp_path, workers=1) as broker:
            assert installation.reload(broker, "--upgrade").returncode == 0
            ready = 0
            said = []
            while ready < 2:
                message = manager.recv(65536).decode()
                ready += message.startswith("READY=1")
                said.append(message)
            assert said[-1].endswith(f"MAINPID={broker.pid}")
            assert any(message.startswith("RELOADING=1") for message in said)
