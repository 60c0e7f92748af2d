"""The reference of all commands in docs/cli.md, made from the declarations that make their help."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from korvet.cli.options import AdminCommand
from korvet.cli.run import PROGRAM

# click appends the range of a number to the help of its flag.
_RANGE = re.compile(r"(?:; |(?<=\[))[-.\d]*[<=]*x[<=>]+[-.\d]+(?=\])")


def markdown(root: click.Group) -> str:
    """Write all commands: how each is called, what it does, and a table of its flags.

    The flags of all commands that connect to a cluster are listed once, at the top.
    """
    common = _flags(click.Command("", params=AdminCommand.flags))
    lines = ["Commands that connect to a cluster have these flags, besides their own:", *_table(common)]
    for path, command in _leaves(root, ()):
        lines += ["", f"## {PROGRAM} {' '.join(path)}", *_paragraphs(command)]
        lines += ["", f"`{PROGRAM} {' '.join((*path, *_usage(command)))}`"]
        lines += _table([flag for flag in _flags(command) if flag not in common])
    return "\n".join(lines) + "\n"


def _leaves(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name), command


def _usage(command: click.Command) -> list[str]:
    with click.Context(command) as context:
        # Without the first piece, [OPTIONS].
        return command.collect_usage_pieces(context)[1:]


def _paragraphs(command: click.Command) -> list[str]:
    lines: list[str] = []
    for paragraph in (command.help or "").split("\n\n"):
        lines += ["", " ".join(paragraph.split())]
    return lines


def _flags(command: click.Command) -> list[tuple[str, str]]:
    """Return the flags of a command, as its help shows them, and what each does."""
    with click.Context(command) as context:
        shown = [
            param.get_help_record(context) for param in command.params if isinstance(param, click.Option)
        ]
    return [
        (flags, _RANGE.sub("", text).replace("  [", " [").removesuffix(" []"))
        for flags, text in filter(None, shown)
    ]


def _table(records: list[tuple[str, str]]) -> list[str]:
    rows = [f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in records]
    return ["", "| Flag | What it does |", "| --- | --- |", *rows] if rows else []


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
