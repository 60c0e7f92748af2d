"""What `make dist`, `make bundle` and the Dockerfile build, installed into environments that have nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.dist import image

ROOT = Path(__file__).parents[2]
SMOKE = partial(pytest.param, marks=pytest.mark.smoke)
IMAGE = "image"
SETTINGS = '"workers" = 1\n'
"""What is configured before the bundle is installed."""


class Installed(NamedTuple):
    """An environment with Korvet in it, made from the archive of that name, or by the image's Dockerfile."""

    archive: str
    environment: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.environment / "bin/python"

    @property
    def korvet(self) -> Path:
        """The command."""
        return self.environment / "bin/korvet"


def run(*command: str | Path, directory: Path, **variables: str) -> str:
    """Return what a command prints where it succeeds."""
    done = subprocess.run(
        command, cwd=directory, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def make(target: str, directory: Path) -> Path:
    """Let `make` build into an empty directory, with the environment in which the tests run."""
    stamps = (".made", ".run")
    as_it_is = [word for stamp in stamps for word in ("--assume-old", f"{sys.prefix}/{stamp}")]
    run("make", target, f"VENV={sys.prefix}", f"DIST={directory}", *as_it_is, directory=ROOT)
    return directory


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_checkout_is_found() -> None:
    """Let no interpreter find the checkout's own modules."""
    os.environ.pop("PYTHONPATH", None)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory with the wheel, the source archive and the bundle."""
    return make("bundle", tmp_path_factory.mktemp("built") / "dist")


@pytest.fixture(scope="session", params=[SMOKE("wheel"), "source archive", "bundle", SMOKE(IMAGE)])
def installed(
    request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """Give an environment for each of them. pip uses its index, but for the bundle, which needs none."""
    directory = tmp_path_factory.mktemp("installed")
    if request.param == IMAGE:
        return Installed(request.param, image.build(directory))
    [bundle] = built.glob("korvet-*-python*.tar.gz")
    if request.param == "bundle":
        shutil.unpack_archive(bundle, directory, filter="data")
        [unpacked] = directory.iterdir()
        settings = directory / "etc/korvet/korvet.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS)
        variables = {
            "DESTDIR": str(directory),
            "PYTHON": sys.executable,
            "PIP_INDEX_URL": "http://127.0.0.1:9",
        }
        said = run("deploy/install.sh", directory=unpacked, **variables)
        assert "edit" in said
        shutil.rmtree(unpacked)
        return Installed(request.param, directory / "opt/korvet")
    [wheel] = built.glob("korvet-*.whl")
    [source] = set(built.glob("korvet-*.tar.gz")) - {bundle}
    made = Installed(request.param, directory / "environment")
    run(sys.executable, "-m", "venv", made.environment, directory=directory)
    archive = source if request.param == "source archive" else wheel
    run(
        *(made.python, "-m", "pip", "install", "--quiet", "--find-links", built, archive), directory=directory
    )
    return made
