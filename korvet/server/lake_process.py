"""The child that reads the lake: how the process that the supervisor forked becomes another program.

Knows what that program is told (korvet.lake.service); imports nothing of it, for deltalake and Arrow are not to be in
any process that forks. Secrets go through a file without a name, not through its command line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from korvet.config import Settings
from korvet.config.values import key_values
from korvet.server.slot import READY_NOTE, ChildSlot

SOCKET = "lake.sock"


def become(settings: Settings, slot: ChildSlot, directory: Path) -> NoReturn:
    """Go on as the program that reads the lake, and listen in `directory`; never returns."""
    configuration = {
        "lake": settings.lake_path,
        "storage_options": key_values(settings.lake_storage_options) or None,
        "socket": str(directory / SOCKET),
        "life_fd": slot.life_fd,
        "note_fd": slot.note_fd,
        # Its process is this one still.
        "ready": READY_NOTE.pack(os.getpid()),
        "log_format": settings.log_format,
        "log_level": settings.log_level,
    }
    told = os.memfd_create("korvet-lake", 0)
    os.write(told, msgspec.json.encode(configuration))
    os.lseek(told, 0, os.SEEK_SET)
    for fd in (slot.life_fd, slot.note_fd):
        os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
    # An argument that is a number, and an interpreter that is this one.
    os.execv(sys.executable, [sys.executable, "-m", "korvet.lake.service", str(told)])  # noqa: S606 - as above
