"""Directories for files that need not survive a restart, in the service's own directory or the system's for such files.

Knows names, owners and permissions; nothing of what lies in the directories.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from korvet.config import Address
from korvet.errors import ConfigError

_SERVICE = "/run/korvet"
"""Where systemd makes the directories of units whose RuntimeDirectory is `korvet`, or begins so."""


def make_private(path: Path) -> None:
    """Make the directory `path`, or take the one there; raises ConfigError unless it is this user's alone."""
    path.mkdir(mode=0o700, exist_ok=True)
    # In a directory open to all users the name may be somebody else's, who would then read what is put there.
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{path} is not a private directory of this user: remove it")


def empty_for(address: Address) -> Path:
    """Return an empty private directory for the broker that holds the port of `address`.

    The name is the port's, so what a killed broker left is found and removed by the next one on the same port.
    """
    host = address.host.replace(":", "_")
    path = _base() / f"korvet-{os.getuid()}-{host}-{address.port}"
    try:
        make_private(path)
        shutil.rmtree(path)
        path.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    return path


def of_all() -> list[Path]:
    """Return the directories of all brokers of this machine that this user may see; some may be of killed ones."""
    found = set(_base().glob("korvet-*"))
    found.update(Path(tempfile.gettempdir()).glob("korvet-*"))
    found.update(Path(_SERVICE).parent.glob(f"{Path(_SERVICE).name}*/korvet-*"))
    return sorted(found)


def _base() -> Path:
    # What a service manager made for this service alone, which goes with it.
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given or tempfile.gettempdir())
