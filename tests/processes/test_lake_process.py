"""The child that reads the lake: started where there is one, replaced when it dies, gone with its supervisor."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

from korvet.config.settings import Settings
from korvet.server.supervisor import announcement
from tests.support import processes
from tests.support.broker import Broker, echo_broker, korvet_broker


def lake_pids(broker: Broker) -> list[int]:
    """Return the children that run the program which reads the lake."""
    return [pid for pid in processes.children(broker.pid) if b"korvet.lake.service" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """Return what a process was started with, nothing where it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_there_is_none_without_a_lake(tmp_path: Path) -> None:
    with echo_broker(tmp_path) as broker:
        assert lake_pids(broker) == []


def test_where_it_is_stands_in_the_announcement(tmp_path: Path) -> None:
    assert announcement.lake(Settings()) == ""
    often = Settings(lake_path="s3://lakes/korvet", lake_interval_ms=500)
    assert (
        announcement.lake(often) == "s3://lakes/korvet, every 0.5 s, topics with remote.storage.enable=true"
    )
    with echo_broker(tmp_path, f"lake.path={tmp_path / 'lake'}", "lake.interval.ms=0") as broker:
        assert f"\n  lake        {tmp_path / 'lake'}, written by korvet lake archive\n" in broker.output()


def test_one_that_dies_is_replaced_and_all_end_with_the_supervisor(tmp_path: Path) -> None:
    with echo_broker(tmp_path, f"lake.path={tmp_path / 'lake'}", "lake.interval.ms=0") as broker:
        [first] = lake_pids(broker)
        processes.kill(first, signal.SIGKILL)
        processes.wait_until(lambda: lake_pids(broker) not in ([], [first]), "another one")
        [second] = lake_pids(broker)
        processes.kill(broker.pid, signal.SIGKILL)
        processes.wait_until(lambda: not processes.alive(second), "its end")


def test_it_gets_its_secrets_where_nobody_else_reads_them(tmp_path: Path) -> None:
    options = "lake.storage.options=AWS_SECRET_ACCESS_KEY=hush"
    flags = ("--set", f"lake.path={tmp_path / 'lake'}", "--set", options, "--set", "lake.interval.ms=0")
    with korvet_broker(tmp_path, *flags, workers=1) as broker:
        [pid] = lake_pids(broker)
        for name in ("cmdline", "environ"):
            assert b"hush" not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert "hush" not in broker.output() + broker.log()
        held = [str(item.readlink()) for item in Path(f"/proc/{pid}/fd").iterdir()]
        assert not any("lock" in item for item in held), held
        [socket] = Path(tempfile.gettempdir()).glob(f"korvet-*-{broker.address[1]}/lake.sock")
        assert broker.stop() == 0
        assert not socket.exists()
