"""README.md's ways to start, its first session, and examples of other pages, as a reader runs them.

They have a network of their own, so nobody else has the usual ports.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.tutorial import Step, as_repository, run_alone, steps_of

SESSION = (
    "README.md#A first session",
    "docs/records.md#Write from Redis",
    "docs/groups.md#List, describe, delete, reset",
)
STARTS = (
    *("README.md#Start", "README.md#Flags"),
    *("docs/cluster.md#On one machine", "docs/records.md#Choose the layout"),
)
SECONDS_MAX = 300.0

# Prints replies in the form of redis-cli at a terminal, where that is not installed.
REDIS_CLI = rf"""#!{sys.executable}
import json, sys
import redis

def show(value, indent=0):
    if not isinstance(value, list):
        return json.dumps(value)
    digits = len(str(len(value)))
    lines = (f"{{n:>{{digits}}}}) " + show(each, indent + digits + 2) for n, each in enumerate(value, 1))
    return ("\n" + " " * indent).join(lines)

_, _, path, *command = sys.argv
server = redis.Redis(unix_socket_path=path, decode_responses=True)
server.response_callbacks.clear()
print(show(server.execute_command(*command)))
"""


@pytest.mark.timeout(SECONDS_MAX + 30)
@pytest.mark.parametrize("sections", [SESSION, STARTS], ids=["session", "starts"])
def test_the_first_session_goes_as_the_pages_say(
    sections: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = [name for name in ("unshare", "kcat", "bash", "make") if shutil.which(name) is None]
    assert not missing, f"the session, or a network of its own for it, needs {missing}"
    directory = tmp_path / "clone"
    directory.mkdir()
    as_repository(directory)
    programs = tmp_path / "bin"
    programs.mkdir()
    installed = shutil.which("redis-cli")
    as_at_a_terminal = f'#!/bin/sh\nexec {installed} --no-raw "$@"\n'
    (programs / "redis-cli").write_text(as_at_a_terminal if installed else REDIS_CLI)
    (programs / "redis-cli").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}", prepend=":")
    printed = run_alone(directory, sections, SECONDS_MAX)
    wanted = [step.command for section in sections for step in steps_of(section) if isinstance(step, Step)]
    assert len(wanted) > 8
    assert [command for command in wanted if f"$ {command}\n" not in printed] == []
