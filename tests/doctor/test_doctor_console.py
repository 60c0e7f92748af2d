"""`korvet doctor` and the console's token: a file without one, or that all can read, is named."""

from __future__ import annotations

from pathlib import Path

from korvet.config.settings import Settings
from korvet.doctor import machine as console
from korvet.doctor.finding import Level


def test_a_file_without_a_token_or_that_all_can_read_is_named(tmp_path: Path) -> None:
    assert list(console.console_examine(Settings())) == []
    file = tmp_path / "token"

    def said(level: Level) -> str:
        [found] = console.console_examine(Settings(console_token_file=str(file)))
        assert (found.what, found.level) == ("console.token.file", level)
        assert bool(found.advice) == (level is not Level.OK)
        return found.said

    assert "No such file" in said(Level.WARNING)
    file.write_text("short\n")
    assert "5 bytes are no token" in said(Level.WARNING)
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    assert "every user" in said(Level.WARNING)
    file.chmod(0o600)
    assert str(file) in said(Level.OK)
