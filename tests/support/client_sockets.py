"""korvet_core.ClientSockets in the test's own process, and who serves its connections."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from korvet_core import ClientSockets

from tests.support.wire_client import frame, header

HEADER = header(3, 0)
DEADLINE_S = 30


class Owner:
    """The server of a connection; `events`: received, without frames; `frames`: to be answered."""

    def __init__(self) -> None:
        self.number = -1
        self.events: list[tuple[str, str | bytes | None]] = []
        self.frames: list[tuple[int, bytes]] = []
        self.worker: Worker | None = None


def client_sockets(**limits: Any) -> ClientSockets[Any]:
    """Return sockets with room for everything, but for other `limits`."""
    options: dict[str, Any] = {
        "idle_s": 600.0,
        "receive_s": 300.0,
        "produce_frame_max": 16 << 20,
        "other_frame_max": 16 << 20,
        "frames_max": 5,
        "ahead_bytes": 1 << 20,
        "budget_bytes": 64 << 20,
        "login_budget_bytes": 8 << 20,
        "half_budget_bytes": 8 << 20,
        "handshakes_max": 1000,
    }
    return ClientSockets(**options | limits, now_s=time.monotonic())


class Worker:
    """The sockets of one worker, in the test's own process."""

    def __init__(self, **limits: Any) -> None:
        self.core: ClientSockets[Owner] = client_sockets(**limits)
        self.timers = 0

    def adopt(self, fd: int, tls: Any = None) -> Owner:
        """Take over a descriptor."""
        owner = Owner()
        owner.number = self.core.adopt(fd, owner, None, tls)
        return owner

    def connect(self, tls: Any = None, kind: int = socket.SOCK_STREAM) -> tuple[Owner, socket.socket]:
        """Return a new connection and its client's end, which does not block."""
        mine, client = socket.socketpair(socket.AF_UNIX, kind)
        client.settimeout(0)
        return self.adopt(mine.detach(), tls), client

    def connect_tcp(self) -> tuple[Owner, socket.socket]:
        """Do the same over TCP."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname(), DEADLINE_S)
            accepted, _ = listener.accept()
        client.settimeout(0)
        return self.adopt(accepted.detach()), client

    def is_ready(self) -> bool:
        """Whether there is something to do."""
        return bool(select.select([self.core.fileno()], [], [], 0)[0])

    def turn(self) -> None:
        """Wait until there is something to do, and do it."""
        assert select.select([self.core.fileno()], [], [], DEADLINE_S)[0], "nothing happens"
        self.note(self.core.turn())

    def note(self, events: Iterable[tuple[Owner | None, str, str | bytes | None]]) -> None:
        """Note events with their owners, and take the frames that have come."""
        for owner, word, detail in events:
            if owner is None:
                assert (word, detail) == ("timer", None)
                self.timers += 1
            elif word == "frame":
                self.take(owner)
            else:
                owner.events.append((word, detail))

    def take(self, owner: Owner) -> None:
        """Take the frames that may be served."""
        while (taken := self.core.next_frame(owner.number)) is not None:
            owner.frames.append((taken[0], bytes(taken[1])))

    def answer(self, owner: Owner, answers: Sequence[tuple[int, Sequence[Any]]]) -> bool:
        """Answer frames; returns whether all is written."""
        is_written, events = self.core.answer(owner.number, answers)
        self.note(events)
        return is_written

    def echo(self, owner: Owner) -> None:
        """Answer all frames with what was sent, in pieces."""
        answers = [(number, (b"", frame(body)[:7], frame(body)[7:])) for number, body in owner.frames]
        owner.frames.clear()
        self.answer(owner, answers)


def until(is_done: Callable[[], bool], *steps: Callable[[], object]) -> None:
    """Take steps until it is done."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, "it is not done"
        for step in steps:
            step()


def received(client: socket.socket) -> bytes:
    """Return what has arrived at a client."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = client.recv(1 << 20)
        except (BlockingIOError, ConnectionResetError):
            piece = b""
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
