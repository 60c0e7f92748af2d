"""How long producers waited after each fault, printed at the end of the run."""

from __future__ import annotations

import pytest

from tests.faults.work import RECOVERIES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each fault."""
    terminalreporter.section("from the end of a fault until all is acknowledged that was sent before")
    for what, seconds in RECOVERIES:
        terminalreporter.write_line(f"{seconds:6.2f} s  {what}")
