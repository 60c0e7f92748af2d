"""`korvet cluster` shows the brokers of a cluster and what they support; `korvet apis` what this version serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.admin.cluster import ApiVersions, ClusterDescription, FeatureLevels
from korvet.admin.errors import AdminError
from korvet.cli.options import broker_options, connected
from korvet.cli.output import NONE, cell, print_json, print_table, printable, report_failures
from korvet.cli.run import CommandGroup

if TYPE_CHECKING:
    from korvet.handlers.registry import Handler


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the brokers of any Kafka cluster."""


@cluster.command()
@click.option(
    "--apis", "with_apis", is_flag=True, help="Show the APIs that each broker serves, with their versions."
)
@click.option(
    "--features", "with_features", is_flag=True, help="Show the cluster's features, with their levels."
)
@broker_options
def describe(
    bootstrap_server: str, timeout: float, *, with_apis: bool, with_features: bool, as_json: bool
) -> None:
    """Show the id of the cluster, its brokers and its controller, the broker that takes changes."""
    with connected(bootstrap_server, timeout) as admin:
        found = admin.cluster.describe()
        features = admin.cluster.features() if with_features else None
        answers = admin.cluster.apis() if with_apis else {}
    apis = {broker: each for broker, each in answers.items() if not isinstance(each, AdminError)}
    levels = None if features is None else (features.supported, features.finalized)
    if as_json:
        print_json(_as_object(found, apis if with_apis else None, levels))
    else:
        _print(found)
        if levels is not None:
            _print_features(*levels)
        for broker, served in apis.items():
            click.echo(f"broker {broker}")
            rows = [
                (str(each.key), each.name or NONE, f"{each.first}-{each.last}") for each in served.values()
            ]
            print_table(("Key", "API", "Versions"), rows, numbers=("Key",))
    report_failures("broker", {str(key): each for key, each in answers.items()})


def _print(found: ClusterDescription) -> None:
    click.echo(f"cluster {printable(found.cluster_id or NONE)}")
    rows = [
        (
            str(each.broker_id),
            f"{each.host}:{each.port}",
            cell(each.rack),
            "yes" if each.broker_id == found.controller else "",
        )
        for each in found.brokers
    ]
    print_table(("Broker", "Address", "Rack", "Controller"), rows, numbers=("Broker",))


def _print_features(supported: dict[str, FeatureLevels], finalized: dict[str, FeatureLevels]) -> None:
    def span(levels: FeatureLevels | None) -> str:
        return NONE if levels is None else f"{levels.first}-{levels.last}"

    names = sorted({*supported, *finalized})
    rows = [(name, span(supported.get(name)), span(finalized.get(name))) for name in names]
    print_table(("Feature", "Supported", "Finalized"), rows)


def _as_object(
    found: ClusterDescription,
    apis: dict[int, dict[int, ApiVersions]] | None,
    features: tuple[dict[str, FeatureLevels], dict[str, FeatureLevels]] | None,
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
                    for each in served.values()
                ],
            }
            for broker, served in apis.items()
        ]
    return result


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: name -> key, versions, advertised.")
@click.option("--markdown", is_flag=True, hidden=True, help="README's table.")
def apis(*, as_json: bool, markdown: bool) -> None:
    """Print the Kafka APIs that this version serves, and their versions."""
    from korvet.handlers.registry import HANDLERS  # noqa: PLC0415 - imports gevent and the broker, which `cluster` never needs

    handlers = [handler for _, handler in sorted(HANDLERS.items())]
    if markdown:
        click.echo(markdown_table(handlers), nl=False)
    elif as_json:
        print_json({_name(each): _versions(each) for each in handlers})
    else:
        print_table(("Key", "API", "Versions", "Flexible from"), [_cells(each) for each in handlers])


def markdown_table(handlers: list[Handler]) -> str:
    """Write the APIs as a Markdown table, one line each."""
    lines = ["| Key | API | Versions | Flexible from |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(_cells(each))} |" for each in handlers]
    return "\n".join(lines) + "\n"


def _cells(handler: Handler) -> tuple[str, str, str, str]:
    api = handler.request.api
    first, last = api.versions
    versions = f"{first}-{last}"
    if api.advertised != api.versions:
        versions += f" (advertised from {api.advertised[0]})"
    flexible = "none" if api.flexible is None else str(api.flexible)
    return str(api.key), _name(handler), versions, flexible


def _versions(handler: Handler) -> dict[str, int | list[int] | None]:
    api = handler.request.api
    versions, advertised = list(api.versions), list(api.advertised)
    return {"key": api.key, "versions": versions, "advertised": advertised, "flexible": api.flexible}


def _name(handler: Handler) -> str:
    return handler.request.__name__.removesuffix("Request")
