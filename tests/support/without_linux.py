"""Runs `korvet` without what Linux alone has: `python -m tests.support.without_linux serve ...`.

It stands for macOS, whose names of socket options it has, where Python asks the system. What the kernel does by itself,
spreading connections over workers say, stays.
"""

from __future__ import annotations

import os
import socket
import sys

# Parts of the standard library that need macOS itself if they are imported as there.
import urllib.request  # noqa: F401 - as above
from typing import Any

_stat = os.stat


def take_away() -> None:
    """Have this process and its children find nothing of Linux; import Korvet after it."""
    setattr(sys, "platform", "darwin")  # noqa: B010 - mypy knows the value
    setattr(socket, "TCP_KEEPALIVE", socket.TCP_KEEPIDLE)  # noqa: B010 - not in its types
    socket.__all__[socket.__all__.index("TCP_KEEPIDLE")] = (
        "TCP_KEEPALIVE"  # from which gevent takes its names
    )
    for module, names in (
        (os, ("memfd_create", "posix_fallocate", "sched_getaffinity", "eventfd", "pipe2")),
        (socket, ("TCP_KEEPIDLE",)),
    ):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.addaudithook(_refuse)
    os.stat = _stat_without_proc


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"} and _in_proc(arguments[0]):
        raise FileNotFoundError(arguments[0])


def _stat_without_proc(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
    if _in_proc(path):
        raise FileNotFoundError(path)
    return _stat(path, *arguments, **named)


def _in_proc(path: object) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc/", "/sys/"))


def main() -> None:
    """Be `korvet`."""
    take_away()
    from korvet.cli.main import main as korvet

    korvet()


if __name__ == "__main__":
    main()
