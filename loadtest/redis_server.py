"""A server with the options of the embedded one, what it uses of the CPU, and requests sent with some under way.

CPU is read from /proc/PID/task/*/schedstat: the nanoseconds that a thread ran, without its waits for a core,
so other work on the machine disturbs little, and reading it costs the server nothing. The main thread runs all
commands; the process has threads besides that write to disk and free memory.
"""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self, cast

from korvet_core import RespReader, pack_command

from korvet.redis.replies import Arg
from korvet.server.embedded import EmbeddedServer, open_locked

_MORE = object()
_SCRIPT_STATS = re.compile(rb"cmdstat_evalsha:calls=(\d+),usec=(\d+)")
_VERSION = re.compile(rb"^(redis|valkey)_version:(\S+)", re.MULTILINE)


class WrongError(Exception):
    """A server did something else than what was to be measured."""


class Request(NamedTuple):
    """Packed commands that are sent together, and how many replies they get."""

    packed: bytes
    replies: int


class Driven(NamedTuple):
    """What requests took: CPU of the main thread and of the process, and a script on average (wall time, 0: none)."""

    main_us: float
    process_us: float
    script_us: float
    replies: list[object]


def warm_up(requests: Sequence[object]) -> int:
    """Return how many requests come before those that are measured: an eighth, at least one."""
    return max(len(requests) // 8, 1)


class Server:
    """A server on a directory; a context manager that ends it. Raises ConfigError where it does not start."""

    def __init__(self, directory: Path, program: Path) -> None:
        self._embedded = EmbeddedServer(open_locked(directory), program, 0)
        self._socket = socket.socket(socket.AF_UNIX)
        self._reader = RespReader(WrongError)
        self.url = self._embedded.url

    def __enter__(self) -> Self:
        try:
            self._embedded.start(time.sleep, lambda _text: None)
            self._socket.connect(self.socket)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._embedded.stop()
        self._embedded.data_dir.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._embedded.pid

    @property
    def socket(self) -> str:
        """Where it listens."""
        return str(self._embedded.data_dir.socket)

    def version(self) -> str:
        """Return what it is, as "Valkey 9.1.2"; Valkey has a version as Redis besides."""
        kind, version = max(_VERSION.findall(cast("bytes", self.call("INFO", "server"))))
        return f"{kind.decode().title()} {version.decode()}"

    def call(self, *args: Arg) -> object:
        """Return the reply to a command; raises WrongError for an error."""
        [reply] = self.exchange([Request(pack_command(args), 1)], 1)
        return reply

    def drive(self, requests: Sequence[Request], under_way: int) -> Driven:
        """Send requests, at most `under_way` at a time; those after `warm_up` are measured. Raises WrongError."""
        warm = warm_up(requests)
        replies = self.exchange(requests[:warm], under_way)
        self.call("CONFIG", "RESETSTAT")
        main_ns, process_ns = self._ran_ns()
        replies += self.exchange(requests[warm:], under_way)
        main_end_ns, process_end_ns = self._ran_ns()
        stats = _SCRIPT_STATS.search(cast("bytes", self.call("INFO", "commandstats")))
        script_us = int(stats[2]) / int(stats[1]) if stats else 0.0
        return Driven(
            (main_end_ns - main_ns) / 1000, (process_end_ns - process_ns) / 1000, script_us, replies
        )

    def _ran_ns(self) -> tuple[int, int]:
        threads = Path(f"/proc/{self.pid}/task")
        ran_ns = {path.name: int((path / "schedstat").read_text().split()[0]) for path in threads.iterdir()}
        return ran_ns[str(self.pid)], sum(ran_ns.values())

    def exchange(self, requests: Sequence[Request], under_way: int) -> list[object]:
        """Send requests, at most `under_way` at a time; returns their replies."""
        replies: list[object] = []
        left, sent = deque(requests), deque[Request]()
        while left or sent:
            first_new = len(sent)
            while left and len(sent) < under_way:
                sent.append(left.popleft())
            self._socket.sendall(b"".join(request.packed for request in list(sent)[first_new:]))
            replies += [self._reply() for _ in range(sent.popleft().replies)]
        return replies

    def _reply(self) -> object:
        while (reply := self._reader.next_reply(_MORE)) is _MORE:
            received = self._socket.recv(1 << 18)
            if not received:
                raise WrongError("the server closed the connection")
            self._reader.feed(received)
        if isinstance(reply, WrongError):
            raise WrongError(f"the server answered: {reply}")
        return reply
