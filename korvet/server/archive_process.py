"""The child that archives: how the process that the supervisor forked becomes another program.

Knows what that program is told (korvet.spark.service); imports nothing of it, for neither deltalake nor Arrow nor Spark
is to be in any process that forks. Secrets go through a file without a name, not through its command line.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from korvet.config import Settings
from korvet.server.slot import READY_NOTE, ChildSlot


def become(settings: Settings, slot: ChildSlot, directory: Path) -> None:
    """Go on as the program that archives, and tell of it in `directory`; returns on SIGTERM where there is no work.

    There is none with both intervals 0; a reload may change that, and takes another child then.
    """
    if not settings.lake_interval_ms and not settings.lake_upkeep_interval_ms:
        told = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        slot.ready()
        signal.sigwait({signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_SETMASK, told)
        return
    path = settings.lake_path
    if "://" not in path:
        # A task of Spark may run in another directory.
        path = str(Path(path).expanduser().absolute())
    configuration = {
        "settings": msgspec.structs.replace(settings, lake_path=path),
        "directory": str(directory),
        "life_fd": slot.life_fd,
        "note_fd": slot.note_fd,
        # Its process is this one still.
        "ready": READY_NOTE.pack(os.getpid()),
    }
    told_fd = os.memfd_create("korvet-archiver", 0)
    os.write(told_fd, msgspec.json.encode(configuration))
    for fd in (slot.life_fd, slot.note_fd):
        os.set_inheritable(fd, True)  # noqa: FBT003 - takes no keyword
    # An argument that is a number, and an interpreter that is this one.
    os.execv(sys.executable, [sys.executable, "-m", "korvet.spark.service", str(told_fd)])  # noqa: S606 - as above
