"""`korvet configs` shows and changes the configs of topics, brokers and groups, and of all brokers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from korvet.admin.client import AdminClient
from korvet.admin.configs import Append, Change, Config, Delete, Set, Subtract
from korvet.admin.errors import AdminError
from korvet.admin.types import Resource
from korvet.cli.options import (
    BROKER,
    GROUP,
    TOPIC,
    Command,
    add_options,
    parse_settings,
    repeated_option,
    with_admin,
)
from korvet.cli.output import (
    NONE,
    cell,
    print_json,
    print_outcomes,
    print_table,
    printable,
    report_failures,
)
from korvet.cli.run import CommandGroup


def _resources(command: Command) -> Command:
    """Give a command the flags that `_named` reads."""
    return add_options(
        command,
        click.option("--topic", "-t", "topics", multiple=True, type=TOPIC, metavar="NAME", help="A topic."),
        click.option("--broker", "brokers", multiple=True, type=BROKER, metavar="ID", help="A broker."),
        click.option("--group", "-g", "groups", multiple=True, type=GROUP, metavar="NAME", help="A group."),
        click.option("--cluster", "all_brokers", is_flag=True, help="The default of all brokers."),
    )


@click.group(cls=CommandGroup)
def configs() -> None:
    """Show and change configs of topics, brokers and groups; of any Kafka cluster."""


@configs.command()
@_resources
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@repeated_option("--name", "names", metavar="NAME", text="Only this config")
@click.option("--documentation", is_flag=True, help="Show what each is for.")
@with_admin
def describe(
    admin: AdminClient,
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
    outcomes = admin.configs.describe(
        _named(whose), names=names or None, synonyms=as_json, documentation=documentation
    )
    found = {
        resource: [each for each in configs.values() if everything or names or not each.is_default]
        for resource, configs in outcomes.items()
        if not isinstance(configs, AdminError)
    }
    if as_json:
        rows = [
            {**_who(_title(resource)), "configs": [_as_object(each) for each in some]}
            for resource, some in found.items()
        ]
        print_json(rows)
    else:
        for resource, some in found.items():
            click.echo(printable(_title(resource)))
            _print(some, documentation=documentation)
    report_failures("", {_title(key): each for key, each in outcomes.items()})


@configs.command()
@_resources
@repeated_option("--set", "-s", "given", metavar="NAME=VALUE", text="Set a config")
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
@with_admin
def alter(
    admin: AdminClient,
    *,
    validate_only: bool,
    as_json: bool,
    **flags: Any,  # noqa: ANN401 - those that `_named` and `_changes` take, by name
) -> None:
    """Change configs of each topic, broker or group: all changes or none."""
    changes = dict.fromkeys(_named(flags), _changes(flags))
    outcomes = admin.configs.alter(changes, validate_only=validate_only)
    done = "could be altered" if validate_only else "altered"
    titled = {_title(key): error for key, error in outcomes.items()}
    print_outcomes("", done, titled, as_json=as_json, as_object=_who)


def _named(whose: Mapping[str, Any]) -> list[Resource]:
    wanted = [Resource.topic(each) for each in whose["topics"]]
    wanted += [Resource.broker(each) for each in whose["brokers"]]
    wanted += [Resource.group(each) for each in whose["groups"]]
    wanted += [Resource.cluster()] if whose["all_brokers"] else []
    if not wanted:
        raise click.UsageError("give --topic, --broker, --group or --cluster")
    return list(dict.fromkeys(wanted))


def _changes(flags: Mapping[str, Any]) -> dict[str, Change]:
    several: list[tuple[str, Change]] = []
    several += [(name, Set(value)) for name, value in parse_settings("--set", flags["given"]).items()]
    several += [(name, Delete()) for name in dict.fromkeys(flags["deleted"])]
    for flag, kind, texts in (("--append", Append, "appended"), ("--subtract", Subtract, "subtracted")):
        several += [(name, kind(value)) for name, value in parse_settings(flag, flags[texts]).items()]
    changes = dict(several)
    if not changes:
        raise click.UsageError("give --set, --delete, --append or --subtract")
    if len(changes) < len(several):
        raise click.UsageError("a config can be changed in one way only")
    return changes


def _who(title: str) -> dict[str, str]:
    kind, _, name = title.partition(" ")
    return {"type": kind, "name": name}


def _title(resource: Resource) -> str:
    return "cluster" if resource == Resource.cluster() else str(resource)


def _print(found: list[Config], *, documentation: bool) -> None:
    titles = ("Config", "Value", "Source") + (("What it is",) if documentation else ())
    cells = [
        (
            each.name,
            cell(each.value),
            each.source.name.lower() + (", read-only" if each.read_only else ""),
            *((each.documentation or NONE,) if documentation else ()),
        )
        for each in sorted(found, key=lambda each: each.name)
    ]
    print_table(titles, cells, empty="no configs but defaults")


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
