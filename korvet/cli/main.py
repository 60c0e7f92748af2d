"""The entry point of the `korvet` command, and the tree of all commands."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from korvet import __version__
from korvet.cli.run import LazyGroup, run
from korvet.logs import open_closed_streams

# The first sentence of the help of each command: `korvet --help` imports none of their modules.
_SUMMARIES = {
    "serve": "Start a broker: workers that serve Kafka clients, on your Redis or on an embedded one.",
    "reload": (
        "Have a broker of this machine read its configuration again and replace its workers, while it serves clients."
    ),
    "config": "Print the effective configuration with the origin of each value; passwords are masked.",
    "redis-acl": "Print a user for Redis that may do just what Korvet does, as a line of an aclfile.",
    "doctor": (
        "Examine Redis, the machine, addresses and settings of a broker that runs here, or is about to start."
    ),
    "apis": "Print the Kafka APIs that this version serves, and their versions.",
    "produce": "Write records to a topic: each line of the files, or of standard input, is one.",
    "consume": "Write the records of topics to standard output, and wait for more until Ctrl-C.",
    "topics": (
        "Create, copy, list, describe, alter and delete topics, and assign them to brokers; of any Kafka cluster."
    ),
    "configs": "Show and change configs of topics, brokers and groups; of any Kafka cluster.",
    "groups": "List, describe and delete groups, and reset committed offsets; of any Kafka cluster.",
    "quotas": "Show and change quotas of users, client ids and addresses; of any Kafka cluster.",
    "transactions": (
        "List and describe transactions, and find and abort those that hang; of any Kafka cluster."
    ),
    "users": "List, set and delete users who log in by SCRAM or PLAIN; of any Kafka cluster.",
    "acls": "List, add and remove ACLs; of any Kafka cluster with an authorizer.",
    "cluster": "Show the brokers of any Kafka cluster.",
    "features": "List and set the levels of features; of any Kafka cluster.",
    "lake": (
        "Archive topics with remote.storage.enable to Delta tables, and maintain the tables; needs korvet[lake]."
    ),
    "shell": "Take commands at a prompt, with history and completion, until exit, quit or Ctrl-D.",
}
# Modules that have another name than their command.
_MODULES = {
    "reload": "serve",
    "doctor": "serve",
    "redis-acl": "config",
    "apis": "cluster",
    "features": "cluster",
}
_COMMANDS = {
    name: (f"korvet.cli.{_MODULES.get(name, name)}", summary) for name, summary in _SUMMARIES.items()
}

COMPLETE = "_KORVET_COMPLETE"
"""The variable of the environment with which a shell asks for completions, as click names it."""

_EPILOG = """
\b
To begin:
  korvet serve                a broker; its data lies in ./korvet-data
  korvet doctor               what is wrong here, and what to change
  korvet produce orders       send lines to a topic
  korvet consume orders       print them as they arrive
  korvet COMMAND --help       what a command does, and all of its flags

\b
Settings of serve, config and doctor, later wins:
  --config FILE               TOML, as in "num.partitions" = 4
  KORVET_NUM_PARTITIONS=4     environment: the name in upper case, _ for .
  --set num.partitions=4      and flags for the common ones

\b
Signals of a broker:
  SIGTERM, SIGINT             drain and stop; a second SIGINT: at once
  SIGHUP                      korvet reload

\b
Exit codes:
  0 done, 1 failed, 2 a mistake in flags or settings, 130 Ctrl-C

\b
Completion, here for bash (or zsh_source, fish_source):
  eval "$(_KORVET_COMPLETE=bash_source korvet)"
"""


@click.group(
    cls=LazyGroup,
    modules=_COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", message="korvet %(version)s")
def korvet() -> None:
    """Korvet: a Kafka-compatible broker that keeps its log in Redis Streams."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`, by default that of this process; returns the exit code."""
    open_closed_streams()
    if COMPLETE in os.environ:
        from korvet.cli import completion  # noqa: F401, PLC0415 - registers itself; commands start without it
    return run(korvet, arguments)
