"""`korvet shell`: one prompt after the other, over the same commands, with history and completion.

Knows lines and how they are read; the commands, their help and what completes them are those of the tree it hangs in.

What Tab completes in `korvet shell`: commands, flags, choices, files, and names in the cluster.

Knows words on a line and prompt_toolkit; what each word may be, click's commands and types say. Imports
prompt_toolkit: import it late.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import ShellComplete
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from korvet.cli.bootstrap import BOOTSTRAP_DEFAULT, Group, cluster_options
from korvet.cli.run import DONE, FAILED, INTERRUPTED, MISTAKEN, PROGRAM, run

_LAST_WORD = re.compile(r"(?:^|(?<=\s))\S*$")
_FILES = {"file": False, "dir": True}


class CommandCompleter(Completer):
    """Completes the last word of a line of commands; `defaults` are click's default_map."""

    def __init__(self, commands: click.Group, defaults: dict[str, Any]) -> None:
        self._commands = commands
        self._defaults = defaults

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what the word before the cursor may become; nothing inside of quotes."""
        line = document.text_before_cursor
        match = _LAST_WORD.search(line)
        word = match[0] if match else ""
        try:
            before = shlex.split(line[: len(line) - len(word)])
            context: dict[str, Any] = {"default_map": self._defaults}
            items = ShellComplete(self._commands, context, PROGRAM, "").get_completions(before, word)
        except (ValueError, click.ClickException):
            return
        # A flag and its value may be one word: only what stands behind the = becomes another.
        written = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        for item in items:
            if item.type in _FILES:
                paths = PathCompleter(only_directories=_FILES[item.type], expanduser=True)
                yield from paths.get_completions(Document(written), complete_event)
            else:
                yield Completion(
                    shlex.quote(str(item.value)), start_position=-len(written), display_meta=item.help
                )


if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

# They take the terminal for themselves, for good.
_NOT_HERE = {"serve", "shell"}
_PRIVATE = 0o600


class _LeaveError(Exception):
    """The shell is to end."""


@click.command()
@click.option(
    "--history",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("~/.korvet_history"),
    show_default=True,
    metavar="FILE",
    help="Where the lines are kept that were given at a terminal.",
)
@cluster_options
@click.pass_context
def shell(context: click.Context, bootstrap_server: str, timeout: float, history: Path) -> int:
    """Take commands at a prompt, with history and completion, until exit, quit or Ctrl-D.

    The commands are those of korvet, without its name. They go to the brokers and wait as long as this one is told,
    unless they are told otherwise. What fails does not end the shell, and Ctrl-C ends only the command that runs.
    Without a terminal it takes the lines of standard input, and exits with 1 if one of them failed.
    """
    root = context.find_root().command
    assert isinstance(root, click.Group)  # noqa: S101 - the tree that this command hangs in
    commands = _commands(root)
    defaults = _defaults(commands, {"bootstrap_server": bootstrap_server, "timeout": timeout})
    try:
        if sys.stdin.isatty():
            return _at_terminal(commands, defaults, _prompt(bootstrap_server), history.expanduser())
        return _from_pipe(commands, defaults)
    except _LeaveError:
        return DONE


def execute(commands: click.Group, defaults: dict[str, Any], line: str) -> int:
    """Run one line and return its exit code."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        click.echo(f"Error: {error}", err=True)
        return MISTAKEN
    if words[:1] == [PROGRAM]:
        del words[0]
    return run(commands, words, default_map=defaults) if words else DONE


def _at_terminal(commands: click.Group, defaults: dict[str, Any], prompt: str, history: Path) -> int:
    session = _session(commands, defaults, history)
    click.echo("Tab completes, help lists the commands, exit ends.")
    while True:
        try:
            line = session.prompt(prompt)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return DONE
        execute(commands, defaults, line)


def _from_pipe(commands: click.Group, defaults: dict[str, Any]) -> int:
    # Byte by byte, as any shell does: what follows a line belongs to the command in it.
    lines = io.FileIO(sys.stdin.fileno(), closefd=False)
    worst = DONE
    try:
        while line := lines.readline():
            code = execute(commands, defaults, line.decode(errors="replace"))
            if code == INTERRUPTED:
                return code
            worst = worst if code == DONE else FAILED
    except _LeaveError:
        return worst
    return worst


def _commands(root: click.Group) -> click.Group:
    """Return the commands of a shell: those of the tree, and its own."""
    commands = {name: command for name, command in root.commands.items() if name not in _NOT_HERE}
    shells = Group(PROGRAM, commands=commands, context_settings=root.context_settings)

    @shells.command("help")
    @click.pass_context
    def tell(context: click.Context) -> None:
        """List the commands; each has its own --help."""
        click.echo(shells.get_help(context.find_root()))

    for name in ("exit", "quit"):

        @shells.command(name)
        def leave() -> NoReturn:
            """End the shell."""
            raise _LeaveError

    return shells


def _defaults(command: click.Command, values: dict[str, Any]) -> dict[str, Any]:
    """Return these values for each command that has such parameters, in the shape of click's default_map."""
    if isinstance(command, click.Group):
        return {name: _defaults(each, values) for name, each in command.commands.items()}
    names = {each.name for each in command.params}
    return {name: value for name, value in values.items() if name in names}


def _prompt(bootstrap_server: str) -> str:
    where = "" if bootstrap_server == BOOTSTRAP_DEFAULT else f" {bootstrap_server}"
    return f"{PROGRAM}{where}> "


def _session(commands: click.Group, defaults: dict[str, Any], history: Path) -> PromptSession[str]:
    from prompt_toolkit import PromptSession  # noqa: PLC0415 - other commands start without it
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415 - the same

    try:
        # A line may hold what is nobody else's to read.
        os.close(os.open(history, os.O_CREAT | os.O_RDWR, _PRIVATE))
    except OSError as error:
        click.echo(f"No history: {history}: {error.strerror}", err=True)
        kept: FileHistory | InMemoryHistory = InMemoryHistory()
    else:
        kept = FileHistory(str(history))
    completer = CommandCompleter(commands, defaults)
    # In a thread, since the cluster may be asked for names; at Tab only, since nobody else is to wait for it.
    return PromptSession(
        history=kept, completer=completer, complete_in_thread=True, complete_while_typing=False
    )
