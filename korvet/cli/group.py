"""A command with commands below it: its help tells of each in whole sentences, however narrow the terminal is."""

from __future__ import annotations

import sys

import click


class Group(click.Group):
    """A group whose help wraps what click would cut short with dots."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with the first sentence of its own help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=sys.maxsize)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
