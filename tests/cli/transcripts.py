"""Transcripts of commands: what they print, and the files in tests/cli/golden that they are compared with.

With GOLDEN=write in the environment the files are written. What differs between runs (ports, ids, times) is
replaced by text of the same length, so that columns stay in line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import click

from korvet import __version__
from korvet.cli.main import korvet as root
from tests.cli import commands

GOLDEN = Path(__file__).parent / "golden"

VARYING = [
    (re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b"), "9"),
    (re.compile(r'(?<=[ "])[\w-]{22}(?=",?$|$)', re.MULTILINE), "i"),
    (re.compile(r"\b20(?:2[6-9]|[3-9]\d)-\d\d-\d\d[T ](?!00:00:00)[\d:.]+"), "t"),
    (re.compile(r"\b1(?!767225600000)[789]\d{11}\b"), "9"),
]
SPACED = {
    "doctor",
    "lake pipeline status",
    "topics state",
    "transactions describe",
    "transactions list",
    "transactions producers",
}
PRODUCER_ID = re.compile(r"\b\d{16,19}\b")
SINCE = re.compile(r"\d+(?=  events:1$)", re.MULTILINE)
AGES = re.compile(r"\b\d{8}(?:\.\d)?\b")
# Progress of Spark, and log lines of the broker, which runs in the same process.
BESIDE = re.compile(
    r"^(?:(?:starting Spark|running the query): \d+ s|20[\d-]+T[\d:.]+Z [A-Z]+ .*)\n", re.MULTILINE
)
CHECKS = re.compile(
    r"^(?:\$|\[|Level|\S+ +(?:durability|producers|cluster\.id|data format|permissions|settings) )"
)


def steady(name: str, text: str) -> str:
    """Return the text with each thing that differs between runs replaced by as many of one character.

    Columns that are as wide as a producer id, or as a finding about this machine, are two spaces apart.
    """
    for pattern, mark in VARYING:
        text = pattern.sub(partial(_masked, mark), text)
    if name == "doctor":
        text = "".join(line for line in text.splitlines(keepends=True) if CHECKS.match(line))
    if name in {"topics state", "lake pipeline status"}:
        text = AGES.sub("AGE", text)
    if name in SPACED:
        text = SINCE.sub("0", PRODUCER_ID.sub("PRODUCER", re.sub("   +", "  ", text)))
    return text.replace(__version__, "VERSION")


def _masked(mark: str, match: re.Match[str]) -> str:
    return mark * len(match[0])


def check_transcript(name: str, transcript: str) -> None:
    """Compare a transcript with its file, or write the file."""
    file = GOLDEN / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(transcript, encoding="utf-8")
    assert transcript == file.read_text(encoding="utf-8"), f"run with GOLDEN=write and read {file.name}"


def transcript_of(name: str, lines: tuple[str, ...], directory: Path, *flags: str) -> str:
    """Run command lines; ` IN ` separates one from its standard input, a line for each word."""
    parts = []
    for line in lines:
        command, _, given = line.partition(" IN ")
        text = given.replace(" ", "\n") if "\n" not in given else given
        with (
            open(0, closefd=False, encoding="utf-8") as standard_input,
            mock.patch("sys.stdin", standard_input),
        ):
            result = commands.run(*shlex.split(command), *flags, given=f"{text}\n".encode(), cwd=directory)
        parts.append(printed(command, result.stdout.decode(), result.stderr.decode(), result.returncode))
    return steady(name, "".join(parts))


def printed(command: str, out: str, err: str, code: int) -> str:
    """Return one command of a transcript, without the lines of progress."""
    return f"$ korvet {command}\n{out}{BESIDE.sub('', err)}" + (f"[exit {code}]\n" if code else "")


def names() -> set[str]:
    """Return all commands."""
    return {" ".join(path) for path in _leaves(root.loaded(), ())}


def _leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    for name, inner in command.commands.items():
        yield from _leaves(inner, (*path, name))
