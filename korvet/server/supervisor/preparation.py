"""What is done in Redis before a broker serves, in a child of its own (redis_check.py): the check, the registration.

With redis-py, which nothing else needs that the supervisor does, it would take 9 MiB of the supervisor's memory, and so
of each process that is forked from it later.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from typing import NoReturn

import msgspec

from korvet import logs
from korvet.cluster.registration import Registration
from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.server.embedded import Progress
from korvet.server.supervisor import child
from korvet.server.supervisor.server_facts import ServerFacts
from korvet.server.supervisor.signals import HANDLED, Signals, reset_in_child

_log = logs.Log(__name__)


class Prepared(msgspec.Struct, frozen=True):
    """What Redis said: the facts of the server, and the ids of the cluster and of this broker."""

    facts: ServerFacts
    cluster_id: str
    broker_id: int


class _Note(msgspec.Struct):
    """A line in JSON from the child: how far it is, why the broker cannot start, or its result."""

    progress: str = ""
    refusal: str = ""
    prepared: Prepared | None = None


_DECODER = msgspec.json.Decoder(_Note)


class Preparation:
    """A child that prepares the Redis at `settings.redis_url`, from the first moment until `close`."""

    def __init__(self, settings: Settings, start: Registration, *, own: bool) -> None:
        """`own`: see redis_check.register."""
        self._fd, write_fd = os.pipe()
        sys.stdout.flush()
        die = child.die_with_parent(signal.SIGKILL)
        # As where the pool forks: a signal in between would be written into the supervisor's own pipe.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                die()
                _be_child(settings, start, write_fd, own=own)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        os.close(write_fd)

    def wait(self, signals: Signals, progress: Progress) -> Prepared:
        """Return what it found; raises ConfigError if the broker cannot start, and StoppedError on a signal."""
        rest = b""
        while chunk := self._read(signals):
            *lines, rest = (rest + chunk).split(b"\n")
            for note in map(_DECODER.decode, lines):
                if note.refusal:
                    raise ConfigError(note.refusal)
                if note.prepared is not None:
                    return note.prepared
                progress(note.progress)
        raise ConfigError("the process that checks Redis ended without an answer")

    def close(self) -> None:
        """End the child, if it has not ended."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)

    def _read(self, signals: Signals) -> bytes:
        signals.pause(math.inf, self._fd)
        return os.read(self._fd, 65_536)


def _be_child(settings: Settings, start: Registration, fd: int, *, own: bool) -> NoReturn:
    """Prepare Redis and end; an error that is no ConfigError is logged, and ends it without a last note."""

    def send(note: _Note) -> None:
        os.write(fd, msgspec.json.encode(note) + b"\n")

    try:
        child.close_all_but({0, 1, 2, fd})
        reset_in_child()
        from korvet.server.supervisor import redis_check  # noqa: PLC0415 - what this process is for

        try:
            prepared = redis_check.prepare_all(
                settings, start, lambda text: send(_Note(progress=text)), own=own
            )
        except ConfigError as error:
            send(_Note(refusal=str(error)))
        else:
            send(_Note(prepared=Prepared(*prepared)))
    except BaseException:  # noqa: BLE001 - the boundary of a process: logged once, then it ends
        _log.exception("unexpected error")
    finally:
        os._exit(0)
