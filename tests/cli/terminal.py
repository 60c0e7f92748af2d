"""The `korvet` command at a pseudo-terminal: what it writes to a person, and a person's keys."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pexpect

from tests.support.processes import WAIT_SECONDS_MAX

CTRL_C, CTRL_D = "\x03", "\x04"
COLUMNS = 200


@contextlib.contextmanager
def at_terminal(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Run `korvet` at a terminal of its own; ends it at the end."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "korvet", *arguments],
        encoding="utf-8",
        timeout=WAIT_SECONDS_MAX,
        dimensions=(40, COLUMNS),
        env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
    )
    try:
        yield child
    finally:
        child.close(force=True)


def exit_code(child: Any) -> int:
    """Wait for the command to end, and return its exit code."""
    child.expect(pexpect.EOF)
    child.close()
    assert child.signalstatus is None
    return int(child.exitstatus)
