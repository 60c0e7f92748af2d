"""A TCP proxy in a process of its own: the name by which brokers find Redis, and a network that cuts connections.

It takes commands, a line each, on stdin, and answers each with the number of replies that it has cut so far, and of
commands or replies cut by `cut TEXT BYTES`:
    lead PORT     new connections lead there; those that are open stay
    cut BYTES     cut every open connection after BYTES more, in both directions
    cut reply     cut every connection in use when the next reply comes, and lose that
    cut TEXT BYTES    cut after that many bytes of the next EVALSHA with a text, which comes in one piece, and its reply
    hold | flow   let nothing through, or everything again
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Self

from tests.support import processes

_CHUNK = 65536
_EVALSHA = b"$7\r\nEVALSHA\r\n"
# Those of a handshake pass: a client that never gets one does nothing at all.
_REPLIES_MIN = 8


class Proxy:
    """The proxy, from outside; a context manager."""

    def __init__(self, port: int) -> None:
        """Lead to `port` at first."""
        self._first = port
        self._lock = threading.Lock()
        self.port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            processes.dying_with_tests([sys.executable, "-m", __name__, str(self._first)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def say(self, command: str) -> int:
        """Give a command, wait until it is done, and return how many replies have been cut so far."""
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


class _Pair:
    """A connection of a broker, and the one to Redis."""

    def __init__(self, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.bytes_left: int | None = None
        self.counts_cut = False
        self.cut_reply = False
        self.replies = 0

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class _Server:
    def __init__(self, port: int) -> None:
        self._to = port
        self._pairs: set[_Pair] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._next: tuple[bytes, int] | None = None
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair((writer, to_redis))
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pump(pair, reader, to_redis), self._pump(pair, from_redis, writer))
        finally:
            pair.close()
            self._pairs.discard(pair)

    async def _pump(self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                if writer is pair.writers[0]:
                    pair.replies += 1
                    if pair.cut_reply and pair.replies > _REPLIES_MIN:
                        self.cuts += 1
                        pair.close()
                        return
                elif self._next and self._next[0] in data:
                    (text, at), self._next = self._next, None
                    command = data.rindex(b"*", 0, data.rindex(_EVALSHA, 0, data.index(text)))
                    pair.bytes_left, pair.counts_cut = command + at, True
                if pair.bytes_left is not None:
                    data = data[: pair.bytes_left]
                    pair.bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
                if pair.bytes_left == 0:
                    self.cuts += pair.counts_cut
                    break
        for item in pair.writers:
            # Closing still sends what is in the buffer; aborting would drop it.
            item.close()

    def run_command(self, command: str) -> None:
        match command.split():
            case ["lead", port]:
                self._to = int(port)
            case ["cut", *words]:
                self._cut(words)
            case ["hold"]:
                self._flowing.clear()
            case ["flow"]:
                self._flowing.set()
                for pair in self._pairs:
                    pair.cut_reply, pair.bytes_left = False, None
            case _:
                raise ValueError(command)

    def _cut(self, words: Sequence[str]) -> None:
        match words:
            case ["reply"]:
                for pair in self._pairs:
                    pair.cut_reply = True
            case [text, size]:
                self._next = text.encode(), int(size)
            case [size]:
                for pair in list(self._pairs):
                    pair.bytes_left = int(size)
                    if not pair.bytes_left:
                        pair.close()


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


async def _main() -> None:
    served = _Server(int(sys.argv[1]))
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    _say(server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        served.run_command(line)
        _say(served.cuts)


if __name__ == "__main__":
    asyncio.run(_main())
