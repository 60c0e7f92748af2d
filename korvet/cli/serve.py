"""`korvet serve`: runs a broker until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import click

from korvet.cli.options import configuration_options, loader


@click.command()
@configuration_options
def serve(config_file: Path | None, assignments: tuple[str, ...], **flags: str | None) -> int:
    """Start a broker: workers that serve Kafka clients, on your Redis or on an embedded one.

    SIGTERM and Ctrl-C drain and stop it; SIGHUP reads the configuration again and replaces the workers, and SIGUSR2
    does so with the version that is installed by then: see korvet reload.
    """
    load = loader(config_file, assignments, flags)
    configuration = load()
    from korvet.server import supervisor  # noqa: PLC0415 -- only this command needs the broker's modules

    return supervisor.run(configuration, reload=load)
