"""A TCP proxy in a process of its own: the name by which brokers find Redis, and a network that cuts connections.

It takes commands, a line each, on stdin, and answers each with the number of replies that it has cut so far:
    lead PORT     new connections lead there; those that are open stay
    cut BYTES     cut every open connection after BYTES more, in both directions
    cut reply     cut every connection in use when the next reply comes, and lose that
    hold | flow   let nothing through, or everything again
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from typing import Self

from tests.support import processes

_CHUNK = 65536
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
            processes.dying_with_tests([sys.executable, "-m", "tests.jepsen.proxy", str(self._first)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

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
        self.cut_reply = False
        self.replies = 0

    def close(self) -> None:
        for each in self.writers:
            each.transport.abort()


class _Server:
    def __init__(self, port: int) -> None:
        self._to = port
        self._pairs: set[_Pair] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.replies_cut = 0

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
                        self.replies_cut += 1
                        pair.close()
                        return
                if pair.bytes_left is not None:
                    data = data[: pair.bytes_left]
                    pair.bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
                if pair.bytes_left == 0:
                    break
        for each in pair.writers:
            # Closing still sends what is in the buffer; aborting would drop it.
            each.close()

    def run_command(self, command: str) -> None:
        match command.split():
            case ["lead", port]:
                self._to = int(port)
            case ["cut", "reply"]:
                for pair in self._pairs:
                    pair.cut_reply = True
            case ["cut", size]:
                for pair in list(self._pairs):
                    pair.bytes_left = int(size)
                    if not pair.bytes_left:
                        pair.close()
            case ["hold"]:
                self._flowing.clear()
            case ["flow"]:
                self._flowing.set()
                for pair in self._pairs:
                    pair.cut_reply = False
            case _:
                raise ValueError(command)


async def _main() -> None:
    served = _Server(int(sys.argv[1]))
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        served.run_command(line)
        print(served.replies_cut, flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
