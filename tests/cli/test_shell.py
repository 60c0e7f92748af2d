"""`korvet shell` at a pseudo-terminal: a person's keys, and what comes back."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.commands import commit
from tests.cli.terminal import CTRL_C, CTRL_D, at_terminal, exit_code
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.topic_client import Client

pytestmark = pytest.mark.slow

TAB = "\t"
HOME = "\x01"
UP = "\x1b[A"
# Answers where the cursor is are not given here: prompt_toolkit would wait for them.
DUMB = {"PROMPT_TOOLKIT_NO_CPR": "1"}


@contextlib.contextmanager
def shell(bootstrap: str, directory: Path, *flags: str) -> Iterator[Any]:
    """Run a shell up to its first prompt."""
    history = str(directory / "history")
    with at_terminal("shell", "-b", bootstrap, "--history", history, *flags, environment=DUMB) as child:
        prompted(child, bootstrap)
        yield child


def prompted(child: Any, bootstrap: str) -> str:
    """Wait for the next prompt; returns what came before it."""
    child.expect_exact(f"korvet {bootstrap}>")
    return str(child.before)


def lines(broker: InProcessBroker, text: str) -> subprocess.CompletedProcess[str]:
    """Give a shell lines without a terminal."""
    command = [sys.executable, "-m", "korvet", "shell", "-b", broker.bootstrap]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_commands_are_run_one_after_the_other_at_the_shells_brokers(
    broker: InProcessBroker, client: Client, name: str, tmp_path: Path
) -> None:
    client.create(name)
    with shell(broker.bootstrap, tmp_path) as child:
        child.send(f"produce {name} -K:\r")
        child.expect_exact("\r\n")
        wait_until(
            lambda: termios.tcgetattr(child.child_fd)[3] & termios.ICANON, "the terminal takes whole lines"
        )
        child.send("key:value\r")
        child.send(CTRL_D)
        prompted(child, broker.bootstrap)
        child.send(f"korvet consume {name} --exit --json\r")
        child.expect_exact('"key": "key", "value": "value"')
        prompted(child, broker.bootstrap)
        child.send("exit\r")
        assert exit_code(child) == 0


def test_what_fails_does_not_end_the_shell(broker: InProcessBroker, tmp_path: Path) -> None:
    with shell(broker.bootstrap, tmp_path) as child:
        for line, message in (
            ("bogus", "No such command 'bogus'"),
            ("groups describe nobody", "Error: group nobody: GROUP_ID_NOT_FOUND"),
            ("groups list --timeout x", "Invalid value for '--timeout'"),
            ("groups list '", "Error: No closing quotation"),
            ("serve", "the shell has no serve: start it outside, as `korvet serve`"),
            ("consume", "Missing argument 'TOPIC...'"),
        ):
            child.send(f"{line}\r")
            child.expect_exact(message)
            assert "Traceback" not in prompted(child, broker.bootstrap)
        child.send("quit\r")
        assert exit_code(child) == 0


def test_ctrl_c_ends_the_command_that_runs_and_not_the_shell(
    broker: InProcessBroker, client: Client, name: str, tmp_path: Path
) -> None:
    client.create(name)
    client.append(name, b"value")
    with shell(broker.bootstrap, tmp_path) as child:
        child.send(f"consume {name}\r")
        child.expect_exact("value\r\n")
        child.send(CTRL_C)
        assert "Traceback" not in prompted(child, broker.bootstrap)
        child.send("half a li")
        child.expect_exact("half a li")
        child.send(CTRL_C)
        prompted(child, broker.bootstrap)
        child.send(f"consume {name} --exit --format 'again %s\\n'\r")
        child.expect_exact("\r\nagain value\r\n")
        prompted(child, broker.bootstrap)
        child.send(CTRL_D)
        assert exit_code(child) == 0


def test_ctrl_c_ends_a_question_that_nobody_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        with shell(address, tmp_path) as child:
            child.send("topics list\r")
            connection, _ = silent.accept()
            with connection:
                child.send(CTRL_C)
                prompted(child, address)
                child.send("exit\r")
                assert exit_code(child) == 0
                assert "Traceback" not in child.before


def test_lines_are_remembered_for_the_next_shell_and_for_nobody_else(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    with shell(broker.bootstrap, tmp_path) as child:
        child.send("groups describe nobody\r")
        child.expect_exact("GROUP_ID_NOT_FOUND")
        prompted(child, broker.bootstrap)
        child.send(CTRL_D)
        assert exit_code(child) == 0
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600
    with shell(broker.bootstrap, tmp_path) as child:
        child.send(UP)
        child.expect_exact("groups describe nobody")
        child.send("\r")
        child.expect_exact("GROUP_ID_NOT_FOUND")


def test_a_shell_without_a_place_for_its_history_works(broker: InProcessBroker, tmp_path: Path) -> None:
    with at_terminal(
        "shell", "-b", broker.bootstrap, "--history", str(tmp_path / "no" / "history"), environment=DUMB
    ) as child:
        child.expect_exact("No history")
        prompted(child, broker.bootstrap)
        child.send("help\r")
        child.expect_exact("consume")
        prompted(child, broker.bootstrap)


def test_tab_completes_commands_flags_choices_and_names_in_the_cluster(
    broker: InProcessBroker, client: Client, name: str, tmp_path: Path
) -> None:
    client.create(f"complete.{name}")
    with shell(broker.bootstrap, tmp_path) as child:
        for typed, rest in (
            ("gro", "ups"),
            ("groups desc", "ribe"),
            (f"consume complete.{name[:-1]}", name[-1]),
            ("consume x --max-r", "ecords"),
            ("produce x --compression zs", "td"),
            ("qu", "it"),
        ):
            child.send(typed + TAB)
            child.expect(f"{re.escape(typed)}.*?{rest}")
            child.send(CTRL_C)
            prompted(child, broker.bootstrap)
        # A space follows a word that is complete.
        child.send("gro" + TAB)
        child.expect("gro.*?ups")
        child.send("list --help\r")
        child.expect_exact("List the groups")


def test_names_of_a_cluster_that_is_away_hold_up_nobody(tmp_path: Path) -> None:
    with shell("127.0.0.1:1", tmp_path, "--timeout", "0.2") as child:
        child.send("consume a" + TAB)
        child.send("bc\r")
        child.expect_exact("Error: ")
        prompted(child, "127.0.0.1:1")


def test_without_a_terminal_the_lines_of_standard_input_are_commands(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(name)
    result = lines(broker, f"# records\nbogus\n\nconsume {name} -n 1 --exit\nexit\nbogus\n")
    assert result.returncode == 1
    assert result.stderr.count("No such command 'bogus'") == 1
    done = lines(broker, f"produce {name}\nfirst\nsecond\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = lines(broker, f"consume {name} --exit\n")
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n")


def test_help_in_the_shell_is_that_of_the_shell_or_of_a_command(broker: InProcessBroker) -> None:
    own = lines(broker, "help\n")
    assert (own.returncode, own.stderr) == (0, "")
    assert "at the brokers of this shell" in own.stdout
    assert lines(broker, "help topics list\n").stdout == lines(broker, "topics list --help\n").stdout
    assert "the shell has no serve" in lines(broker, "help serve\n").stderr


@contextlib.contextmanager
def bash() -> Iterator[Any]:
    """Run a bash that completes `korvet`, up to its prompt."""
    child = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        encoding="utf-8",
        timeout=WAIT_SECONDS_MAX,
        dimensions=(40, 200),
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PS1": "ready> ",
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
        },
    )
    try:
        child.expect_exact("ready> ")
        child.send('eval "$(_KORVET_COMPLETE=bash_source korvet)"; bind "set enable-bracketed-paste off"\r')
        child.expect_exact("\r\nready> ")
        yield child
    finally:
        child.close(force=True)


def test_bash_completes_what_has_a_colon_and_asks_the_brokers_that_are_given(
    broker: InProcessBroker, client: Client, name: str
) -> None:
    client.create(f"there.{name}")
    commit(broker, f"team:{name}", f"there.{name}", 0)
    with bash() as child:
        for typed, rest in (
            ("gro", "ups"),
            ("groups desc", "ribe"),
            ("produce x --compression=zs", "td"),
            (f"topics delete -b {broker.bootstrap} there.{name[:-1]}", name[-1]),
            (f"topics delete --bootstrap-server={broker.bootstrap} there.{name[:-1]}", name[-1]),
            (f"groups describe -b {broker.bootstrap} team:{name[:-1]}", name[-1]),
        ):
            child.send(f"korvet {typed}{TAB}")
            child.expect_exact(f"korvet {typed}{rest} ")
            child.send(CTRL_C)
            child.expect_exact("ready> ")


def test_brokers_that_a_line_names_after_the_cursor_are_asked(
    broker: InProcessBroker, client: Client, name: str, tmp_path: Path
) -> None:
    client.create(f"after.{name}")
    for flag in ("-b ", "--bootstrap-server="):
        with bash() as child:
            child.send(f" {flag}{broker.bootstrap}{HOME}korvet topics describe after.{TAB}\r")
            child.expect(rf"after\.{name}: 1 partition")
    with shell("127.0.0.1:1", tmp_path) as child:
        child.send(f" -b {broker.bootstrap}{HOME}topics describe after.{TAB}")
        # Names come in a thread. A character that is there already is not written again.
        child.expect("after.*?name-")
        child.send("\r")
        child.expect(rf"after\.{name}: 1 partition")


@pytest.mark.parametrize(("typed", "completed"), [("consume", "plain,consume"), ("groups l", "plain,list")])
def test_the_users_shell_completes_the_same(typed: str, completed: str) -> None:
    environment = {
        "_KORVET_COMPLETE": "zsh_complete",
        "COMP_WORDS": f"korvet {typed}",
        "COMP_CWORD": str(typed.count(" ") + 1),
    }
    result = subprocess.run(
        [str(Path(sys.executable).parent / "korvet")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.splitlines()[:2] == completed.split(",")
