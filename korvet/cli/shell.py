"""`korvet shell`: takes the other commands at a prompt, with history and completion.

Tab completes commands, flags, choices, files, and names in the cluster, as the types of click's parameters say.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import ShellComplete
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory

from korvet.cli.completion import brokers_in, value_of
from korvet.cli.options import BOOTSTRAP_DEFAULT, ClusterCommand, ClusterTarget, option
from korvet.cli.run import DONE, FAILED, INTERRUPTED, MISTAKEN, PROGRAM, LazyGroup, run

_LAST_WORD = re.compile(r"(?:^|(?<=\s))\S*$")
_FILES = {"file": False, "dir": True}
# They keep the terminal for themselves.
_EXCLUDED = {"serve", "shell"}
_PRIVATE = 0o600
_HELP = """The commands of korvet, by default at the brokers of this shell; serve and shell are not among them.

Tab completes commands, flags and names in the cluster. Ctrl-C ends the running command, exit or Ctrl-D the shell.
"""


class _LeaveError(Exception):
    """The shell is to end."""


class ShellCommands:
    """The commands of a shell: those of `root`, with `defaults` for their parameters, and help, exit and quit."""

    def __init__(self, root: LazyGroup, defaults: dict[str, Any]) -> None:
        modules = {name: module for name, module in root.modules.items() if name not in _EXCLUDED}
        self._group = LazyGroup(PROGRAM, modules=modules, context_settings=root.context_settings, help=_HELP)
        self._defaults = defaults
        names = click.Argument(["names"], metavar="[COMMAND]...", nargs=-1)
        self._group.add_command(
            click.Command("help", params=[names], help="List the commands, or show the help of one.")
        )
        for name in ("exit", "quit"):
            self._group.command(name)(self._leave)

    def run(self, line: str) -> int:
        """Run one line and return its exit code."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            click.echo(f"Error: {error}", err=True)
            return MISTAKEN
        if words[:1] == [PROGRAM]:
            del words[0]
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        if words and words[0] in _EXCLUDED:
            click.echo(
                f"Error: the shell has no {words[0]}: start it outside, as `korvet {words[0]}`", err=True
            )
            return MISTAKEN
        return run(self._group, words, default_map=self._default_map(words)) if words else DONE

    def completions(
        self, before: list[str], word: str, after: str
    ) -> list[click.shell_completion.CompletionItem[Any]]:
        """Return what the beginning of a word may become after other words, in a line that goes on `after` it."""
        context = {"default_map": self._default_map(before), "obj": brokers_in(after)}
        return ShellComplete(self._group, context, PROGRAM, "").get_completions(before, word)

    def _default_map(self, words: list[str]) -> dict[str, Any]:
        """Return the defaults of the command that these words begin with, in the form of click's default_map."""
        command = None
        if words:
            with click.Context(self._group) as context:
                command = self._group.get_command(context, words[0])
        return {} if command is None else {words[0]: self._defaults_of(command)}

    def _defaults_of(self, command: click.Command) -> dict[str, Any]:
        if isinstance(command, click.Group):
            return {name: self._defaults_of(inner) for name, inner in command.commands.items()}
        names = {parameter.name for parameter in command.params}
        return {name: value for name, value in self._defaults.items() if name in names}

    def _leave(self) -> NoReturn:
        """End the shell."""
        raise _LeaveError


class CommandCompleter(Completer):
    """Completes the last word of a line of commands."""

    def __init__(self, commands: ShellCommands) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what the word before the cursor may become; nothing inside of quotes."""
        line = document.text_before_cursor
        match = _LAST_WORD.search(line)
        word = match[0] if match else ""
        try:
            before = shlex.split(line[: len(line) - len(word)])
            items = self._commands.completions(before, word, document.text_after_cursor)
        except (ValueError, click.ClickException):
            return
        written = value_of(word)
        space = "" if document.text_after_cursor[:1].isspace() else " "
        for item in items:
            if item.type in _FILES:
                paths = PathCompleter(only_directories=_FILES[item.type], expanduser=True)
                yield from paths.get_completions(Document(written), complete_event)
            else:
                yield Completion(
                    shlex.quote(str(item.value)) + space,
                    start_position=-len(written),
                    display=str(item.value),
                    display_meta=item.help,
                )


@click.command(cls=ClusterCommand)
@option(
    "--history FILE",
    "File that keeps the lines entered at a terminal.",
    click.Path(path_type=Path, dir_okay=False),
    default=Path("~/.korvet_history"),
)
@click.pass_context
def shell(context: click.Context, cluster: ClusterTarget, history: Path) -> int:
    """Take commands at a prompt, with history and completion, until exit, quit or Ctrl-D.

    The commands are those of korvet, without its name. Their brokers and their timeout are by default those of this
    command. A command that fails does not end the shell, and Ctrl-C ends only the running command. Without a terminal
    it takes the lines of standard input, and exits with 1 if one of them failed.
    """
    root = context.find_root().command
    assert isinstance(root, LazyGroup)  # noqa: S101 - the tree of all commands
    commands = ShellCommands(root, cluster._asdict())
    try:
        if sys.stdin.isatty():
            brokers = "" if cluster.bootstrap_server == BOOTSTRAP_DEFAULT else f" {cluster.bootstrap_server}"
            return _at_terminal(commands, f"{PROGRAM}{brokers}> ", history.expanduser())
        return _from_pipe(commands)
    except _LeaveError:
        return DONE


def _at_terminal(commands: ShellCommands, prompt: str, history: Path) -> int:
    # Names may come from the cluster: in a thread, and only at Tab, so that typing never waits for them.
    session: PromptSession[str] = PromptSession(
        history=_history(history),
        completer=CommandCompleter(commands),
        complete_in_thread=True,
        complete_while_typing=False,
    )
    click.echo("Tab completes, help lists the commands, exit ends.")
    while True:
        try:
            line = session.prompt(prompt)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return DONE
        commands.run(line)


def _history(file: Path) -> FileHistory | InMemoryHistory:
    try:
        # A line may hold secrets.
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, _PRIVATE))
    except OSError as error:
        click.echo(f"No history: {file}: {error.strerror}", err=True)
        return InMemoryHistory()
    return FileHistory(str(file))


def _from_pipe(commands: ShellCommands) -> int:
    # Byte by byte, as any shell does: the input after a line belongs to the command in it.
    lines = io.FileIO(sys.stdin.fileno(), closefd=False)
    worst = DONE
    try:
        while line := lines.readline():
            code = commands.run(line.decode(errors="replace"))
            if code == INTERRUPTED:
                return code
            worst = worst if code == DONE else FAILED
    except _LeaveError:
        return worst
    return worst
