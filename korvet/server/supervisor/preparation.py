"""What is done in Redis before a broker serves, in a child of its own (redis_check.py): the check, the registration.

With redis-py, which nothing else of the supervisor needs, it would take 8 MiB of the supervisor's memory, and so of
each process that is forked from it later.
"""

from __future__ import annotations

import math
import os
import signal
from functools import partial

import msgspec

from korvet.cluster.registration import Registration
from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.server.embedded import Progress
from korvet.server.supervisor import child
from korvet.server.supervisor.server_facts import ServerFacts
from korvet.server.supervisor.signals import Signals


class Prepared(msgspec.Struct, frozen=True):
    """What Redis said: facts of the server, ids of the cluster and of this broker, and what clients have altered.

    `altered` are dynamic settings for all brokers, and for this one; `refused` says why producers are refused, if so.
    """

    facts: ServerFacts
    cluster_id: str
    broker_id: int
    altered: list[dict[str, str]]
    refused: list[str]


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
        self._pid = child.fork(partial(_prepare, settings, start, write_fd, own=own), (write_fd,))
        os.close(write_fd)

    def wait(self, signals: Signals, progress: Progress) -> Prepared:
        """Return what it found; raises ConfigError if the broker cannot start, and StoppedError on a signal."""
        rest = b""
        while True:
            signals.pause(math.inf, self._fd)
            chunk = os.read(self._fd, 65_536)
            if not chunk:
                raise ConfigError("the process that checks Redis ended without an answer")
            *lines, rest = (rest + chunk).split(b"\n")
            for note in map(_DECODER.decode, lines):
                if note.refusal:
                    raise ConfigError(note.refusal)
                if note.prepared is not None:
                    return note.prepared
                progress(note.progress)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)


def _prepare(settings: Settings, start: Registration, fd: int, *, own: bool) -> None:
    from korvet.server.supervisor import redis_check  # noqa: PLC0415 - what this process is for

    def send(note: _Note) -> None:
        os.write(fd, msgspec.json.encode(note) + b"\n")

    def on_progress(progress: str) -> None:
        send(_Note(progress=progress))

    try:
        prepared = redis_check.prepare_all(settings, start, on_progress, own=own)
    except ConfigError as error:
        send(_Note(refusal=str(error)))
    else:
        send(_Note(prepared=prepared))
