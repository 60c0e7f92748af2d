"""Tables of commands: as wide as a terminal, and one plain line a row for a program."""

from __future__ import annotations

import pexpect
import pytest

from korvet.cli.tables import cell
from korvet.config.settings import SETTINGS
from tests.cli.commands import done, korvet
from tests.cli.terminal import at_terminal

WIDTH = 60


def test_a_program_gets_one_line_a_row_without_a_rule_and_trailing_blanks() -> None:
    lines = done(korvet("config")).splitlines()
    assert lines[0].split() == ["Setting", "Value", "Origin"]
    assert [line for line in lines if line != line.rstrip() or not line or "─" in line] == []
    assert len(lines) == 1 + len(SETTINGS)
    assert [cell(value) for value in (0.050742999999999996, 1e6, 7, 1.5)] == ["0.051", "1000000", "7", "1.5"]
    # Values stand below their titles.
    assert {line.rindex("default") for line in lines[1:] if line.endswith(" default")} == {
        lines[0].index("Origin")
    }


@pytest.mark.slow
def test_a_terminal_gets_lines_that_fit() -> None:
    with at_terminal("config", environment={"COLUMNS": str(WIDTH)}) as child:
        child.expect(pexpect.EOF)
        lines = child.before.replace("\r", "").splitlines()
    assert set(lines[1]) == {"─", " "}
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line != line.rstrip()] == []
    # A name that is too long goes on below itself.
    at = next(number for number, line in enumerate(lines) if line.startswith("log.message.timestamp.b"))
    assert lines[at].split()[0] + lines[at + 1].split()[0] == "log.message.timestamp.before.max.ms"
