"""The `korvet` command at a pseudo-terminal: what it writes to a person, and a person's keys."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pexpect

from tests.support.processes import WAIT_SECONDS_MAX

CTRL_C, CTRL_D = "\x03", "\x04"
COLUMNS = 200


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_BEGUN = re.compile(r"\x1b(\[[0-9;?]*[ -/]*)?$")


class Terminal(pexpect.spawn):  # type: ignore[misc]  # pexpect carries no types
    """What a command writes to a terminal, without colours and movements of the cursor."""

    _left = ""

    def read_nonblocking(self, size: int = 1, timeout: int | None = -1) -> str:
        """Read, and hold back the beginning of a sequence whose end is not there yet."""
        text = self._left + super().read_nonblocking(size, timeout)
        begun = _BEGUN.search(text)
        self._left = text[begun.start() :] if begun else ""
        return _CONTROL.sub("", text[: len(text) - len(self._left)])


@contextlib.contextmanager
def at_terminal(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Run `korvet` at a terminal of its own; ends it at the end."""
    child = Terminal(
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
    child.expect(pexpect.EOF)
    child.close()
    assert child.signalstatus is None
    return int(child.exitstatus)
