"""Runs a tool of the system."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def run(program: str, *arguments: str, directory: Path | None = None, package: str) -> str:
    """Return what a program prints where it succeeds, on stderr only if that is all; Debian's `package` brings it."""
    result = shutil.which(program)
    assert result, f"{program} is not on PATH (on Debian or Ubuntu: apt-get install {package})"
    done = subprocess.run([result, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout or done.stderr
