"""Standard streams that are closed, or take nothing more: one clear error, and no record is counted as read."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.commands import committed
from tests.support.broker import KORVET, START_SECONDS_MAX
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX, dying_with_tests, free_port, wait_until
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

FULL = ">/dev/full"

# As operators have it: Python's own buffer keeps what could not be written.
_BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def shell(redirection: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `korvet` with a redirection of the shell."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "korvet", *arguments]
    return subprocess.run(
        line, input=given, env=_BUFFERED, capture_output=True, timeout=WAIT_SECONDS_MAX, check=False
    )


@pytest.mark.parametrize("arguments", [("apis",), ("apis", "--json"), ("--version",), ("apis", "--help")])
@pytest.mark.parametrize(
    ("redirection", "reason"), [(FULL, b"No space left on device"), (">&-", b"Bad file descriptor")]
)
def test_output_that_cannot_be_written_is_one_error(
    redirection: str, reason: bytes, arguments: tuple[str, ...]
) -> None:
    result = shell(redirection, *arguments)
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr == b"Error: the output cannot be written: " + reason + b"\n"


def test_a_group_has_not_read_what_could_not_be_written(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name)
    client.append(name, b"a", b"b")
    arguments = ("consume", "-b", broker.bootstrap, name, "-g", name, "--exit")
    for redirection in (FULL, ">&-"):
        result = shell(redirection, *arguments)
        assert result.returncode == 1
        assert result.stderr.startswith(b"Error: the output cannot be written: ")
        assert result.stderr.count(b"\n") == 1
        assert committed(broker, name, name) == []
    assert shell("", *arguments).stdout == b"a\nb\n"


def test_a_command_that_writes_nothing_needs_no_output(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name)
    produce = ("produce", "-b", broker.bootstrap, name)
    for redirection in (">&-", FULL, "2>&-"):
        result = shell(redirection, *produce, given=b"a\n")
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert shell("", "consume", "-b", broker.bootstrap, name, "--exit").stdout == b"a\na\na\n"


def test_an_input_that_is_closed_is_no_empty_one(broker: InProcessBroker, client: Client, name: str) -> None:
    client.create(name)
    result = shell("<&-", "produce", "-b", broker.bootstrap, name)
    assert (result.returncode, result.stderr) == (1, b"Error: standard input: Bad file descriptor\n")


def test_errors_without_a_stderr_cost_only_their_text() -> None:
    result = shell("2>&-", "apis")
    assert result.returncode == 0
    assert b"Produce" in result.stdout
    assert shell("2>&-", "bogus").returncode == 2


def test_a_broker_serves_without_any_stream(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--workers", "1")
    ops = f"127.0.0.1:{free_port()}"
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *KORVET, *flags, "--ops-listen", ops]
    with subprocess.Popen(dying_with_tests(line), env=_BUFFERED) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or _ready(ops), "ready without streams", START_SECONDS_MAX
            )
            assert process.poll() is None
        finally:
            process.terminate()
            assert process.wait(WAIT_SECONDS_MAX) == 0


def _ready(ops: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{ops}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
