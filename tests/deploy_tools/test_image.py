"""buildah builds the broker's image from the Dockerfile; its broker runs as an engine would run it, and drains.

Needs root. The base image is made by debootstrap, since no registry of images is asked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, ROOT, dockerfile
from tests.deploy_tools.tools import run
from tests.support.processes import wait_until

pytestmark = pytest.mark.timeout(1500)

OWN_LAYERS_BYTES_MAX = 60_000_000
AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""What this machine trusts besides Debian's authorities, for a package index behind a proxy."""

# Arguments: root file system, volume, user, command. The root is read-only, /tmp and the volume are not.
START = """
set -eu
root=$1 volume=$2 user=$3
shift 3
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o uid=${user%:*},gid=${user#*:},mode=0700 tmpfs "$root$volume"
mount -t tmpfs tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
for device in null urandom; do mknod -m 666 "$root/dev/$device" c 1 "$(stat -c 0x%T /dev/$device)"; done
exec chroot --userspec="$user" "$root" "$@"
"""


class Image:
    """The image in a store of buildah's own: its configuration, its unpacked files, its layers."""

    def __init__(self, directory: Path, cleanup: ExitStack) -> None:
        assert os.geteuid() == 0, "the image is built by root only"
        cleanup.callback(shutil.rmtree, directory)
        self._store = (
            "--root",
            f"{directory}/store",
            "--runroot",
            f"{directory}/run",
            "--storage-driver",
            "vfs",
        )
        self._base(directory / "base")
        flags = ("--isolation", "chroot", "--format", "docker", "--target", "broker")
        arguments = (
            "--build-arg",
            "VERSION=1.2.3",
            "--build-arg",
            "REVISION=abc",
            "--build-arg",
            "SOURCE=here",
        )
        file = ("--file", str(DEPLOY / "docker/Dockerfile"))
        self._buildah("bud", *flags, *arguments, *file, "--tag", "korvet", str(ROOT))
        self._buildah("push", "--quiet", "korvet", f"dir:{directory}/pushed")
        manifest = json.loads((directory / "pushed/manifest.json").read_text())
        self.layer_sizes: list[int] = [layer["size"] for layer in manifest["layers"]]
        self.config: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", "korvet"))[
            "Docker"
        ]["config"]
        container = self._buildah("from", "--pull-never", "korvet").strip()
        self.root = Path(self._buildah("mount", container).strip())
        cleanup.callback(self._buildah, "rm", container)

    def _buildah(self, command: str, *arguments: str) -> str:
        return run("buildah", *self._store, command, *arguments, package="buildah")

    def _base(self, directory: Path) -> None:
        """Store a minimal Debian under the name that the Dockerfile begins with."""
        name = next(
            line.text.split()[0] for line in dockerfile(DEPLOY / "docker/Dockerfile") if line.name == "FROM"
        )
        release = name.partition(":")[2].removesuffix("-slim")
        run("debootstrap", "--variant=minbase", release, str(directory), package="debootstrap")
        if AUTHORITIES.is_dir():
            shutil.copytree(AUTHORITIES, directory / AUTHORITIES.relative_to("/"))
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", container, str(directory), "/")
        self._buildah("commit", "--rm", container, f"docker.io/library/{name}")
        shutil.rmtree(directory)


class Container:
    """A broker of the image with its own network, mounts and process ids; the entry point is process 1."""

    def __init__(self, image: Image, log: Path, cleanup: ExitStack) -> None:
        self._image = image
        self.user: str = image.config["User"]
        self._environment = dict(line.split("=", 1) for line in image.config["Env"])
        self._environment["KORVET_ADVERTISED_LISTENERS"] = "PLAINTEXT://127.0.0.1:9092"
        [volume] = image.config["Volumes"]
        unshare = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", START, "sh")
        command = (*image.config["Entrypoint"], *image.config["Cmd"])
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                (*unshare, str(image.root), volume, self.user, *command),
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        cleanup.callback(self.process.wait)
        cleanup.callback(self.process.kill)

    @property
    def first(self) -> int:
        """The process id, on this machine, of the container's process 1."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def children(self) -> list[str]:
        """Return the state of each child of process 1: S for one that sleeps, Z for one that was not reaped."""
        listed = Path(f"/proc/{self.first}/task/{self.first}/children").read_text().split()
        return [Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0] for child in listed]

    def run(self, *command: str, text: str = "") -> tuple[int, str]:
        """Return status and output of a command in the container."""
        inside = ("nsenter", f"--target={self.first}", "--mount", "--net", "--pid")
        root = ("chroot", f"--userspec={self.user}", str(self._image.root))
        done = subprocess.run(
            (*inside, *root, *command),
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with ExitStack() as cleanup:
        yield Image(tmp_path_factory.mktemp("image"), cleanup)


def test_korvets_layers_are_small(image: Image) -> None:
    _, *own = image.layer_sizes
    assert sum(own) <= OWN_LAYERS_BYTES_MAX


def test_labels_say_what_was_built(image: Image) -> None:
    labels = {
        name.rpartition(".")[2]: text
        for name, text in image.config["Labels"].items()
        if "opencontainers" in name
    }
    assert labels == {
        "title": "korvet", "version": "1.2.3", "revision": "abc", "source": "here", "licenses": "Apache-2.0"
    }  # fmt: skip


def test_a_broker_on_a_read_only_root_serves_clients_and_drains(image: Image, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ExitStack() as cleanup:
        container = Container(image, log, cleanup)
        wait_until(lambda: "the broker is ready" in log.read_text(), "a broker that is ready")
        assert container.run(*image.config["Healthcheck"]["Test"][1:]) == (0, "")
        assert container.run("korvet", "produce", "orders", text="widget\n")[0] == 0
        assert container.run("korvet", "consume", "orders", "--offset", "beginning", "--exit") == (
            0,
            "widget\n",
        )
        assert container.run("touch", "/opt/korvet/file")[0] != 0
        # An orphan is reaped by process 1, which has one child otherwise.
        assert container.run("sh", "-c", "sleep 0.1 & exit")[0] == 0
        wait_until(lambda: container.children() == ["S"], "one child of process 1")
        os.kill(container.first, getattr(signal, image.config["StopSignal"]))
        assert container.process.wait(30) == 0
    ended = [line["event"] for line in map(json.loads, log.read_text().splitlines())]
    assert ended[-1] == "stopped"
