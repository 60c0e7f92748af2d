"""The embedded server's socket: the same one for all that ask, and nobody else's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.errors import ConfigError
from korvet.redis.url import running_url, socket_of

LONG = "a" * 100


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give what stands for the system's directory for temporary files: a short path, as that is."""
    with tempfile.TemporaryDirectory(prefix="korvet-test-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def test_it_is_in_the_data_directory_also_where_the_name_of_that_needs_quoting(tmp_path: Path) -> None:
    directory = tmp_path / "50% of it"
    assert socket_of(directory) == directory / "server.sock"
    assert running_url(directory) is None
    directory.mkdir()
    (directory / "server.sock").touch()
    assert running_url(directory) == f"unix://{tmp_path}/50%25%20of%20it/server.sock"


def test_where_the_path_is_too_long_it_is_elsewhere_and_asking_makes_nothing(
    tmp_path: Path, temporary: Path
) -> None:
    path = socket_of(tmp_path / LONG)
    assert path.parent.parent == temporary
    assert socket_of(tmp_path / LONG) == path != socket_of(tmp_path / f"{LONG}b")
    assert running_url(tmp_path / LONG) is None
    assert not list(temporary.iterdir())
    path.parent.mkdir()
    path.touch()
    assert running_url(tmp_path / LONG) == f"unix://{path}"


def test_a_server_of_another_user_is_not_taken_for_it(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    path = socket_of(tmp_path / LONG)
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ConfigError, match="is not a private directory of this user"):
        running_url(tmp_path / LONG)


def test_a_directory_for_which_there_is_no_place_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/{LONG}")
    with pytest.raises(ConfigError, match="too long for a unix socket"):
        socket_of(tmp_path / LONG)
