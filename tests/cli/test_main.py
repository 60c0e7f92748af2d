"""The `korvet` command as a whole: help, version, exit codes, and tables for terminals and programs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from korvet import __version__
from korvet.cli.config import FLAGS
from korvet.cli.main import korvet as command_tree
from korvet.cli.main import main
from korvet.cli.run import DONE, FAILED, INTERRUPTED, MISTAKEN
from korvet.cli.tables import cell
from korvet.config.settings import SETTINGS
from korvet.config.sources import load
from tests.cli.commands import done, korvet, korvet_process
from tests.cli.terminal import at_terminal


@pytest.mark.slow
def test_the_version_is_printed() -> None:
    result = korvet_process("--version")
    assert (result.returncode, result.stdout) == (0, f"korvet {__version__}\n")


def test_help_of_serve_names_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for flag, (_, metavar) in FLAGS.items():
        assert f"{flag} {metavar}" in text
    assert "--set NAME=VALUE" in text
    assert "--config FILE" in text


def test_help_describes_what_all_commands_have_in_common(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    shown = re.findall(r"^ +(korvet [a-z -]+?)(?:  |$)", text, re.MULTILINE)
    assert len(shown) > 3
    for line in shown:
        # Each names a command that is there, and flags that it has.
        words = [word for word in line.split()[1:] if word not in {"COMMAND", "orders"}]
        assert main([*words, "--help"]) == 0, line
    # What is said of the environment and of --set is so.
    assert (
        load(None, {"KORVET_NUM_PARTITIONS": "4"}, {}).settings
        == load(None, {}, {"num.partitions": "4"}).settings
    )
    for number in (DONE, FAILED, MISTAKEN, INTERRUPTED):
        assert re.search(rf"\b{number}\b", text.partition("Exit codes:")[2])
    for item in ("SIGTERM", "SIGHUP", "_KORVET_COMPLETE"):
        assert item in text


@pytest.mark.slow
def test_importing_the_command_loads_nothing_that_only_one_command_needs() -> None:
    program = "import sys, korvet.cli.main; korvet.cli.main.main(['--help']); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    late = "gevent redis korvet.server korvet.admin aiokafka prompt_toolkit rich asyncio"
    assert not set(late.split()) & set(loaded)


@pytest.mark.slow
def test_a_command_of_topics_loads_no_codec_of_records_and_no_framework() -> None:
    program = (
        "import sys; from korvet.cli.main import main; "
        "main(['topics', 'list', '-b', '127.0.0.1:1', '--timeout', '0.1']); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "127.0.0.1:1: Connection refused; does a broker run there?" in loaded.stderr
    late = {"aiokafka", "asyncio", "gevent", "http.client", "redis", "rich", "korvet.protocol.records.batch"}
    assert not late & set(loaded.stdout.split())
    messages = [item for item in loaded.stdout.split() if item.startswith("korvet.protocol.messages.")]
    assert 0 < len(messages) < 40, "those that admin clients speak, and not all"


@pytest.mark.slow
def test_the_file_that_spark_submit_runs_finds_redis_py_and_not_korvet_s_own_package(tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "korvet" / "__main__.py"
    result = subprocess.run(
        [sys.executable, str(file), "serve", "--redis-url", "redis://127.0.0.1:1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (2, "korvet: redis.url 127.0.0.1:1: Connection refused\n")


def test_the_summary_of_each_command_is_the_first_sentence_of_its_help() -> None:
    commands = command_tree.loaded().commands
    for name, (_, summary) in command_tree.modules.items():
        assert summary == commands[name].get_short_help_str(sys.maxsize)


@pytest.mark.parametrize("group", [(), ("topics",), ("configs",), ("groups",), ("cluster",), ("lake",)])
def test_a_narrow_terminal_cuts_no_command_s_line_short(group: tuple[str, ...]) -> None:
    text = korvet(*group, "--help", environ={"COLUMNS": "80"}).stdout
    _, _, commands = text.partition("\nCommands:\n")
    assert commands
    assert "..." not in commands
    assert max(map(len, commands.splitlines())) <= 80


@pytest.mark.slow
def test_the_help_of_the_shell_cuts_nothing_short_either() -> None:
    result = korvet_process("shell", given="help\n", environ={"COLUMNS": "80"})
    assert "with the origin of each value; passwords" in " ".join(result.stdout.split())


WIDTH = 60


def test_a_program_gets_one_line_a_row_without_a_rule_and_trailing_blanks() -> None:
    lines = done(korvet("config")).splitlines()
    assert lines[0].split() == ["Setting", "Value", "Origin"]
    assert [line for line in lines if line != line.rstrip() or not line or "─" in line] == []
    assert len(lines) == 1 + len(SETTINGS)
    assert [cell(value) for value in (0.050742999999999996, 1e6, 7, 1.5)] == ["0.051", "1000000", "7", "1.5"]
    # Values stand below their titles.
    assert {line.rindex("default") for line in lines[1:] if line.endswith(" default")} == {
        lines[0].index("Origin")
    }


@pytest.mark.slow
def test_a_terminal_gets_lines_that_fit() -> None:
    with at_terminal("config", environment={"COLUMNS": str(WIDTH)}) as child:
        child.expect(pexpect.EOF)
        lines = child.before.replace("\r", "").splitlines()
    assert set(lines[1]) == {"─", " "}
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line != line.rstrip()] == []
    # A name that is too long goes on below itself.
    at = next(number for number, line in enumerate(lines) if line.startswith("log.message.timestamp.b"))
    assert lines[at].split()[0] + lines[at + 1].split()[0] == "log.message.timestamp.before.max.ms"
