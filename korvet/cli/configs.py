"""`korvet configs` shows and changes the configs of topics, brokers and groups, and of all brokers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from korvet.admin.client import AdminClient
from korvet.admin.configs import Append, Change, Config, Delete, Set, Subtract
from korvet.admin.types import Resource
from korvet.cli.options import (
    BROKER,
    GROUP,
    TOPIC,
    AdminGroup,
    Command,
    add_options,
    option,
    parse_settings,
    repeated,
    without_errors,
)
from korvet.cli.output import json_wanted, print_outcomes, printable, printed_json, report_failures
from korvet.cli.tables import Column, as_objects, hidden, tabulate

_SYNONYM = (*hidden("name", "value"), Column("source", lambda synonym: synonym.source.name.lower()))
_CONFIG = (
    Column("name", title="Config"),
    Column("value"),
    Column("source", lambda config: config.source.name.lower()),
    Column("default", "is_default", title=None),
    *hidden("read_only", "sensitive"),
    Column("type", lambda config: config.type.name.lower(), title=None),
    Column("documentation", title="What it is", text=lambda text: text or None),
    Column("synonyms", lambda config: as_objects(config.synonyms, _SYNONYM), title=None),
)


def _resources(command: Command) -> Command:
    """Give a command the flags that `_named` reads."""
    return add_options(
        command,
        option("-t, --topic NAME", "A topic.", TOPIC, name="topics", multiple=True),
        option("--broker ID", "A broker.", BROKER, name="brokers", multiple=True),
        option("-g, --group NAME", "A group.", GROUP, name="groups", multiple=True),
        option("--cluster", "The default of all brokers.", name="all_brokers"),
    )


@click.group(cls=AdminGroup)
def configs() -> None:
    """Show and change configs of topics, brokers and groups; of any Kafka cluster."""


@configs.command()
@_resources
@option("--all", "Include defaults.", name="everything")
@repeated("--name NAME", "Only this config", name="names")
@option("--documentation", "Show what each is for.")
def describe(
    admin: AdminClient,
    names: tuple[str, ...],
    *,
    everything: bool,
    documentation: bool,
    **whose: Any,  # noqa: ANN401 - one of each kind, by name
) -> None:
    """Show the configs that are not the default, and where each is set: on the topic, the broker, the cluster.

    Topics, brokers and groups may be repeated and mixed. A sensitive value is shown as "-".
    """
    outcomes = admin.configs.describe(
        _named(whose), names=names or None, synonyms=json_wanted(), documentation=documentation
    )
    described = {
        resource: [config for config in configs.values() if everything or names or not config.is_default]
        for resource, configs in without_errors(outcomes).items()
    }
    if not printed_json(
        [
            {**_who(_title(resource)), "configs": as_objects(configs, _CONFIG)}
            for resource, configs in described.items()
        ]
    ):
        for resource, configs in described.items():
            click.echo(printable(_title(resource)))
            _print(configs, documentation=documentation)
    report_failures("", {_title(resource): outcome for resource, outcome in outcomes.items()})


@configs.command()
@_resources
@repeated("-s, --set NAME=VALUE", "Set a config", name="given")
@option("-d, --delete NAME", "Delete a config, so that its default applies.", name="deleted", multiple=True)
@option("--append NAME=VALUE", "Add values to a list.", name="appended", multiple=True)
@option("--subtract NAME=VALUE", "Remove values from a list.", name="subtracted", multiple=True)
@option("--validate-only", "Only check the changes.")
def alter(
    admin: AdminClient,
    *,
    validate_only: bool,
    **flags: Any,  # noqa: ANN401 - those that `_named` and `_changes` take, by name
) -> None:
    """Change configs of each topic, broker or group: all changes or none."""
    changes = dict.fromkeys(_named(flags), _changes(flags))
    outcomes = admin.configs.alter(changes, validate_only=validate_only)
    done = "could be altered" if validate_only else "altered"
    titled = {_title(resource): error for resource, error in outcomes.items()}
    print_outcomes("", done, titled, map(_who, titled))


def _named(whose: Mapping[str, Any]) -> list[Resource]:
    wanted = [
        *map(Resource.topic, whose["topics"]),
        *map(Resource.broker, whose["brokers"]),
        *map(Resource.group, whose["groups"]),
        *([Resource.cluster()] if whose["all_brokers"] else []),
    ]
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


def _title(resource: Resource) -> str:
    return "cluster" if resource == Resource.cluster() else str(resource)


def _who(title: str) -> dict[str, str]:
    kind, _, name = title.partition(" ")
    return {"type": kind, "name": name}


def _print(configs: list[Config], *, documentation: bool) -> None:
    rows = [
        msgspec.structs.asdict(config)
        | {"source": config.source.name.lower() + (", read-only" if config.read_only else "")}
        for config in sorted(configs, key=lambda config: config.name)
    ]
    shown = ("name", "value", "source", *(("documentation",) if documentation else ()))
    tabulate(rows, _CONFIG, empty="no configs but defaults", shown=shown)
