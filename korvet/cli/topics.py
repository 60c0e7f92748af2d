"""`korvet topics`: makes, lists, alters and deletes topics.

Knows flags and tables; what is asked stands in `korvet.admin`. `describe` has a file of its own, and so has what moves
partitions between brokers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from korvet.cli import places
from korvet.cli.bootstrap import (
    broker_options,
    confirmed,
    connected,
    failures_told,
    print_table,
    shown,
    yes_option,
)
from korvet.cli.describe_topics import describe
from korvet.cli.group import Group
from korvet.cli.names import TOPIC
from korvet.cli.placement import elect_leaders, reassign

if TYPE_CHECKING:
    from korvet.admin import AdminError, CreatedTopic, NewTopic

_UNKNOWN = "-"
_COUNT = click.IntRange(1, 2**31 - 1)
_named = click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
_validated = click.option("--validate-only", is_flag=True, help="Only tell whether it could be done.")


@click.group(cls=Group)
def topics() -> None:
    """Make, list, describe, alter and delete topics, and place them on brokers; of any Kafka cluster."""


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partitions", type=_COUNT, metavar="N", help="How many; by default what the cluster says.")
@click.option(
    "--replication-factor", type=click.IntRange(1, 2**15 - 1), metavar="N", help="The same for replicas."
)
@click.option(
    "--replica-assignment",
    "assignment",
    metavar="0:1,1:0",
    help="For each partition the brokers that it is to lie on, the preferred leader first.",
)
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A setting; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no failure.")
@_validated
@broker_options
def create(
    bootstrap_server: str,
    timeout: float,
    names: tuple[str, ...],
    *,
    if_not_exists: bool,
    validate_only: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - of many kinds, told apart by name
) -> None:
    """Make topics."""
    wanted = _new_topics(names, **given)
    from korvet.admin import AdminError  # noqa: PLC0415 - other commands start without it
    from korvet.admin.errors import TopicExistsError  # noqa: PLC0415 - the same

    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.topics.create(wanted, validate_only=validate_only)
    there = [name for name, each in outcomes.items() if if_not_exists and isinstance(each, TopicExistsError)]
    failed = {
        name: each for name, each in outcomes.items() if isinstance(each, AdminError) and name not in there
    }
    done = "could be created" if validate_only else "created"
    if as_json:
        made = not validate_only
        rows = [_as_object(name, each, made=made, there=name in there) for name, each in outcomes.items()]
        click.echo(json.dumps(rows, indent=2))
    else:
        for name in outcomes:
            if name not in failed:
                click.echo(f"{'there already:' if name in there else done} {shown(name)}")
    failures_told("topic", failed)


def _new_topics(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    assignment: str | None,
    configs: tuple[str, ...],
) -> list[NewTopic]:
    if assignment is not None and (partitions is not None or replication_factor is not None):
        raise click.UsageError("--replica-assignment says how many there are: give no number besides")
    brokers = None
    if assignment is not None:
        brokers = [places.numbers("--replica-assignment", each) for each in assignment.split(",")]
    settings = places.settings("--config", configs)
    from korvet.admin import NewTopic  # noqa: PLC0415 - other commands start without it

    return [
        NewTopic(name, partitions, replication_factor, brokers, settings) for name in dict.fromkeys(names)
    ]


def _as_object(name: str, outcome: CreatedTopic | AdminError, *, made: bool, there: bool) -> dict[str, Any]:
    from korvet.admin import AdminError  # noqa: PLC0415 - other commands start without it

    row: dict[str, Any] = {"topic": name, "created": False, "error": None}
    if there:
        return row
    if isinstance(outcome, AdminError):
        return row | {"error": str(outcome)}
    return row | {
        "created": made,
        "id": str(outcome.topic_id) if made and outcome.topic_id is not None else None,
        "partitions": outcome.partitions,
        "replication_factor": outcome.replication_factor,
    }


@topics.command("list")
@click.option("--internal", is_flag=True, help="Those too that the cluster keeps for itself.")
@broker_options
def list_topics(bootstrap_server: str, timeout: float, *, internal: bool, as_json: bool) -> None:
    """List the topics."""
    with connected(bootstrap_server, timeout) as admin:
        found = [each for each in admin.topics.list() if internal or not each.internal]
    if as_json:
        rows = [
            {
                "topic": each.name,
                "id": None if each.topic_id is None else str(each.topic_id),
                "partitions": each.partitions,
                "internal": each.internal,
            }
            for each in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    cells = [
        (each.name, str(each.partitions), _UNKNOWN if each.topic_id is None else str(each.topic_id))
        for each in found
    ]
    print_table(("Topic", "Partitions", "Id"), cells, numbers=("Partitions",))


topics.add_command(describe)


@topics.command()
@_named
@click.option("--partitions", type=_COUNT, metavar="N", help="So many in all; they can only become more.")
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="Set this; may be repeated."
)
@click.option(
    "--delete-config",
    "-d",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Go back to the default; may be repeated.",
)
@_validated
@broker_options
def alter(  # noqa: PLR0913 - click gives each flag by its name
    bootstrap_server: str,
    timeout: float,
    names: tuple[str, ...],
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    *,
    validate_only: bool,
    as_json: bool,
) -> None:
    """Give topics more partitions, or other settings.

    Records stay where they are: with more partitions, the same keys go to other ones from then on.
    """
    changes: dict[str, str | None] = {**places.settings("--config", configs), **dict.fromkeys(deleted)}
    if len(changes) < len(configs) + len(set(deleted)):
        raise click.UsageError("--config and --delete-config name the same setting")
    if partitions is None and not changes:
        raise click.UsageError("give --partitions, --config or --delete-config")
    from korvet.admin import Resource  # noqa: PLC0415 - other commands start without it

    wanted = list(dict.fromkeys(names))
    outcomes: dict[str, AdminError | None] = dict.fromkeys(wanted)
    with connected(bootstrap_server, timeout) as admin:
        if changes:
            resources = {Resource.topic(name): changes for name in wanted}
            altered = admin.configs.alter(resources, validate_only=validate_only)
            outcomes = {each.name: error for each, error in altered.items()}
        if partitions is not None:
            growing = [name for name, error in outcomes.items() if error is None]
            outcomes |= admin.topics.create_partitions(
                dict.fromkeys(growing, partitions), validate_only=validate_only
            )
    _tell("could be altered" if validate_only else "altered", outcomes, as_json=as_json)


@topics.command()
@_named
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no failure.")
@yes_option
@broker_options
def delete(
    bootstrap_server: str,
    timeout: float,
    names: tuple[str, ...],
    *,
    if_exists: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete topics with all their records, and what groups have committed of them."""
    wanted = list(dict.fromkeys(names))
    confirmed(f"Delete {', '.join(wanted)} with all records?", "nothing is deleted", yes=yes)
    from korvet.admin.errors import UnknownTopicOrPartitionError  # noqa: PLC0415 - other commands start without it

    with connected(bootstrap_server, timeout) as admin:
        outcomes = dict(admin.topics.delete(wanted))
    if if_exists:
        missing = [
            name for name, error in outcomes.items() if isinstance(error, UnknownTopicOrPartitionError)
        ]
        for name in missing:
            del outcomes[name]
    _tell("deleted", {str(name): error for name, error in outcomes.items()}, as_json=as_json)


topics.add_command(reassign)
topics.add_command(elect_leaders)


def _tell(done: str, outcomes: Mapping[str, AdminError | None], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"topic": name, "error": None if error is None else str(error)}
            for name, error in outcomes.items()
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for name, error in outcomes.items():
            if error is None:
                click.echo(f"{done} {shown(name)}")
    failures_told("topic", {name: error for name, error in outcomes.items() if error is not None})
