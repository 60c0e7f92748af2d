"""Finds the command of a command line, runs it, and turns its outcome into an exit code.

A mistake of the operator becomes one line on stderr. Exit codes: 0 done, 1 failed, 2 a mistake in flags or
configuration, 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from korvet.errors import ConfigError
from korvet.logs import discard_stdout

PROGRAM = "korvet"
DONE, FAILED, MISTAKEN, INTERRUPTED = 0, 1, 2, 130

# Why a write to stdout fails: a full disk, a quota, a limit, a broken disk, a closed descriptor.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class CommandGroup(click.Group):
    """A command with subcommands. Its help wraps their first sentences; click would cut them short with dots."""

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return each subcommand with the first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [
            (name, command.get_short_help_str(limit=sys.maxsize)) for name, command in commands if command
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands into the help."""
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))


class LazyGroup(CommandGroup):
    """A group that imports the module of a subcommand when it is needed, so that help and completion stay quick.

    `modules` has for each subcommand its module and the first sentence of its help.
    """

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:  # noqa: ANN401 - as click takes them
        super().__init__(*args, **kwargs)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, those of `modules` first and in their order."""
        return list(dict.fromkeys([*self.modules, *super().list_commands(ctx)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, or None if there is none of this name."""
        if cmd_name in self.modules and cmd_name not in self.commands:
            module, _ = self.modules[cmd_name]
            self.add_command(getattr(importlib.import_module(module), cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and suggest a similar name for an unknown command: click knows only imported ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or args[0] in self.modules:
                raise
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{near[0]}'?", ctx) from error

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return each subcommand with the first sentence of its help, without importing it."""
        known = {name: summary for name, (_, summary) in self.modules.items()}
        rest = {
            name: command.get_short_help_str(limit=sys.maxsize) for name, command in self.commands.items()
        }
        return [(name, (rest | known)[name]) for name in self.list_commands(ctx)]

    def loaded(self) -> click.Group:
        """Import all subcommands; returns the group itself."""
        with click.Context(self) as context:
            for name in self.modules:
                self.get_command(context, name)
            self.commands = {name: self.commands[name] for name in self.list_commands(context)}
        return self


def run(command: click.Command, arguments: Sequence[str] | None, **context: Any) -> int:  # noqa: ANN401 - as click takes it
    """Run a command line and return its exit code. None is the command line of this process; `context` is for click."""
    try:
        result = command.main(arguments, prog_name=PROGRAM, standalone_mode=False, **context)
        sys.stdout.flush()
    except ConfigError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        return MISTAKEN
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has ended, as in `korvet config | head`.
        discard_stdout()
        return FAILED
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        discard_stdout()
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        return FAILED
    return result if isinstance(result, int) else DONE
