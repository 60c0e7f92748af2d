"""A command where the name server hears and says nothing: `python -m tests.support.silent_names COMMAND`."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.support import processes
from tests.support.docs import ROOT
from tests.support.tutorial import loopback_up

_PORT = 53
# How long the system's resolver goes on asking is the longest that it knows.
_RESOLV_CONF = b"nameserver 127.0.0.1\noptions timeout:30 attempts:5\n"


def run(*command: str, seconds_max: float) -> subprocess.CompletedProcess[str]:
    """Run a command in a network and with a resolv.conf of its own. It fails unless it asks for a name."""
    alone = ("unshare", "--map-root-user", "--mount", "--net", "--", sys.executable, "-m", __name__)
    return subprocess.run(
        processes.dying_with_tests([*alone, *command]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


def main(command: Sequence[str]) -> int:
    """Run the command; returns its exit code. The process is alone in its network, and has its own mounts."""
    loopback_up()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        tempfile.NamedTemporaryFile() as configuration,
    ):
        server.bind(("127.0.0.1", _PORT))
        configuration.write(_RESOLV_CONF)
        configuration.flush()
        subprocess.run(["mount", "--bind", configuration.name, "/etc/resolv.conf"], check=True)
        code = subprocess.run(command, check=False).returncode
        # It has asked: this returns at once.
        server.recv(512, socket.MSG_DONTWAIT)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
