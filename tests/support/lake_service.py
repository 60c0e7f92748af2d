"""The process that reads a lake, as the supervisor starts it, for tests that have none.

Says what it must do, and how it ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from korvet.config.settings import Settings
from korvet.lake.child import ChildConfig

READY = b"ready!!!"


class LakeService(NamedTuple):
    """A running one, the lake that it reads, and the socket where it is asked."""

    process: subprocess.Popen[bytes]
    lake: Path
    socket: Path


@contextlib.contextmanager
def lake_service(lake: Path, directory: Path) -> Iterator[LakeService]:
    """Start the process for the lake at `lake`, listening in `directory`, and end it after the block."""
    path = directory / "lake.sock"
    life, alive = os.pipe()
    noted, note = os.pipe()
    configuration = ChildConfig(Settings(lake_path=str(lake)), str(path), life, note, READY)
    given = os.memfd_create("configuration")
    os.write(given, msgspec.json.encode(configuration))
    command = [sys.executable, "-m", "korvet.lake.service", str(given)]
    process = subprocess.Popen(command, pass_fds=(life, note, given))
    for fd in (life, note, given):
        os.close(fd)
    try:
        assert select.select([noted], [], [], 30)[0], "the process does not get ready"
        assert os.read(noted, 100) == READY
        yield LakeService(process, lake, path)
    finally:
        os.close(alive)
        try:
            process.wait(10)
        finally:
            process.kill()
            process.wait()
            os.close(noted)
