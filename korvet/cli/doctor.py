"""`korvet doctor`: tells what keeps a broker from doing well here, and what to change."""

from __future__ import annotations

import json
from pathlib import Path

import click

from korvet.cli.bootstrap import print_table
from korvet.cli.options import configuration_options, loader
from korvet.cli.run import DONE, FAILED
from korvet.config import Settings
from korvet.config.values import key_values


@click.command()
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(
    config_file: Path | None, assignments: tuple[str, ...], *, as_json: bool, **flags: str | None
) -> int:
    """Examine Redis, this machine, addresses and settings, for a broker that runs here or is to.

    Give it the flags and the environment of `korvet serve`, and run it as the same user. Every finding that is not ok
    says what to change. Exit code 1 where there is an error: what keeps the broker from starting, or loses records.
    """
    settings = loader(config_file, assignments, flags)().settings
    from korvet.server.doctor import Level, examine  # noqa: PLC0415 - other commands start without it

    findings = list(examine(settings, _lake_problem))
    if as_json:
        objects = [
            {"check": each.what, "level": each.level, "finding": each.said, "advice": each.advice}
            for each in findings
        ]
        click.echo(json.dumps(objects, indent=2))
    else:
        rows = [(each.level, each.what, each.said, each.advice) for each in findings]
        print_table(("Level", "Check", "Finding", "What to change"), rows)
    return FAILED if any(each.level is Level.ERROR for each in findings) else DONE


def _lake_problem(settings: Settings) -> str:
    from korvet.lake import probe  # noqa: PLC0415 - only where there is a lake
    from korvet.lake.tables import Lake  # noqa: PLC0415 - the same

    return probe.problem(Lake(settings.lake_path, key_values(settings.lake_storage_options) or None))
