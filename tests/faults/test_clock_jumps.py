"""The machine's clock jumps by an hour, forth and back, under brokers and Redis."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from tests.faults.servers import Server
from tests.faults.work import Work
from tests.support import processes
from tests.support.broker import korvet_broker

HOUR = 3600


def library() -> Path:
    """Return libfaketime, which the dynamic linker puts before the C library's clock."""
    found = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is not there (on Debian or Ubuntu: apt-get install libfaketime)"
    return found[0]


class Clock:
    """A clock that programs started with `environment` have in common. What measures time that passes is left alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: int) -> None:
        """Let it be so far ahead of the right time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.replace(self._file)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "jumps", [(HOUR, 0, -HOUR, 0), (-HOUR, HOUR)], ids=["forth and back", "back and forth"]
)
def test_the_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jumps: tuple[int, ...]) -> None:
    clock = Clock(tmp_path / "clock")
    with Server(tmp_path / "redis", environment=clock.environment) as server:
        for name, value in clock.environment.items():
            monkeypatch.setenv(name, value)
        with korvet_broker(tmp_path / "broker", "--redis-url", server.url) as broker:
            for name in clock.environment:
                monkeypatch.delenv(name)
            with Work(broker.bootstrap) as work, server.client() as client:
                for seconds in jumps:
                    clock.set(seconds)
                    _wait_for(client, seconds)
                    work.goes_on(f"the clock jumped to {seconds:+d} s")
            assert "Traceback" not in broker.log()


def _wait_for(client: redis.Redis, seconds: int) -> None:
    """Wait until Redis' clock is about so far ahead of this process's."""

    def ahead() -> float:
        reported, _ = client.time()
        return float(reported - time.time())

    processes.wait_until(lambda: abs(ahead() - seconds) < HOUR / 2, "Redis' clock has jumped")
