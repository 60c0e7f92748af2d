"""`korvet quotas` shows and changes the quotas of users, client ids and addresses, named as in kafka-configs."""

from __future__ import annotations

import math
from typing import Any

import click

from korvet.admin.client import AdminClient
from korvet.admin.quotas import QuotaEntity
from korvet.admin.types import QuotaFilter
from korvet.cli.options import (
    AdminGroup,
    Command,
    add_options,
    option,
    parse_settings,
    repeated,
    validate_option,
)
from korvet.cli.output import print_outcomes, printable, printed_json
from korvet.cli.tables import print_table

_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
_NAMES = "korvet.quotas.names"
DEFAULT = "<default>"
"""What stands for a default in tables."""


def _note_names(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:  # noqa: ANN401 - as click has it
    """Note names and defaults in the order in which their flags are given; click keeps that of each flag alone."""
    names = context.meta.setdefault(_NAMES, [])
    names += [None] * value if isinstance(value, int) else value
    return value


def _entities(command: Command) -> Command:
    noted: dict[str, Any] = {"expose_value": False, "callback": _note_names}
    return add_options(
        command,
        repeated(
            f"--entity-type [{'|'.join(_TYPES)}]",
            "What the quota is for",
            click.Choice(tuple(_TYPES)),
            name="types",
        ),
        option(
            "--entity-name NAME",
            "Name of the user, client id or address; one for each --entity-type, in their order.",
            multiple=True,
            **noted,
        ),
        click.option("--entity-default", count=True, help="Its default, in place of a name.", **noted),
    )


@click.group(cls=AdminGroup)
def quotas() -> None:
    """Show and change quotas of users, client ids and addresses; of any Kafka cluster."""


@quotas.command()
@_entities
def describe(admin: AdminClient, types: tuple[str, ...]) -> None:
    """Show all quotas, or the quotas of entities with exactly these types and names."""
    filters = [
        QuotaFilter(_TYPES[kind], name, any_name)
        for kind, (name, any_name) in zip(types, _names(types, needed=False), strict=True)
    ]
    described = admin.quotas.describe(filters, strict=bool(filters))
    quotas_of = sorted(described.items(), key=lambda pair: str(pair[0]))
    if printed_json([{"entity": dict(entity), "quotas": values} for entity, values in quotas_of]):
        return
    rows = [
        (_title(entity), key, f"{value:.15g}")
        for entity, values in quotas_of
        for key, value in values.items()
    ]
    print_table(("Entity", "Quota", "Value"), rows, empty="no quotas")


@quotas.command()
@_entities
@repeated("-s, --set NAME=VALUE", "Set a quota", name="given")
@repeated("-d, --delete NAME", "Delete a quota", name="deleted")
@validate_option
def alter(
    admin: AdminClient,
    types: tuple[str, ...],
    given: tuple[str, ...],
    deleted: tuple[str, ...],
    *,
    validate_only: bool,
) -> None:
    """Change quotas of one entity: all changes or none.

    The quotas are producer_byte_rate, consumer_byte_rate, request_percentage and controller_mutation_rate of users and
    clients, and connection_creation_rate of ips.
    """
    if not types:
        raise click.UsageError("give --entity-type")
    if len(set(types)) < len(types):
        raise click.UsageError("an entity has each type once")
    names = [name for name, _ in _names(types, needed=True)]
    entity = tuple((_TYPES[kind], name) for kind, name in zip(types, names, strict=True))
    changes: dict[str, float | None] = {
        name: _number(name, text) for name, text in parse_settings("--set", given).items()
    }
    if not given and not deleted:
        raise click.UsageError("give --set or --delete")
    if changes.keys() & set(deleted):
        raise click.UsageError("a quota can be changed in one way only")
    changes |= dict.fromkeys(deleted)
    outcomes = admin.quotas.alter({entity: changes}, validate_only=validate_only)
    titled = {_title(key): error for key, error in outcomes.items()}
    done = "could be altered" if validate_only else "altered"
    print_outcomes("entity", done, titled)


def _names(types: tuple[str, ...], *, needed: bool) -> list[tuple[str | None, bool]]:
    """Return the name of each type, and whether it is any."""
    names: list[str | None] = click.get_current_context().meta[_NAMES]
    if len(names) > len(types) or (needed and len(names) < len(types)):
        raise click.UsageError("give one --entity-name or --entity-default for each --entity-type")
    return [(name, False) for name in names] + [(None, True)] * (len(types) - len(names))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise click.UsageError(f"{name}: {printable(text)} is not a number")
    return value


def _title(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else printable(name)}" for kind, name in entity)
