"""The load generator as the measurements see it: verbs in, numbers out. Knows its line protocol (java/Load.java)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from loadtest import harness
from loadtest.bench import toolchain

Answer = dict[str, float]


class LoadError(Exception):
    """The load generator could not execute a command; the message says why in one line."""


class Load:
    """One warm Java process, the same for all peers; a context manager that ends it."""

    def __init__(self, directory: Path) -> None:
        self.payloads = {size: _payloads(directory, size) for size in (100, 1024)}
        self._log = directory / "load.log"
        # A heap that is there from the start: no round pays for its growth.
        command = toolchain.command("Load", "-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")
        self._process = harness.spawn(command, self._log, pipes=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        harness.stop(self._process)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def do(self, verb: str, **options: object) -> Answer:
        """Have one thing done and return its figures; raises LoadError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(" ".join([verb, *(f"{name}={value}" for name, value in options.items())]) + "\n")
        stdin.flush()
        answer = stdout.readline().strip()
        if not answer:
            raise LoadError(f"the load generator ended: {harness.tail(self._log)}")
        if answer.startswith("error "):
            raise LoadError(answer.removeprefix("error "))
        pairs = (pair.split("=") for pair in answer.split())
        return {name: float(number) for name, number in pairs}


def _payloads(directory: Path, size: int) -> Path:
    """Write 1,000 different values of `size` bytes, one a line, of the kind that services send: JSON of an event.

    They compress about as such events do, and to the same size in every run.
    """
    path = directory / f"payloads-{size}"
    with path.open("w") as lines:
        for n in range(1000):
            text = f'{{"id":"{n * 7919:08x}","user":{n * 104_729 % 99_991},"event":"page_view","items":['
            item = 0
            while len(text) < size - 2:
                item += 1
                text += f'{{"sku":"{(n * 31 + item) * 2_654_435_761 % 2**32:08x}","price":{(n + item) * 37 % 9973}}},'
            lines.write(text[: size - 2] + "]}\n")
    return path
