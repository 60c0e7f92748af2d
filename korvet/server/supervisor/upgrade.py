"""What a supervisor hands to the one that its own process becomes: an upgrade in place, on SIGUSR2.

Knows what is handed over, how it passes through exec, and which command is run; not when, nor who makes what of it.
The process stays the same: children, the embedded server and a service manager notice nothing, and every descriptor
that is handed over keeps its number. All else stands in a file without a name, since it may hold a password.

The rehearsal of an upgrade: the version on disk shows that it could take over, before it is let.

Knows the process that does it, and its deadline; not what happens afterwards. That process ends where the next
supervisor would begin, and everything that may go wrong by then (a package half installed, a setting that is no more,
a script that needs another right in Redis) goes wrong in it, while the broker serves on.

The two ends of an upgrade in place: what the old supervisor hands over, and what the new one makes of it.

Knows which object each part of a handover comes from and becomes; not when it happens (supervisor.py) nor how it
passes (handover.py). Nothing here asks Redis or waits: what was checked at the start, or by the rehearsal, holds.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import msgspec

from korvet import logs
from korvet.config.settings import Settings, Value, rows
from korvet.errors import ConfigError
from korvet.server import embedded as binaries
from korvet.server import process as nameless
from korvet.server.data_dir import DataDir
from korvet.server.embedded import EmbeddedServer
from korvet.server.process import die_with_parent
from korvet.server.supervisor import ports as listeners
from korvet.server.supervisor import redis_check, startup
from korvet.server.supervisor.children import Child, Children, Seat
from korvet.server.supervisor.ports import Reservation
from korvet.server.supervisor.redis_check import ServerFacts
from korvet.server.supervisor.signals import Signals
from korvet.server.supervisor.slot import Scoreboard
from korvet.server.supervisor.startup import Runtime

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


_SECONDS_MAX = 60.0
_LAST_WORDS_BYTES = 4096


class Rehearsal:
    """One rehearsal under way; raises OSError where it cannot even begin."""

    def __init__(self, handed: Handover, environ: Iterable[tuple[str, str]]) -> None:
        self.deadline = time.monotonic() + _SECONDS_MAX
        fd = write(handed)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what started this process
                command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                env={**dict(environ), REHEARSAL: str(fd)},
                pass_fds=(fd,),
                # The supervisor has one thread, so there is no lock that this could find taken.
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509
            )
        except OSError:
            self._words.close()
            raise
        finally:
            os.close(fd)

    def problem(self) -> str | None:
        """Return None while it goes on, "" when all went well, and else what did not."""
        if self._process.poll() is None:
            if time.monotonic() < self.deadline:
                return None
            self._process.kill()
            self._process.wait()
            return f"it took longer than {_SECONDS_MAX:.0f} s"
        if self._process.returncode == 0:
            return ""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - _LAST_WORDS_BYTES))
        lines = self._words.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{said} (status {self._process.returncode})"

    def end(self) -> None:
        """End it where it still runs."""
        self._process.kill()
        self._process.wait()
        self._words.close()


_log = logs.Log(__name__)


def handed(
    configured: Settings, foundation: Runtime, children: Children, manager: dict[str, str], changes: int
) -> Handover:
    """Return what the next supervisor needs of this one."""
    embedded, ops = foundation.embedded, foundation.ops_listener
    return Handover(
        fixed={row.attribute: row.of(configured) for row in rows() if not row.about.reload},
        resolved=foundation.resolved,
        facts=foundation.facts,
        data=foundation.data,
        incarnation=foundation.incarnation,
        metrics_directory=str(foundation.metrics_directory),
        listen_fds=[each.fileno() for each in foundation.reservations],
        ops_fd=None if ops is None else ops.fileno(),
        server=None if embedded is None else HandedServer(*embedded.handed()),
        scoreboard_fd=children.scoreboard.fileno(),
        pipes=children.pipes,
        children=[
            HandedChild(each.pid, each.index, each.name, each.ready_at, each.retiring, each.kill_at)
            for each in children.living.values()
        ],
        manager=manager,
        changes=changes,
    )


def merged(handover: Handover, loaded: Settings) -> Settings:
    """Return `loaded` with what only a restart may alter as it was, where this version still has such a setting."""
    kept = {}
    for row in rows():
        if row.attribute in handover.fixed and row.of(loaded) != handover.fixed[row.attribute]:
            if not row.about.reload:
                _log.warning("a new value needs a restart", setting=row.name)
            kept[row.attribute] = handover.fixed[row.attribute]
    return msgspec.structs.replace(loaded, **kept)


def rehearse(handover: Handover, loaded: Settings) -> None:
    """Do all that a takeover does and that may fail, but for the takeover itself; raises what it raises.

    What only children import is imported too: this process forks none.
    """
    settings = msgspec.structs.replace(merged(handover, loaded), **handover.resolved)
    if handover.server is not None:
        binaries.find()
    startup.check_lake(settings)
    startup.compile_codecs()
    redis_check.check(settings, time.sleep, _log.info)
    redis_check.prepare(settings)
    from korvet.server import ops, worker  # noqa: F401, PLC0415 - gevent may be in this process
    from korvet.server.keeper import keeper  # noqa: F401, PLC0415 - gevent may be in this process


def foundation(handover: Handover, settings: Settings, cleanup: ExitStack) -> Runtime:
    """Return what the children stand on, from what was handed over."""
    for fd in handover.descriptors():
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keyword
    reservations = tuple(Reservation("listen ", socket.socket(fileno=fd)) for fd in handover.listen_fds)
    for each in reservations:
        cleanup.callback(each.close)
    ops = None
    if handover.ops_fd is not None:
        ops = cleanup.enter_context(socket.socket(fileno=handover.ops_fd))
        ops.settimeout(0.0)
    embedded = None
    if handover.server is not None:
        directory = DataDir(Path(handover.server.directory), handover.server.lock_fd)
        cleanup.callback(directory.close)
        embedded = EmbeddedServer(directory, binaries.find(), settings.embedded_maxmemory_bytes)
        cleanup.callback(embedded.stop)
        embedded.adopt(handover.server.pid)
    metrics_directory = Path(handover.metrics_directory)
    cleanup.callback(shutil.rmtree, metrics_directory, ignore_errors=True)
    startup.compile_codecs()
    return Runtime(
        handover.resolved,
        embedded,
        handover.facts,
        handover.data,
        reservations,
        listeners.reserved(settings, reservations),
        ops,
        metrics_directory,
        handover.incarnation,
    )


def children(handover: Handover) -> Children:
    """Return the children that live, with their table and their pipes."""
    scoreboard = Scoreboard.shared(handover.scoreboard_fd)
    if scoreboard is None:
        # Another version's. The old children go on in the old one, which the old ops process shows until its end.
        scoreboard = Scoreboard()
    found = Children(scoreboard, Path(handover.metrics_directory), handover.pipes)
    for each in handover.children:
        found.living[each.pid] = Child(
            each.pid, each.index, each.name, each.ready_at, each.retiring, each.kill_at
        )
    return found


def take_seats(seats: list[Seat], children: Children) -> list[Child]:
    """Give the children that stay a seat each; returns those for whom this version has none."""
    free = [seat for seat in seats if seat.index is None]
    left_over = []
    for child in children.living.values():
        # A row of its own is not free before its child has ended, also where that is on its way.
        seat = next((seat for seat in seats if seat.index == child.index), None)
        if seat is None and child.retiring:
            continue
        if seat is None and child.name.startswith("worker") and free:
            seat = free.pop(0)
        if seat is None:
            left_over.append(child)
        else:
            seat.child = child
    return left_over
