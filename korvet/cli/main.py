"""The entry of the `korvet` command: the tree of all commands, each of which has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence

import click

from korvet import __version__
from korvet.cli.apis import apis
from korvet.cli.cluster import cluster
from korvet.cli.config import config
from korvet.cli.configs import configs
from korvet.cli.consume import consume
from korvet.cli.doctor import doctor
from korvet.cli.group import Group
from korvet.cli.groups import groups
from korvet.cli.lake import lake
from korvet.cli.produce import produce
from korvet.cli.reload import reload
from korvet.cli.run import run
from korvet.cli.serve import serve
from korvet.cli.shell import shell
from korvet.cli.topics import topics
from korvet.streams import open_closed


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", message="korvet %(version)s")
def korvet() -> None:
    """Korvet: a Kafka-compatible broker that keeps its log in Redis Streams."""


for each in (serve, reload, config, doctor, apis, produce, consume, topics, configs, groups, cluster, lake, shell):
    korvet.add_command(each)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`, by default the process's own; returns the exit code."""
    open_closed()
    return run(korvet, arguments)
