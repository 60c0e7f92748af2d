"""`korvet cluster`: shows who the brokers are, and what they speak.

`korvet apis`: prints the Kafka APIs this broker serves, in which versions, from the table that dispatch uses.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.bootstrap import Group, broker_options, connected, failures_told, print_table, shown

if TYPE_CHECKING:
    from korvet.admin.cluster import ApiVersions, ClusterDescription, Levels

_UNKNOWN = "-"


@click.group(cls=Group)
def cluster() -> None:
    """Show the brokers of any Kafka cluster."""


@cluster.command()
@click.option(
    "--apis", "with_apis", is_flag=True, help="The APIs that each broker serves, with their versions."
)
@click.option("--features", "with_features", is_flag=True, help="The cluster's features, with their levels.")
@broker_options
def describe(
    bootstrap_server: str, timeout: float, *, with_apis: bool, with_features: bool, as_json: bool
) -> None:
    """Show the id of the cluster, its brokers, and which of them is the controller: who takes changes."""
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it

    with connected(bootstrap_server, timeout) as admin:
        found = admin.cluster.describe()
        features = admin.cluster.features() if with_features else None
        served = admin.cluster.apis() if with_apis else {}
    apis = {broker: told for broker, told in served.items() if not isinstance(told, AdminError)}
    levels = None if features is None else (features.supported, features.finalized)
    if as_json:
        click.echo(json.dumps(_as_object(found, apis if with_apis else None, levels), indent=2))
    else:
        _print(found)
        if levels is not None:
            _print_features(*levels)
        for broker, told in apis.items():
            click.echo(f"broker {broker}")
            cells = [
                (str(each.key), each.name or _UNKNOWN, f"{each.first}-{each.last}") for each in told.values()
            ]
            print_table(("Key", "API", "Versions"), cells, numbers=("Key",))
    failures_told("broker", {str(key): told for key, told in served.items() if isinstance(told, AdminError)})


def _print(found: ClusterDescription) -> None:
    click.echo(f"cluster {shown(found.cluster_id or _UNKNOWN)}")
    cells = [
        (
            str(each.broker_id),
            f"{each.host}:{each.port}",
            each.rack or _UNKNOWN,
            "yes" if each.broker_id == found.controller else "",
        )
        for each in found.brokers
    ]
    print_table(("Broker", "Address", "Rack", "Controller"), cells, numbers=("Broker",))


def _print_features(supported: dict[str, Levels], finalized: dict[str, Levels]) -> None:
    def span(levels: Levels | None) -> str:
        return _UNKNOWN if levels is None else f"{levels.first}-{levels.last}"

    names = sorted({*supported, *finalized})
    cells = [(name, span(supported.get(name)), span(finalized.get(name))) for name in names]
    print_table(("Feature", "Supported", "Finalized"), cells)


def _as_object(
    found: ClusterDescription,
    apis: dict[int, dict[int, ApiVersions]] | None,
    features: tuple[dict[str, Levels], dict[str, Levels]] | None,
) -> dict[str, Any]:
    brokers = [
        {"id": each.broker_id, "host": each.host, "port": each.port, "rack": each.rack}
        for each in found.brokers
    ]
    result: dict[str, Any] = {"id": found.cluster_id, "controller": found.controller, "brokers": brokers}
    if features is not None:
        supported, finalized = (
            {name: [each.first, each.last] for name, each in some.items()} for some in features
        )
        result["features"] = {"supported": supported, "finalized": finalized}
    if apis is not None:
        result["apis"] = [
            {
                "broker": broker,
                "apis": [
                    {"key": each.key, "name": each.name, "versions": [each.first, each.last]}
                    for each in told.values()
                ],
            }
            for broker, told in apis.items()
        ]
    return result


if TYPE_CHECKING:
    from korvet.handlers.registry import Handler


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> key, versions, advertised.")
@click.option("--markdown", is_flag=True, hidden=True, help="README's table.")
def apis(*, as_json: bool, markdown: bool) -> None:
    """Print the Kafka APIs that are served, and their versions."""
    from korvet.handlers.registry import HANDLERS  # noqa: PLC0415 - imports gevent, which no other command needs

    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    if markdown:
        click.echo(markdown_table(handlers), nl=False)
    elif as_json:
        click.echo(json.dumps({_name(handler): _apis_as_object(handler) for handler in handlers}, indent=2))
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


def _apis_as_object(handler: Handler) -> dict[str, int | list[int] | None]:
    api = handler.request.api
    versions, advertised = list(api.versions), list(api.advertised)
    return {"key": api.key, "versions": versions, "advertised": advertised, "flexible": api.flexible}


def _name(handler: Handler) -> str:
    return handler.request.__name__.removesuffix("Request")
