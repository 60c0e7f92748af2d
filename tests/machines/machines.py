"""Machines with a systemd and an address each, on a network of their own.

Their files are layers over this machine's: first the packages of all of them, then the writes of each. They
share the kernel. All of it is gone after the test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.support import processes

NEEDED = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux", "systemd-nspawn": "systemd-container"}
"""Programs, and the packages of Debian that have them."""

HOME = "/srv"
"""Where the operator's shells begin on machines."""

_INTERPRETER = "/usr/bin/python3"
_BOOT_SECONDS_MAX = 90.0
_END = "=== the block has ended"


class FailedError(Exception):
    """A block of commands did not end well."""


def check_needs() -> None:
    """Fail with what is missing."""
    assert os.geteuid() == 0, "this makes networks and mounts file systems: run it as root"
    missing = {program: package for program, package in NEEDED.items() if shutil.which(program) is None}
    assert not missing, f"on Debian or Ubuntu: apt-get install {' '.join(sorted(missing.values()))}"
    # The bundle is for the version of Python that builds it; a service cannot see one in somebody's home.
    ours = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert call(_INTERPRETER, "--version").startswith(f"{ours}."), (
        f"{_INTERPRETER} is not {ours}, that of .venv"
    )


def call(*command: str | Path, begin: Callable[[], None] | None = None) -> str:
    """Return what a command prints where it succeeds. `begin` is called first in its process."""
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=begin, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


class Shell:
    """A shell that stays: a block of commands sees the variables of earlier ones. `transcript` has what it did."""

    def __init__(self, *inside: str, home: str = HOME, environment: Mapping[str, str] | None = None) -> None:
        self.transcript = ""
        self._process = subprocess.Popen(
            processes.dying_with_tests([*inside, "bash", "-s"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **(environment or {})},
        )
        self._write(f"set -euo pipefail; cd {home}\n")

    def run(self, block: str) -> str:
        """Return what a block prints; raises FailedError if one of its commands fails."""
        # The commands have no input: it is the shell's.
        self._write(f"{{\n{block}\n}} </dev/null\necho '{_END}'\n")
        printed = ""
        assert self._process.stdout
        for line in self._process.stdout:
            if line.rstrip() == _END:
                self.transcript += f"$ {block}\n{printed}"
                return printed
            printed += line
        raise FailedError(f"{self.transcript}$ {block}\n{printed}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _write(self, text: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(text)
        self._process.stdin.flush()


class Network:
    """A bridge that machines and clients are on; names of this machine's network are not touched."""

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        self._cleanup = cleanup
        self._prefix = f"korvet-{os.getpid()}"
        self._bridge = self._namespace("bridge")
        self._ip(self._bridge, "link", "add", "br0", "type", "bridge")
        self._ip(self._bridge, "link", "set", "br0", "up")

    def join(self, name: str, address: str) -> str:
        """Return the name of a new network namespace with this address on the bridge."""
        namespace = self._namespace(name)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._ip(self._bridge, "link", "add", name, *peer)
        self._ip(self._bridge, "link", "set", name, "master", "br0", "up")
        self._ip(namespace, "address", "add", f"{address}/24", "dev", "eth0")
        self._ip(namespace, "link", "set", "eth0", "up")
        return namespace

    def cut(self, name: str) -> None:
        """Let nobody reach a machine, as if it had no power."""
        self._ip(self._bridge, "link", "set", name, "down")

    def _namespace(self, name: str) -> str:
        namespace = f"{self._prefix}-{name}"
        call("ip", "netns", "add", namespace)
        self._cleanup.callback(call, "ip", "netns", "delete", namespace)
        self._ip(namespace, "link", "set", "lo", "up")
        return namespace

    @staticmethod
    def _ip(namespace: str, *words: str) -> None:
        call("ip", "-netns", namespace, *words)


class Layers:
    """The file systems of machines: `base` is what is installed on all, over this machine's own."""

    def __init__(self, directory: Path, cleanup: contextlib.ExitStack) -> None:
        self._directory = directory
        self._cleanup = cleanup
        # An upper layer must not lie within the lower one.
        call("mount", "-t", "tmpfs", "tmpfs", directory)
        cleanup.callback(call, "umount", "--lazy", directory)
        self.base = self._overlay("base", "/")
        (self.base / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (self.base / "usr/sbin/policy-rc.d").chmod(0o755)
        if shutil.which("sudo") is None:
            (self.base / "usr/local/bin/sudo").write_text('#!/bin/sh\nexec "$@"\n')
            (self.base / "usr/local/bin/sudo").chmod(0o755)
        # What this machine starts is not to start there.
        for wants in (self.base / "etc/systemd/system").glob("*.wants"):
            shutil.rmtree(wants)

    def install(self, archive: Path, block: str) -> None:
        """Run a block that installs an archive, in this machine's network."""
        shutil.copy(archive, f"{self.base}{HOME}")
        script = f"cd {HOME}; export DEBIAN_FRONTEND=noninteractive; {block}"
        # systemd-nspawn makes control groups below those in which it runs, and leaves them there.
        groups = ControlGroups("install")
        self._cleanup.callback(groups.remove)
        call(*spawn(self.base), "/bin/bash", "-euo", "pipefail", "-c", script, begin=groups.enter)

    def machine(self, name: str) -> Path:
        """Return the root of a machine with what is installed."""
        return self._overlay(name, f"{self._directory}/base-upper:/")

    def _overlay(self, name: str, lower: str) -> Path:
        root, upper, work = (self._directory / f"{name}{part}" for part in ("", "-upper", "-work"))
        for item in (root, upper, work):
            item.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        call("mount", "-t", "overlay", "overlay", "-o", options, root)
        self._cleanup.callback(call, "umount", "--lazy", root)
        return root


def spawn(root: Path) -> list[str]:
    """Return the words that run a command on a root."""
    return ["systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit"]


def control_groups() -> set[Path]:
    """Return the control groups of systemd and of these tests, at the top of their trees."""
    return {path for mount in _control_group_mounts() for path in mount.iterdir() if path.is_dir()}


def _control_group_mounts() -> list[Path]:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [
        Path(words[1]) for words in mounts if words[2] == "cgroup2" or "name=systemd" in words[3].split(",")
    ]


class ControlGroups:
    """Control groups of a machine's own, for systemd there names its services by them: else machines share theirs."""

    def __init__(self, name: str) -> None:
        self._paths = [mount / f"korvet-{os.getpid()}-{name}" for mount in _control_group_mounts()]
        for path in self._paths:
            path.mkdir()

    def enter(self) -> None:
        """Put the calling process into them."""
        for path in self._paths:
            (path / "cgroup.procs").write_text("0")

    def remove(self) -> None:
        """Remove them once their processes, which were killed, have ended."""
        for path in self._paths:
            processes.wait_until(partial(_removed, path), f"{path} is empty")


def _removed(path: Path) -> bool:
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
    return not path.exists()


class Machine:
    """A booted machine; `shell` is root's."""

    def __init__(self, name: str, root: Path, namespace: str, log: Path) -> None:
        self.root = root
        self._log = log
        self._groups = ControlGroups(name)
        words = [*spawn(root), f"--machine={name}", f"--network-namespace-path=/run/netns/{namespace}"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*words, "--capability=CAP_NET_ADMIN", "--boot", "systemd.unit=multi-user.target"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=self._begin,
            )
        processes.wait_until(self._leader, f"{name} boots: {log}", _BOOT_SECONDS_MAX)
        self._inside = ("nsenter", "--target", str(self._leader()), "--all", "--root", "--wd")
        self.shell = Shell(*self._inside)
        # Its bus is not there at once. `degraded` (a unit that is installed here too has failed) exits with 1.
        self.shell.run(
            "until { systemctl is-system-running || true; } | grep -E 'running|degraded'; do sleep 0.2; done"
        )

    def journal(self) -> str:
        """Return what its services last wrote."""
        return call(*self._inside, "journalctl", "--no-pager", "--lines=40")

    def close(self) -> None:
        """Cut its power."""
        self.shell.close()
        for pid in processes.descendants(self._process.pid):
            processes.kill(pid)
        self._process.kill()
        self._process.wait()
        self._groups.remove()

    def _begin(self) -> None:
        processes.die_with_tests()
        self._groups.enter()

    def _leader(self) -> int:
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        for pid in processes.children(self._process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                    return pid
        return 0


@contextlib.contextmanager
def booted(
    directory: Path, addresses: Mapping[str, str], archive: Path, install: str
) -> Iterator[tuple[dict[str, Machine], Network]]:
    """Boot machines with these names and addresses, on which `install` has been run."""
    with contextlib.ExitStack() as cleanup:
        network = Network(cleanup)
        layers = Layers(directory, cleanup)
        layers.install(archive, install)
        machines = {}
        for name, address in addresses.items():
            namespace = network.join(name, address)
            machine = Machine(name, layers.machine(name), namespace, directory.parent / f"{name}.log")
            cleanup.callback(machine.close)
            machines[name] = machine
        yield machines, network


def client_shell(network: Network, address: str, home: Path) -> Shell:
    """Return a shell of a client with an address of its own, and the commands of this checkout."""
    scripts = sysconfig.get_path("scripts")
    environment = {"PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    namespace = network.join("client", address)
    return Shell("ip", "netns", "exec", namespace, home=str(home), environment=environment)
