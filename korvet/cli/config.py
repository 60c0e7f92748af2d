"""`korvet config`: prints what a broker with the same flags would use, and where each value came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from korvet.cli.bootstrap import print_table
from korvet.cli.options import configuration_options, loader
from korvet.config import Configuration, Row, Value, rows


@click.command()
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> value and origin.")
@click.option("--markdown", is_flag=True, hidden=True, help="All settings and meanings as README's table.")
def config(
    config_file: Path | None,
    assignments: tuple[str, ...],
    *,
    as_json: bool,
    markdown: bool,
    **flags: str | None,
) -> None:
    """Print the effective configuration with the origin of each value; passwords are masked."""
    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    if markdown:
        click.echo(markdown_table(rows()), nl=False)
        return
    configuration = loader(config_file, assignments, flags)()
    if as_json:
        click.echo(json.dumps(_as_object(configuration), indent=2))
    else:
        _print_table(configuration)


def markdown_table(table: Sequence[Row]) -> str:
    """Write the settings as a Markdown table, one line each."""
    lines = ["| Setting | Default | Altered by | What it is |", "| --- | --- | --- | --- |"]
    for row in table:
        choices = (
            f" One of {', '.join(f'`{choice}`' for choice in row.choices)}." if len(row.choices) > 1 else ""
        )
        default = f"`{row.shown(row.default)}`" if row.default != "" else ""
        lines.append(f"| `{row.name}` | {default} | {_altered_by(row)} | {row.about.doc}{choices} |")
    return "\n".join(lines) + "\n"


def _altered_by(row: Row) -> str:
    """Say what applies a new value of a setting: clients may alter what is dynamic, at once and without SIGHUP."""
    if row.about.dynamic:
        return "clients, SIGHUP"
    return "SIGHUP" if row.about.reload else "restart"


def _as_object(configuration: Configuration) -> dict[str, dict[str, Value]]:
    result: dict[str, dict[str, Value]] = {}
    for row in rows():
        value = row.of(configuration.settings)
        shown = row.shown(value) if isinstance(value, str) else value
        result[row.name] = {"value": shown, "origin": configuration.origins[row.name]}
    return result


def _print_table(configuration: Configuration) -> None:
    cells = [
        (row.name, row.shown(row.of(configuration.settings)), configuration.origins[row.name])
        for row in rows()
    ]
    print_table(("Setting", "Value", "Origin"), cells)
