"""`korvet reload` with running brokers: the one it means, its waits, and its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from korvet.server.supervisor import run_state
from korvet.server.supervisor.run_state import RunState
from tests.support import processes
from tests.support.broker import Broker, echo_broker

pytestmark = pytest.mark.slow


def reload(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "korvet", "reload", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers and commands of this test see no others of this machine."""
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_the_only_broker_is_meant_and_its_workers_are_others_when_the_command_ends(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        before = set(broker.worker_pids())
        done = reload()
        assert (done.returncode, done.stderr) == (0, "")
        assert f"the workers of {broker.bootstrap} are replaced" in done.stdout
        retired = before & set(broker.worker_pids())
        processes.wait_until(lambda: not any(map(processes.alive, retired)), "the former ones have ended")
        assert broker.log().count("the workers are replaced") == 1


def test_a_failure_is_printed_with_exit_code_1_and_what_needs_a_restart_too(tmp_path: Path) -> None:
    config = tmp_path / "korvet.toml"
    config.write_text("")
    with echo_broker(tmp_path, "--config", str(config), workers=1):
        for text, said in (
            ('"no.such.setting" = 1\n', "the configuration is kept as it was: "),
            ('"num.partitions" = 13\n', "a new worker does not start: status 1"),
        ):
            config.write_text(text)
            done = reload()
            assert (done.returncode, done.stdout) == (1, "")
            assert said in done.stderr
            config.write_text("")
            assert reload().returncode == 0
        config.write_text('"namespace" = "other"\n')
        assert "; these need a restart: namespace" in reload().stdout


def test_with_several_brokers_one_must_be_named(tmp_path: Path) -> None:
    with echo_broker(tmp_path / "one", workers=1) as one, echo_broker(tmp_path / "two", workers=1) as two:
        done = reload()
        assert done.returncode == 2
        for broker in (one, two):
            assert f"--pid {broker.pid} ({broker.bootstrap})" in done.stderr
        assert reload("--pid", str(two.pid)).returncode == 0
        assert "replaced" in two.log()
        assert "replaced" not in one.log()


def test_without_a_broker_nothing_is_signalled(tmp_path: Path) -> None:
    assert "no broker runs" in reload().stderr
    done = reload("--pid", str(os.getpid()))
    assert done.returncode == 1
    assert f"no broker with process id {os.getpid()}" in done.stderr


def test_a_killed_brokers_file_counts_no_more(tmp_path: Path) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        assert len(run_state.running()) == 1
        broker.kill()
        assert reload().returncode == 1


def test_a_file_that_names_a_process_of_another_user_is_no_broker(tmp_path: Path) -> None:
    run_state.write(tmp_path, RunState(os.getpid(), "1", "127.0.0.1:9092"))
    assert run_state.read(tmp_path) is not None
    if os.getuid():
        # Process 1 is root's.
        run_state.write(tmp_path, RunState(1, "1", "127.0.0.1:9092"))
    else:
        os.chown(tmp_path / "supervisor.json", 1000, 1000)
    assert run_state.read(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{", json.dumps({"pid": "x"}).encode()])
def test_a_file_that_makes_no_sense_is_no_broker(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "supervisor.json").write_bytes(content)
    assert run_state.read(tmp_path) is None


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_no_broker_and_does_not_block(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "run" / "korvet-1000-127.0.0.1-9092"
    directory.mkdir()
    if kind == "pipe":
        os.mkfifo(directory / "supervisor.json")
    else:
        run_state.write(tmp_path, RunState(os.getpid(), "1", "127.0.0.1:9092"))
        (directory / "supervisor.json").symlink_to(tmp_path / "supervisor.json")
    look = "from korvet.server.supervisor import run_state; print(run_state.running())"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("{}\n", "")


def test_a_broker_that_ends_meanwhile_is_an_error(tmp_path: Path) -> None:
    with echo_broker(tmp_path, workers=1) as broker:
        # A stopped process acts on no signal, until it is killed.
        broker.signal(signal.SIGSTOP)
        command = [sys.executable, "-m", "korvet", "reload"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
            processes.wait_until(lambda: _hangup_pending(broker), "it was signalled")
            broker.kill()
            _, said = waiting.communicate(timeout=60)
        assert waiting.returncode == 1
        assert f"process {broker.pid}, has ended" in said


def _hangup_pending(broker: Broker) -> bool:
    lines = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("ShdPnd", "SigPnd"))]
    return any(mask >> (signal.SIGHUP - 1) & 1 for mask in pending)


_HIDDEN = """
mount -t proc -o "$2" proc /proc
alone="unshare --user --map-current-user"
$alone sleep 100 & other=$!
until [ "$(cat /proc/$other/comm)" = sleep ]; do sleep 0.01; done
$alone "$0" -c '
import os, pathlib, sys
from korvet.server.supervisor import run_state
directory, pid = pathlib.Path(sys.argv[1]), int(sys.argv[2])
run_state.write(directory, run_state.RunState(pid, "1", "127.0.0.1:9092"))
print(os.path.exists(f"/proc/{pid}"), run_state.read(directory) is not None)' "$1" $other
"""


def test_a_broker_counts_if_proc_hides_it_as_from_the_reload_of_a_unit(tmp_path: Path) -> None:
    """ProtectProc=invisible and PrivateUsers=yes, by which each command of a unit has a user namespace of its own."""
    # Members of a group see all: by default that of root.
    mapped, options = (["--map-root-user"], "") if os.getuid() else ([], ",gid=1")
    alone = ("unshare", *mapped, "--mount", "--pid", "--fork", "--kill-child")
    done = subprocess.run(
        [*alone, "sh", "-euc", _HIDDEN, sys.executable, str(tmp_path), f"hidepid=invisible{options}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "False True\n", done.stderr
