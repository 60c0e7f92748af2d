"""Completion in bash, which splits words at `:` and `=`: click would see `-b host` where `-b host:9094` is written.

bash hands over the line before and after the cursor, and the part of the last word that it replaces. zsh and fish do
not split words there, and use what click has.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

_SCRIPT = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_AFTER="${COMP_LINE:COMP_POINT}" COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_REPLACED="$2" \\
        %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


_BOOTSTRAP = re.compile(r"\s(?:-b\s*|--bootstrap-server(?:\s+|=))(\S+)")


@add_completion_class
class BashCompletion(BashComplete):
    """Takes the words from the line, not from COMP_WORDS."""

    source_template = _SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the last one, without the name of the program, and the last one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        if line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1] if words else ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Return what the last word may become."""
        self.ctx_args = {**self.ctx_args, "obj": brokers_in(os.environ.get("COMP_AFTER", ""))}
        return super().get_completions(args, incomplete)

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return what takes the place of the replaced part, quoted."""
        _, word = self.get_completion_args()
        kept = value_of(word).removesuffix(os.environ["COMP_REPLACED"])
        return f"{item.type},{shlex.quote(str(item.value).removeprefix(kept))}"


def brokers_in(after: str) -> str | None:
    """Return the brokers that a line names after the cursor; `ClusterName` finds them as the context's `obj`."""
    named: list[str] = _BOOTSTRAP.findall(after)
    return named[-1] if named else None


def value_of(word: str) -> str:
    """Return the part of a word that a completion stands for: a flag and its value may be one word."""
    return word.partition("=")[2] if word.startswith("--") and "=" in word else word
