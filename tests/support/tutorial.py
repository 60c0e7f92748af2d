"""Runs sections of pages as a reader would: `python -m tests.support.tutorial DIRECTORY NETWORK PAGE#TITLE...`.

Knows the forms of commands and of their output on pages, not their subjects. In an indented block each line is a
command; if lines begin with `$ `, these are the commands, and the lines below one are its output. A
block of Python, TOML or JSON is a file, whose name is in the text before it. `make run` goes on while the rest is done,
up to the next one, unless that is another broker of a cluster (`--broker-id`); one that names a Redis elsewhere is left
out. `korvet lake status` and `korvet lake pipeline status` are asked again until they say what is shown. Of tables the
columns in MASKED may have other values, and so may times, ids of processes, and offsets that are made of times. If no
section starts a broker, one is started first.

It prints each command with what it printed and how long it took (s), and ends with 1 at the first that went another
way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support import processes
from tests.support.docs import PAGES, ROOT

MASKED = {"Files", "Size", "Compared", "Since s", "Records/s", "Last batch s", "Polled s", "Process"}
"""What hangs on when records were archived, trimmed and read, and on compression."""

_WAIT_S = 600.0
_STATUS = ("korvet lake status", "korvet lake pipeline status")
_SERVER = "make run"
_ANOTHER = "--broker-id"
_ELSEWHERE = re.compile(r"redis[-0-9]*\.example")
_BLOCK = re.compile(
    r"(?P<code>(?:^ {4}.*\n|^\n(?= {4}))+)|^```(?:python|toml|json)\n(?P<file>(?:.*\n)*?)^```$", re.MULTILINE
)
_FILE = re.compile(r"`([a-z]+\.(?:py|toml|avsc))`")
_GAP = re.compile(r"\s{2,}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d{13,}|(?<=process )\d+")
_PROGRESS = re.compile(r"(starting Spark|running the query|stopping the pipeline): \d+ s")
_UP = 0x1


class Step(NamedTuple):
    """A command, and what it is to print: None where the section does not show it."""

    command: str
    printed: str | None


class File(NamedTuple):
    """A file that the reader is to write."""

    name: str
    text: str


class DifferentError(Exception):
    """A command did not end well, or printed something else than what is shown."""


def steps(section: str) -> Iterator[Step | File]:
    """Yield what the text of a section asks its reader to do, in order."""
    for block in _BLOCK.finditer(section):
        if block["file"] is not None:
            yield File(_FILE.findall(section[: block.start()])[-1], block["file"])
            continue
        text = re.sub(r"^ {4}", "", block["code"], flags=re.MULTILINE).strip("\n")
        if text.startswith("$ "):
            for command, _, printed in (
                item.partition("\n") for item in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
            ):
                yield Step(command, printed)
        else:
            yield from (Step(command, None) for command in text.splitlines())


def section_of(text: str, title: str) -> str:
    """Return the section of a page that has this title, up to the next one."""
    [result] = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(result)


def steps_of(section: str) -> list[Step | File]:
    """Return the steps of a section, named as PAGE#TITLE, that can be done here."""
    page, _, title = section.partition("#")
    result = steps(section_of(PAGES[page], title))
    return [step for step in result if isinstance(step, File) or not _ELSEWHERE.search(step.command)]


def same(shown: str, printed: str) -> bool:
    """Tell whether a command printed what is shown, but for space and masked columns."""
    rows, others = (
        [_GAP.split(line.strip()) for line in _MOMENT.sub("(a moment)", text).splitlines() if _says(line)]
        for text in (shown, printed)
    )
    if [len(row) for row in rows] != [len(row) for row in others]:
        return False
    titles = rows[0] if rows else []
    return all(
        ours == theirs or (row is not titles and len(row) == len(titles) and titles[at] in MASKED)
        for row, other in zip(rows, others, strict=True)
        for at, (ours, theirs) in enumerate(zip(row, other, strict=True))
    )


def _says(line: str) -> bool:
    return bool(line.strip(" \N{BOX DRAWINGS LIGHT HORIZONTAL}")) and not _PROGRESS.fullmatch(line)


class Reader:
    """Somebody who does in a directory what a section says. What is started is ended by `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._exported: list[str] = []
        self._servers: list[subprocess.Popen[bytes]] = []

    def do(self, step: Step | File) -> None:
        """Do what a step says; raises DifferentError."""
        began = time.monotonic()
        match step:
            case File(name, text):
                (self._directory / name).write_text(text)
                return
            case Step(command) if command.startswith("export "):
                self._exported.append(command)
                printed = ""
            case Step(command) if command.startswith(_SERVER):
                printed = self._serve(command)
            case _:
                printed = self._run(step)
        # A program, whose output this is.
        print(  # noqa: T201 - its output
            f"$ {step.command}\n{printed}({time.monotonic() - began:.1f} s)", flush=True
        )

    def close(self) -> None:
        """Stop the servers as Ctrl-C does, the first one last."""
        while self._servers:
            server = self._servers.pop()
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGINT)
                server.wait(60)

    def _serve(self, command: str) -> str:
        if _ANOTHER not in command:
            self.close()
        name = f"server{len(self._servers) or ''}"
        out, err = (self._directory / f"{name}.{suffix}" for suffix in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            server = subprocess.Popen(
                ["sh", "-c", command],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self._servers.append(server)
        processes.wait_until(
            lambda: server.poll() is not None or "is ready" in out.read_text(), command, _WAIT_S
        )
        if server.poll() is not None:
            raise DifferentError(f"{command}\nended with {server.poll()}:\n{err.read_text()}")
        return out.read_text()

    def _run(self, step: Step) -> str:
        end = time.monotonic() + _WAIT_S
        script = "\n".join(["set -e", *self._exported, step.command])
        while True:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", script],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_WAIT_S,
                check=False,
            )
            # A reader sees both; what is shown are results, without noise beside them.
            as_shown = step.printed is None or same(step.printed, done.stdout + done.stderr)
            if done.returncode == 0 and as_shown:
                return done.stdout + done.stderr
            if not step.command.startswith(_STATUS) or time.monotonic() > end:
                raise DifferentError(
                    f"{step.command}\nended with {done.returncode} and printed\n{done.stdout}{done.stderr}\n"
                    f"where the page shows\n{step.printed}"
                )


def as_repository(directory: Path) -> None:
    """Let a directory be as a clone with everything installed, where nobody else's data is."""
    for name in (
        *("Makefile", "README.md", "pyproject.toml", "core", "korvet", "lua", "pyspark_korvet"),
        *(file.name for file in ROOT.glob("*.lock")),
    ):
        (directory / name).symlink_to(ROOT / name)
    # Stamps of its own: those of the repository may be older than its lock files, and would be made again.
    installed = directory / ".venv"
    installed.mkdir()
    for entry in sorted((ROOT / ".venv").iterdir()):
        if not entry.name.startswith("."):
            (installed / entry.name).symlink_to(entry)
    for stamp in (".made", ".locked", ".core", ".run", ".dev", ".lake"):
        (installed / stamp).touch()


def run_alone(directory: Path, sections: Sequence[str], seconds_max: float) -> str:
    """Run sections in a network of their own, where nobody else has the usual ports; returns what was printed."""
    # What a section leaves running ends with the first of its processes.
    of_processes = ("--pid", "--fork", "--kill-child", "--mount-proc")
    network = ("unshare", "--map-root-user", "--net", *of_processes, "--")
    done = subprocess.run(
        processes.dying_with_tests(
            [*network, sys.executable, "-m", "tests.support.tutorial", str(directory), "alone", *sections]
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return f"{done.stdout}\n"


def loopback_up() -> None:
    """Let 127.0.0.1 be reached in a network of its own, as a new one's cannot be."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", _UP)
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS, netdevice(7)


def main(directory: str, network: str, *sections: str) -> None:
    """Do what the sections say; `network` is "alone" in a new one. The exit code is 1 where it went another way."""
    if network == "alone":
        loopback_up()
    reader = Reader(Path(directory))
    with contextlib.closing(reader):
        wanted = [step for section in sections for step in steps_of(section)]
        if not any(isinstance(step, Step) and step.command.startswith(_SERVER) for step in wanted):
            wanted.insert(0, Step(_SERVER, None))
        for step in wanted:
            try:
                reader.do(step)
            except DifferentError as different:
                sys.exit(str(different))


if __name__ == "__main__":
    main(*sys.argv[1:])
