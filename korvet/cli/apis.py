"""`korvet apis`: prints the Kafka APIs this broker serves, in which versions, from the table that dispatch uses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from korvet.cli.bootstrap import print_table

if TYPE_CHECKING:
    from korvet.handlers.handler import Handler


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> key, versions, advertised.")
@click.option("--markdown", is_flag=True, hidden=True, help="README's table.")
def apis(*, as_json: bool, markdown: bool) -> None:
    """Print the Kafka APIs that are served, and their versions."""
    from korvet.handlers import HANDLERS  # noqa: PLC0415 - imports gevent, which no other command needs

    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    if markdown:
        click.echo(markdown_table(handlers), nl=False)
    elif as_json:
        click.echo(json.dumps({_name(handler): _as_object(handler) for handler in handlers}, indent=2))
    else:
        print_table(("Key", "API", "Versions", "Flexible from"), [_cells(handler) for handler in handlers])


def markdown_table(handlers: list[Handler]) -> str:
    """Write the APIs as a Markdown table, one line each."""
    lines = ["| Key | API | Versions | Flexible from |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(_cells(handler))} |" for handler in handlers]
    return "\n".join(lines) + "\n"


def _cells(handler: Handler) -> tuple[str, str, str, str]:
    api = handler.request.api
    first, last = api.versions
    versions = f"{first}-{last}"
    if api.advertised != api.versions:
        versions += f" (advertised from {api.advertised[0]})"
    flexible = "none" if api.flexible is None else str(api.flexible)
    return str(api.key), _name(handler), versions, flexible


def _as_object(handler: Handler) -> dict[str, int | list[int] | None]:
    api = handler.request.api
    versions, advertised = list(api.versions), list(api.advertised)
    return {"key": api.key, "versions": versions, "advertised": advertised, "flexible": api.flexible}


def _name(handler: Handler) -> str:
    return handler.request.__name__.removesuffix("Request")
