"""The entry of the `korvet` command: the tree of all commands, each of which has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence

import click

from korvet import __version__
from korvet.cli.bootstrap import Group
from korvet.cli.cluster import apis, cluster
from korvet.cli.config import config
from korvet.cli.configs import configs
from korvet.cli.consume import consume
from korvet.cli.groups import groups
from korvet.cli.lake import lake
from korvet.cli.produce import produce
from korvet.cli.run import run
from korvet.cli.serve import doctor, reload, serve
from korvet.cli.shell import shell
from korvet.cli.topics import topics
from korvet.logs import open_closed

# What every command has in common: with the help of each, whoever is at a terminal needs nothing else.
_EPILOG = """
\b
To begin:
  korvet serve                a broker; its data lies in ./korvet-data
  korvet doctor               what is wrong here, and what to change
  korvet produce orders       send lines to a topic
  korvet consume orders       see them come
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
    cls=Group,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", message="korvet %(version)s")
def korvet() -> None:
    """Korvet: a Kafka-compatible broker that keeps its log in Redis Streams."""


for each in (
    serve,
    reload,
    config,
    doctor,
    apis,
    produce,
    consume,
    topics,
    configs,
    groups,
    cluster,
    lake,
    shell,
):
    korvet.add_command(each)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`, by default the process's own; returns the exit code."""
    open_closed()
    return run(korvet, arguments)
