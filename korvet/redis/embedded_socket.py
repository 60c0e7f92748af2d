"""Where the embedded server of a data directory listens: for the broker that starts it and for all others."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from korvet.errors import ConfigError

# sun_path holds 108 bytes with the final zero (unix(7)).
_SOCKET_PATH_BYTES_MAX = 107
_SOCKET = "server.sock"


def socket_of(directory: Path) -> Path:
    """Return where the server of a data directory listens while it runs, the same at every start; raises ConfigError.

    It is in that directory, or where the path would be too long in one of the system's for temporary files.
    """
    directory = directory.expanduser().resolve()
    path = directory / _SOCKET
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    runtime = Path(tempfile.gettempdir()) / f"korvet-{os.getuid()}-{digest}"
    short = runtime / _SOCKET
    if len(os.fsencode(short)) > _SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"data.dir {directory}: too long for a unix socket, and so is {runtime}")
    return short


def running_url(directory: Path) -> str | None:
    """Return the Redis URL of the server of a data directory, None if none runs; raises ConfigError."""
    path = socket_of(directory)
    if not path.exists():
        return None
    # In a directory open to all users the name may be somebody else's, whose server this would be.
    if path.parent != directory.expanduser().resolve() and _owner(path.parent) != os.getuid():
        raise ConfigError(f"{path.parent} is not a private directory of this user: remove it")
    return f"unix://{quote(str(path))}"


def _owner(path: Path) -> int:
    return path.lstat().st_uid
