"""What Tab completes in `korvet shell`: commands, flags, choices, files, and names in the cluster.

Knows words on a line and prompt_toolkit; what each word may be, click's commands and types say. Imports
prompt_toolkit: import it late.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import ShellComplete
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from korvet.cli.run import PROGRAM

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
