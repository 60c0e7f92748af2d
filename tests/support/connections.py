"""Which processes of this machine are connected over TCP, according to the kernel."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_ESTABLISHED = "01"


def connected(pid: int, others: Iterable[int]) -> bool:
    """Tell whether a process has a connection to one of the others."""
    far_ends = {(remote, local) for other in others for local, remote in ends(other)}
    return not far_ends.isdisjoint(ends(pid))


def ends(pid: int, *, established: bool = True) -> set[tuple[str, str]]:
    """Return the local and the remote address of each connection of a process, as the kernel writes them."""
    sockets = set()
    with contextlib.suppress(FileNotFoundError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets.add(str(path.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        (row[1], row[2])
        for row in rows
        if (row[3] == _ESTABLISHED or not established) and f"socket:[{row[9]}]" in sockets
    }


def as_kernel_writes(host: str, port: int) -> str:
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}"
