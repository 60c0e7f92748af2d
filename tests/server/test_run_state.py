"""korvet/server/supervisor/run_state.py: the directory of a running broker."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from korvet.config.values import Address
from korvet.errors import ConfigError
from korvet.server.supervisor.run_state import directory_for

ADDRESS = Address("127.0.0.1", 9092)


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have brokers make their directories here."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    return tmp_path


def test_the_directory_that_a_killed_broker_left_is_taken_empty_and_removed_at_the_end(base: Path) -> None:
    left = base / f"korvet-{os.getuid()}-127.0.0.1-9092"
    (left / "below").mkdir(parents=True)
    left.chmod(0o700)
    (left / "counter.db").touch()
    with directory_for(ADDRESS) as path:
        assert path == left
        assert list(path.iterdir()) == []
    assert list(base.iterdir()) == []


def test_two_brokers_with_one_port_have_a_directory_each(base: Path) -> None:
    with directory_for(ADDRESS) as one:
        (one / "counter.db").touch()
        with directory_for(ADDRESS) as other, directory_for(ADDRESS) as third:
            assert len({one, other, third}) == 3
        assert list(base.iterdir()) == [one]
        assert [item.name for item in one.iterdir()] == ["counter.db"]


def test_a_broker_starts_while_another_one_removes_the_directory(base: Path) -> None:
    def start_and_stop() -> None:
        for _ in range(500):
            with directory_for(ADDRESS):
                pass

    with ThreadPoolExecutor() as pool:
        for started in [pool.submit(start_and_stop) for _ in range(4)]:
            started.result()
    assert list(base.iterdir()) == []


def test_a_directory_that_others_may_read_is_refused(base: Path) -> None:
    (base / f"korvet-{os.getuid()}-127.0.0.1-9092").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="not a private directory"), directory_for(ADDRESS):
        pass
