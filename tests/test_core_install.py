"""What `make` does to have korvet-core: a published wheel of the same sources, else cargo, else a message."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ("sh", "cat", "find", "grep", "mkdir", "rm", "sed", "sha256sum", "test", "touch")
WHEEL = "korvet_core-0.9.1-py3-none-any.whl"

pytestmark = pytest.mark.slow


class Clone:
    """A checkout with no more than what `make` needs for the core, its environment, and no cargo on PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "requirements-core.lock"
        self.stamp = directory / ".venv/.core"
        self.source = directory / "core/Cargo.toml"
        self.source.parent.mkdir()
        self.source.write_text('version = "0.9.1"\n')
        shutil.copy(ROOT / "Makefile", directory)
        (directory / "bin").mkdir()
        for name in PROGRAMS:
            (directory / "bin" / name).symlink_to(shutil.which(name) or "")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / ".venv"], check=True)
        (directory / "dist").mkdir()
        with zipfile.ZipFile(directory / "dist" / WHEEL, "w") as wheel:
            wheel.writestr("korvet_core.py", "")
            wheel.writestr("korvet_core-0.9.1.dist-info/METADATA", "Name: korvet-core\nVersion: 0.9.1\n")
            wheel.writestr("korvet_core-0.9.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr("korvet_core-0.9.1.dist-info/RECORD", "")
        assert self.make("core-lock").returncode == 0

    def make(self, target: str) -> subprocess.CompletedProcess[str]:
        """Run a target where pip finds wheels in dist/ only, and the environment has what the locks pin."""
        pip = f"{sys.executable} -m pip --python .venv/bin/python --disable-pip-version-check --quiet"
        stamps = ("--assume-old", ".venv/.made", "--assume-old", ".venv/.locked")
        make = shutil.which("make") or ""
        return subprocess.run(
            [make, target, f"PIP={pip}", *stamps],
            cwd=self.directory,
            env={"PATH": str(self.directory / "bin"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "dist"},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def has_core(self) -> bool:
        """Whether the environment has a package of this name."""
        return bool(list(self.directory.glob(".venv/lib/*/site-packages/korvet_core*")))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_published_wheel_of_the_same_sources_is_installed_without_cargo(clone: Clone) -> None:
    done = clone.make(".venv/.core")
    assert (done.returncode, done.stdout) == (0, "")
    assert clone.has_core
    assert clone.stamp.exists()


@pytest.mark.parametrize("change", ["another source", "another wheel", "no lock"])
def test_without_it_and_without_cargo_one_line_says_what_to_install(clone: Clone, change: str) -> None:
    if change == "another source":
        clone.source.write_text('version = "0.9.1"  # edited\n')
    elif change == "another wheel":
        clone.lock.write_text(clone.lock.read_text().replace("sha256:", "sha256:0")[:-2] + "\n")
    else:
        clone.lock.unlink()
    done = clone.make(".venv/.core")
    assert done.returncode == 2
    assert done.stdout.count("apt-get install cargo-web rustc-web") == 1
    assert not clone.has_core
    assert not clone.stamp.exists()
