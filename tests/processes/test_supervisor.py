"""The processes of a broker, with real forks and signals: who starts, dies, drains and is replaced."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support import processes
from tests.support.broker import START_SECONDS_MAX, Broker, echo_broker


def everybody(broker: Broker) -> set[int]:
    return {broker.pid, *processes.children(broker.pid)}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker with two workers for all tests that leave it as it was."""
    with echo_broker(tmp_path_factory.mktemp("shared"), workers=2) as broker:
        yield broker


@pytest.fixture
def shared(running: Broker) -> Broker:
    """Give that broker, with everything back that the test before has killed."""
    processes.wait_until(lambda: len(processes.children(running.pid)) == 5, "all five children")
    processes.wait_until(lambda: answers(running), "a worker answers")
    return running


def gone(pids: set[int]) -> bool:
    return not any(processes.alive(pid) for pid in pids)


def test_the_supervisor_never_imports_gevent_or_the_lake(tmp_path: Path) -> None:
    program = (
        "import sys; import korvet.server.supervisor.supervisor, korvet.protocol.messages; "
        "print(*[name for name in ('gevent', 'greenlet', 'pyarrow', 'deltalake', 'pyspark', 'prometheus_client')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_process_that_forks_has_one_thread_no_connection_and_no_event_loop(shared: Broker) -> None:
    process = Path(f"/proc/{shared.pid}")
    assert len(list((process / "task").iterdir())) == 1
    files = {str(file.readlink()) for file in (process / "fd").iterdir()}
    assert not [file for file in files if "eventpoll" in file or "eventfd" in file]
    assert not files & connected_sockets()


def connected_sockets() -> set[str]:
    """Return the sockets of the machine that have a peer, as /proc/PID/fd names them."""
    tcp = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    inodes = [row[9] for row in tcp if row[3] == "01"] + [row[6] for row in unix if row[5] == "03"]
    return {f"socket:[{inode}]" for inode in inodes}


def test_serve_starts_workers_ops_keeper_and_the_embedded_server(shared: Broker) -> None:
    assert len(shared.worker_pids()) == 2
    assert len(shared.child_pids("keeper")) == len(shared.child_pids("ops")) == 1
    assert processes.parent(shared.server_pid()) == shared.pid
    assert shared.ask("hello").endswith(" hello")
    assert str(shared.data_dir) in shared.output()
    assert "once a second" in shared.output()


def test_sigterm_ends_everything_with_exit_code_zero(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        pids = everybody(broker)
        assert broker.stop() == 0
        assert gone(pids)


def test_a_worker_that_outlives_its_drain_is_killed_and_the_exit_code_is_1(tmp_path: Path) -> None:
    with echo_broker(tmp_path, "drain.timeout.ms=200") as broker:
        for pid in broker.worker_pids():
            # A stopped process does not act on SIGTERM.
            processes.kill(pid, signal.SIGSTOP)
        assert broker.stop() == 1
        # Not others, which may be as slow on a busy machine.
        assert broker.log().count("killed: it did not end in time child=worker-") == 2


def test_a_second_interrupt_ends_the_drain_at_once(tmp_path: Path) -> None:
    with echo_broker(tmp_path, "drain.timeout.ms=3600000") as broker:
        pids = everybody(broker)
        with socket.create_connection(broker.address, 30) as connection:
            connection.sendall(b"hello\nlate\n")
            connection.recv(1)
            broker.signal(signal.SIGINT)
            processes.wait_until(lambda: "stopping" in broker.log(), "the drain begins")
            broker.signal(signal.SIGINT)
            broker.process.wait(30)
        assert gone(pids)


def answers(broker: Broker) -> bool:
    with contextlib.suppress(OSError):
        return broker.ask("hello").endswith(" hello")
    return False


def test_killed_ops_and_keeper_are_started_again(shared: Broker) -> None:
    for name in ("ops", "keeper"):
        (before,) = shared.child_pids(name)
        processes.kill(before)
        processes.wait_until(lambda: shared.child_pids(name) not in ([], [before]), f"a new {name}")  # noqa: B023 - called before the loop goes on


def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        pids = everybody(broker)
        assert len(pids) == 6
        broker.kill()
        processes.wait_until(lambda: gone(pids), "workers, ops, keeper and server end with the supervisor")


def test_a_start_right_after_a_killed_supervisor_waits_for_its_server_to_end(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        server = broker.server_pid()
        # A stopped process does not act on the SIGTERM that the kernel sends it, until it may go on.
        processes.kill(server, signal.SIGSTOP)
        broker.kill()
        with echo_broker(tmp_path / "again", data_dir=broker.data_dir, ready=False) as again:
            processes.wait_until(lambda: "server of an earlier run" in again.log(), "it notices the orphan")
            processes.kill(server, signal.SIGCONT)
            again.wait_until_ready()
            assert not processes.alive(server)


def test_an_embedded_server_that_dies_is_started_again_with_its_data(shared: Broker) -> None:
    server, path = shared.server_pid(), shared.data_dir / "server.sock"
    with redis.Redis(unix_socket_path=str(path)) as client:
        client.set("some", "data")
    shared.wait_until_written()
    processes.kill(server)
    processes.wait_until(lambda: "started the embedded server" in shared.log(), "a new server")
    with redis.Redis(unix_socket_path=str(path)) as client:
        processes.wait_until(lambda: has(client, "some"), "the data is back")
    assert len(shared.worker_pids()) == 2


def has(client: redis.Redis, key: str) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.exists(key))
    return False


def test_a_reload_whose_workers_do_not_start_goes_back(tmp_path: Path) -> None:
    config = tmp_path / "korvet.toml"
    config.write_text("")
    with echo_broker(tmp_path, "--config", str(config)) as broker:
        before = broker.worker_pids()
        config.write_text('"num.partitions" = 13\n')
        broker.signal(signal.SIGHUP)
        processes.wait_until(
            lambda: "does not start" in broker.log(), "the failure is logged", START_SECONDS_MAX
        )
        assert broker.worker_pids() == before
        processes.kill(before[0])
        processes.wait_until(
            lambda: before[0] not in broker.worker_pids() and len(broker.worker_pids()) == 2,
            "a worker of the old settings",
        )
        processes.wait_until(lambda: answers(broker), "it answers")


def test_a_worker_that_cannot_start_is_started_again_with_back_off(tmp_path: Path) -> None:
    with echo_broker(tmp_path, "num.partitions=13", workers=1, ready=False) as broker:
        processes.wait_until(lambda: "in_a_row=5" in broker.log(), "five attempts", START_SECONDS_MAX)
        # Attempts go on meanwhile: the log is read once, up to the end of one.
        log = broker.log()
        waits = [line.rpartition("again_in_s=")[2] for line in log.splitlines() if "in_a_row" in line]
        assert waits[:5] == ["0.1", "0.2", "0.4", "0.8", "1.6"]
        assert log.rpartition("in_a_row")[0].count("unexpected error") == len(waits)
        assert broker.stop() == 0


def test_a_worker_inherits_nothing_of_the_supervisor_but_its_streams_and_pipes(shared: Broker) -> None:
    names = shared.ask("fds").split()
    assert not [name for name in names if "lock" in name]
    # Its listener and this connection; the port's reservation and ops' listener are the supervisor's.
    assert len([name for name in names if name.startswith("socket:")]) == 2


def take_terminal() -> None:
    processes.die_with_tests()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_closed_terminal_ends_a_broker_that_was_started_there(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    command = (
        f"-m tests.support.echo_broker listen=127.0.0.1:0 ops.listen= workers=1 data.dir={tmp_path / 'data'}"
    )
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            stdin=terminal,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
    try:
        processes.wait_until(lambda: "is ready" in (tmp_path / "out").read_text(), "ready", START_SECONDS_MAX)
        os.close(terminal)
        os.close(master)
        assert process.wait(30) == 0
        assert "the terminal is gone" in (tmp_path / "out").read_text()
    finally:
        process.kill()
        process.wait()
