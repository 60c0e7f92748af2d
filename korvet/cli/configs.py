"""`korvet configs` shows and changes the configs of topics, brokers and groups, and of all brokers together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from korvet.admin.configs import Append, Change, Config, Delete, Set, Subtract
from korvet.admin.errors import AdminError
from korvet.admin.types import Resource
from korvet.cli.options import GROUP, TOPIC, broker_options, connected, parse_settings
from korvet.cli.output import print_table, printable, report_failures
from korvet.cli.run import CommandGroup

_Command = TypeVar("_Command", bound=Callable[..., object])
_BROKER = click.IntRange(0, 2**31 - 1)
_UNKNOWN = "-"


def _resources(command: _Command) -> _Command:
    """Give a command the flags that `_named` reads."""
    for option in (
        click.option("--cluster", is_flag=True, help="The default of all brokers."),
        click.option("--group", "-g", "groups", multiple=True, type=GROUP, metavar="NAME", help="A group."),
        click.option("--broker", "brokers", multiple=True, type=_BROKER, metavar="ID", help="A broker."),
        click.option("--topic", "-t", "topics", multiple=True, type=TOPIC, metavar="NAME", help="A topic."),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup)
def configs() -> None:
    """Show and change configs of topics, brokers and groups; of any Kafka cluster."""


@configs.command()
@_resources
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this config; may be repeated.")
@click.option("--documentation", is_flag=True, help="Show what each is for.")
@broker_options
def describe(
    bootstrap_server: str,
    timeout: float,
    names: tuple[str, ...],
    *,
    everything: bool,
    documentation: bool,
    as_json: bool,
    **whose: Any,  # noqa: ANN401 - one of each kind, by name
) -> None:
    """Show the configs that are not the default, and where each is set: on the topic, the broker, the cluster.

    Topics, brokers and groups may be repeated and mixed. A sensitive value is shown as "-".
    """
    wanted = _named(whose)
    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.configs.describe(
            wanted, names=names or None, synonyms=as_json, documentation=documentation
        )
    found = {
        resource: [each for each in configs.values() if everything or names or not each.is_default]
        for resource, configs in outcomes.items()
        if not isinstance(configs, AdminError)
    }
    if as_json:
        rows = [
            {**_who(resource), "configs": [_as_object(each) for each in some]}
            for resource, some in found.items()
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for resource, some in found.items():
            click.echo(printable(_title(resource)))
            _print(some, documentation=documentation)
    report_failures("", {_title(key): each for key, each in outcomes.items() if isinstance(each, AdminError)})


@configs.command()
@_resources
@click.option(
    "--set", "-s", "given", multiple=True, metavar="NAME=VALUE", help="Set a config; may be repeated."
)
@click.option(
    "--delete",
    "-d",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Delete a config, so that its default applies.",
)
@click.option("--append", "appended", multiple=True, metavar="NAME=VALUE", help="Add values to a list.")
@click.option(
    "--subtract", "subtracted", multiple=True, metavar="NAME=VALUE", help="Remove values from a list."
)
@click.option("--validate-only", is_flag=True, help="Only check the changes.")
@broker_options
def alter(  # noqa: PLR0913 - click gives each flag by its name
    bootstrap_server: str,
    timeout: float,
    given: tuple[str, ...],
    deleted: tuple[str, ...],
    appended: tuple[str, ...],
    subtracted: tuple[str, ...],
    *,
    validate_only: bool,
    as_json: bool,
    **whose: Any,  # noqa: ANN401 - one of each kind, by name
) -> None:
    """Change configs of each topic, broker or group: all changes or none."""
    wanted = _named(whose)
    changes = _changes(given, deleted, appended, subtracted)
    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.configs.alter(dict.fromkeys(wanted, changes), validate_only=validate_only)
    if as_json:
        rows = [
            {**_who(key), "error": None if error is None else str(error)} for key, error in outcomes.items()
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        done = "could be altered" if validate_only else "altered"
        for key, error in outcomes.items():
            if error is None:
                click.echo(printable(f"{done} {_title(key)}"))
    report_failures("", {_title(key): error for key, error in outcomes.items() if error is not None})


def _named(whose: Mapping[str, Any]) -> list[Resource]:
    wanted = [Resource.topic(each) for each in whose["topics"]]
    wanted += [Resource.broker(each) for each in whose["brokers"]]
    wanted += [Resource.group(each) for each in whose["groups"]]
    wanted += [Resource.cluster()] if whose["cluster"] else []
    if not wanted:
        raise click.UsageError("give --topic, --broker, --group or --cluster")
    return list(dict.fromkeys(wanted))


def _changes(
    given: tuple[str, ...], deleted: tuple[str, ...], appended: tuple[str, ...], subtracted: tuple[str, ...]
) -> dict[str, Change]:
    several: list[tuple[str, Change]] = []
    several += [(name, Set(value)) for name, value in parse_settings("--set", given).items()]
    several += [(name, Delete()) for name in dict.fromkeys(deleted)]
    several += [(name, Append(value)) for name, value in parse_settings("--append", appended).items()]
    several += [(name, Subtract(value)) for name, value in parse_settings("--subtract", subtracted).items()]
    changes = dict(several)
    if not changes:
        raise click.UsageError("give --set, --delete, --append or --subtract")
    if len(changes) < len(several):
        raise click.UsageError("a config can be changed in one way only")
    return changes


def _who(resource: Resource) -> dict[str, str]:
    kind, _, name = _title(resource).partition(" ")
    return {"type": kind, "name": name}


def _title(resource: Resource) -> str:
    return "cluster" if resource == Resource.cluster() else str(resource)


def _print(found: list[Config], *, documentation: bool) -> None:
    titles = ("Config", "Value", "Source") + (("What it is",) if documentation else ())
    cells = [
        (
            each.name,
            _UNKNOWN if each.value is None else each.value,
            each.source.name.lower() + (", read-only" if each.read_only else ""),
            *((each.documentation or _UNKNOWN,) if documentation else ()),
        )
        for each in sorted(found, key=lambda each: each.name)
    ]
    print_table(titles, cells)


def _as_object(config: Config) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": config.source.name.lower(),
        "default": config.is_default,
        "read_only": config.read_only,
        "sensitive": config.sensitive,
        "type": config.type.name.lower(),
        "documentation": config.documentation,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": each.source.name.lower()}
            for each in config.synonyms
        ],
    }
