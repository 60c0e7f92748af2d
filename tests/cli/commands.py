"""Running `korvet` as an operator does: in this process, or as a process of its own where that matters."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from korvet.admin.client import AdminClient
from korvet.admin.types import TopicPartition, settled
from korvet.cli.main import main
from tests.support import reading
from tests.support.in_process import InProcessBroker
from tests.support.records import Received

COMMAND_SECONDS_MAX = 110
SPARK_SECONDS_MAX = 550
"""Spark takes minutes to start while a machine is busy; the tests with it have 600 s each."""
NOWHERE = ("-b", "127.0.0.1:1", "--timeout", "0.2")
"""Flags for brokers that are not there."""
_FIRST_TITLES = {"Broker", "Config", "Group", "Member", "Partition", "Topic", "User"}

Result = subprocess.CompletedProcess[bytes]
TextResult = subprocess.CompletedProcess[str]


def run(
    *arguments: str, given: bytes = b"", environ: dict[str, str] | None = None, cwd: Path | None = None
) -> Result:
    """Run a command line in this process, without the settings of who runs the tests."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in "12")
    with (
        mock.patch.dict(os.environ, _clean(environ), clear=True),
        contextlib.chdir(cwd or Path.cwd()),
        _standard_input(given),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
        sys.stdout.flush()
    written = [stream.buffer.getvalue() for stream in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *written)


def korvet(*arguments: str, environ: dict[str, str] | None = None, cwd: Path | None = None) -> TextResult:
    """Run a command line in this process; its output is text."""
    result = run(*arguments, environ=environ, cwd=cwd)
    return subprocess.CompletedProcess(
        arguments, result.returncode, result.stdout.decode(), result.stderr.decode()
    )


def at_broker(noun: str, broker: InProcessBroker, command: str, *arguments: str) -> TextResult:
    """Run a command of a noun, as topics, against a broker."""
    return korvet(noun, command, "-b", broker.bootstrap, *arguments)


def json_at_broker(noun: str, broker: InProcessBroker, command: str, *arguments: str) -> Any:
    """Return the JSON that it prints."""
    return done_as_json(noun, command, "-b", broker.bootstrap, *arguments)


def korvet_process(
    *arguments: str,
    given: str = "",
    environ: dict[str, str] | None = None,
    cwd: Path | None = None,
    seconds_max: float = COMMAND_SECONDS_MAX,
) -> TextResult:
    return subprocess.run(
        [sys.executable, "-m", "korvet", *arguments],
        env=_clean(environ),
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


def done(result: subprocess.CompletedProcess[Any]) -> Any:
    """Return what a command printed that succeeded and printed nothing on stderr."""
    assert (result.returncode, bool(result.stderr)) == (0, False), result.stderr
    return result.stdout


def done_as_json(*arguments: str) -> Any:
    return json.loads(done(korvet(*arguments, "--json")))


def failed(result: subprocess.CompletedProcess[Any], code: int = 1) -> str:
    """Return what a command printed on stderr that failed as it should: no traceback."""
    assert result.returncode == code, result
    message = result.stderr if isinstance(result.stderr, str) else result.stderr.decode()
    assert "Traceback" not in message
    return message


def refused(*arguments: str, environ: dict[str, str] | None = None) -> str:
    """Return what a command prints on stderr that rejects its flags: exit code 2, nothing on stdout."""
    result = korvet(*arguments, environ=environ)
    assert result.stdout == ""
    message = failed(result, 2)
    assert message.startswith("korvet: ") or "Error: " in message
    return message


def table(text: str) -> list[list[str]]:
    """Return the cells of the lines of a table, without its head, if it has one; no cell has a blank in it."""
    lines = [line.split() for line in text.splitlines()]
    heads = [number for number, line in enumerate(lines) if line[0] in _FIRST_TITLES]
    return lines[heads[0] + 1 :] if heads else []


def commit(broker: InProcessBroker, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets of partitions 0, 1, ... of a topic for a group without members."""
    with AdminClient(broker.bootstrap) as admin:
        partitions = {TopicPartition(topic, index): offset for index, offset in enumerate(offsets)}
        settled(admin.offsets.alter(group, partitions))


def committed(broker: InProcessBroker, group: str, topic: str) -> list[int]:
    """Return the offsets that a group has committed, in the order of the topic's partitions."""
    with AdminClient(broker.bootstrap) as admin:
        result = admin.offsets.committed(group)
    return [result[key].offset for key in sorted(result) if key.topic == topic]


def read(broker: InProcessBroker, topic: str, count: int, partition: int = 0) -> list[Received]:
    """Return the records of a partition, which are `count`."""
    return reading.read_all(broker.bootstrap, topic, [partition], count)


def _clean(environ: dict[str, str] | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    return own | (environ or {})


@contextlib.contextmanager
def _standard_input(given: bytes) -> Iterator[None]:
    """Let descriptor 0 be a pipe with these bytes."""
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    writer = threading.Thread(target=_write, args=(writing, given))
    writer.start()
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        writer.join()


def _write(descriptor: int, given: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb") as file:
        file.write(given)
