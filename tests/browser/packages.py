"""What tests and pictures take from npm: each package in one version, known by its SHA-256."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.harness import NotAvailableError

CACHE = Path(__file__).parent / ".cache"
_NPM_SECONDS_MAX = 600


@contextmanager
def cache() -> Iterator[Path]:
    """Lend the directory for what was fetched to one process: tests in several ask at the same time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield CACHE


def fetch(package: str, sha256: str) -> Path:
    """Fetch a package, and return the archive. Raises NotAvailableError."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotAvailableError(f"there is no npm that could fetch {package}")
    command = [npm, "pack", "--silent", "--pack-destination", str(CACHE), package]
    done = subprocess.run(
        command, cwd=CACHE, capture_output=True, text=True, timeout=_NPM_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise NotAvailableError(f"npm does not fetch {package}: {done.stderr.strip()}")
    archive = CACHE / done.stdout.strip().splitlines()[-1]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != sha256:
        raise NotAvailableError(f"{archive.name} is not what it was: it has the SHA-256 {digest}")
    return archive


def script(package: str, sha256: str, member: str) -> str:
    """Return a script of a package, fetched unless it is there. Raises NotAvailableError."""
    with cache() as directory:
        # A new version is another file.
        kept = directory / f"{sha256[:16]}.js"
        if not kept.exists():
            archive = fetch(package, sha256)
            with tarfile.open(archive) as opened:
                file = opened.extractfile(f"package/{member}")
                assert file is not None
                part = kept.with_suffix(".part")
                part.write_bytes(file.read())
            part.rename(kept)
            archive.unlink()
        return kept.read_text(encoding="utf-8")
