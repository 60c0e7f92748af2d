"""What a supervisor hands to the one that its own process becomes: an upgrade in place, on SIGUSR2.

Knows what is handed over, how it passes through exec, and which command is run; not when, nor who makes what of it.
The process stays the same: children, the embedded server and a service manager notice nothing, and every descriptor
that is handed over keeps its number. All else stands in a file without a name, since it may hold a password.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import NoReturn

import msgspec

from korvet.config import Value
from korvet.errors import ConfigError
from korvet.server import nameless
from korvet.server.redis_check import ServerFacts
from korvet.server.signals import Signals

HANDOVER, REHEARSAL = "_KORVET_HANDOVER", "_KORVET_REHEARSAL"
"""Environment variables with the number of the file's descriptor: to take over, and to find out whether one could."""

_FORM = 1
_BYTES_MAX = 16 * 1024 * 1024


class HandedChild(msgspec.Struct, frozen=True):
    """A living child; times are monotonic seconds, as in children.Child."""

    pid: int
    index: int
    name: str
    ready_at: float | None
    retiring: bool
    kill_at: float | None


class HandedServer(msgspec.Struct, frozen=True):
    """The embedded server, 0 as its process id when it does not run, and the lock of its directory."""

    pid: int
    directory: str
    lock_fd: int


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """All that the next supervisor cannot find by itself.

    `fixed` are the settings that only a restart alters, by attribute; `pipes` are life, alive, notes and note of
    children.Children; `manager` are the service manager's variables.
    """

    fixed: dict[str, Value]
    resolved: dict[str, str | int]
    facts: ServerFacts
    data: str
    incarnation: str
    metrics_directory: str
    listen_fds: list[int]
    ops_fd: int | None
    server: HandedServer | None
    scoreboard_fd: int
    pipes: tuple[int, int, int, int]
    children: list[HandedChild]
    manager: dict[str, str]
    changes: int
    form: int = _FORM

    def descriptors(self) -> list[int]:
        """Return what must stay open."""
        optional = [self.ops_fd, self.server.lock_fd if self.server else None]
        kept = [*self.listen_fds, *(fd for fd in optional if fd is not None)]
        return [*kept, self.scoreboard_fd, *self.pipes]


def write(handed: Handover) -> int:
    """Return the descriptor of a file that holds it, ready to be read; it is closed by exec, as all are made."""
    fd = nameless.file("korvet-handover")
    os.write(fd, msgspec.json.encode(handed))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def taken(environ: MutableMapping[str, str], variable: str) -> Handover | None:
    """Return what the environment's `variable` leads to, and take that away; None where nothing is handed over.

    Raises ConfigError where this version cannot take it over.
    """
    text = environ.pop(variable, None)
    if text is None:
        return None
    try:
        fd = int(text)
        content = os.pread(fd, _BYTES_MAX, 0)
        os.close(fd)
        handed = msgspec.json.decode(content, type=Handover)
    except (OSError, ValueError) as error:
        raise ConfigError(f"what the running broker hands over cannot be read: {error}") from None
    if handed.form != _FORM:
        raise ConfigError(
            f"the running broker hands itself over in form {handed.form}, this version takes {_FORM}"
        )
    return handed


def command() -> list[str]:
    """Return what started this process, as it is to be started again.

    A script is run by its own first line, for after an upgrade that may name another interpreter.
    """
    script = sys.argv[0]
    if sys.orig_argv[1:] == sys.argv and Path(script).is_file() and os.access(script, os.X_OK):
        return [os.path.abspath(script), *sys.argv[1:]]  # noqa: PTH100 - a link stays the link that it is
    return [sys.executable, *sys.orig_argv[1:]]


def become(handed: Handover, environ: Iterable[tuple[str, str]], signals: Signals) -> NoReturn:
    """Go on as the program that stands on disk now, in this process. Raises OSError where that cannot be.

    `signals` that have come and nobody acted on, and that come meanwhile, wait until the next supervisor takes them.
    """
    fd = write(handed)
    kept = [fd, *handed.descriptors()]
    signals.hold()
    try:
        for each in kept:
            os.set_inheritable(each, True)  # noqa: FBT003 - takes no keyword
        arguments = command()
        variables = {**dict(environ), **handed.manager, HANDOVER: str(fd)}
        os.execve(arguments[0], arguments, variables)  # noqa: S606 - what started this process
    except OSError:
        for each in kept:
            os.set_inheritable(each, False)  # noqa: FBT003 - takes no keyword
        os.close(fd)
        signals.release()
        raise
