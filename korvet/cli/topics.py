"""`korvet topics`: makes, lists, alters and deletes topics.

Knows flags and tables; what is asked stands in `korvet.admin`. `describe` has a file of its own, and so has what moves
partitions between brokers.

`korvet topics describe`: what topics consist of, where their partitions lie, how large they are, what is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from korvet.cli import arguments as places
from korvet.cli.arguments import TOPIC
from korvet.cli.bootstrap import (
    Group,
    broker_options,
    confirmed,
    connected,
    failures_told,
    print_table,
    shown,
    yes_option,
)
from korvet.cli.kafka_client import amount
from korvet.cli.placement import elect_leaders, reassign

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.topics import PartitionDescription, TopicDescription
    from korvet.admin.types import TopicPartition

_UNKNOWN = "-"
_TITLES = ("Partition", "Leader", "Replicas", "In sync", "Begin", "End", "Size")


class _Log(NamedTuple):
    """What is in a partition; None for what cannot be told."""

    begin: int | None
    end: int | None
    size_bytes: int | None


@click.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, type=TOPIC)
@click.option("--all-topics", is_flag=True, help="Every topic that is not internal.")
@broker_options
def describe(
    bootstrap_server: str, timeout: float, names: tuple[str, ...], *, all_topics: bool, as_json: bool
) -> None:
    """Show the partitions of topics with leaders, offsets and sizes, and the settings that are not the default.

    Begin and end are offsets. The size is in bytes, as the log lies at its leader; "-" is what cannot be told.
    """
    if all_topics == bool(names):
        raise click.UsageError("name topics, or give --all-topics")
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it

    with connected(bootstrap_server, timeout) as admin:
        asked = names
        if all_topics:
            asked = tuple(each.name for each in admin.topics.list() if not each.internal)
        outcomes = {str(key): each for key, each in admin.topics.describe(dict.fromkeys(asked)).items()}
        found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
        logs = _logs(admin, found)
        configs = _configs(admin, found)
    if as_json:
        click.echo(json.dumps([_as_object(each, logs, configs[each.name]) for each in found], indent=2))
    else:
        for each in found:
            _print(each, logs, configs[each.name])
    failures_told("topic", {name: each for name, each in outcomes.items() if isinstance(each, AdminError)})


def _logs(admin: AdminClient, topics: Iterable[TopicDescription]) -> dict[TopicPartition, _Log]:
    """Return what is in each partition; raises AdminError where nothing at all can be told."""
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it
    from korvet.admin.offsets import EARLIEST, LATEST  # noqa: PLC0415 - other commands start without it
    from korvet.admin.types import TopicPartition  # noqa: PLC0415 - other commands start without it

    leaders = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in topics
        for each in topic.partitions
    }
    begins = admin.offsets.at(dict.fromkeys(leaders, EARLIEST))
    ends = admin.offsets.at(dict.fromkeys(leaders, LATEST))
    # Each broker tells its own: with all that there are, a leader that is not one of them would not fail the others.
    sizes: dict[tuple[int, TopicPartition], int] = {}
    asked = {leader for leader in leaders.values() if leader is not None}
    for broker, told in admin.partitions.log_dirs(sorted(asked), leaders).items():
        for directory in () if isinstance(told, AdminError) else told:
            for place, log in directory.partitions.items():
                if not log.future:
                    sizes[broker, place] = log.size_bytes

    def offset(found: Any) -> int | None:  # noqa: ANN401 - a LogOffset or an AdminError
        return None if isinstance(found, AdminError) else int(found.offset)

    return {
        place: _Log(
            offset(begins[place]), offset(ends[place]), None if leader is None else sizes.get((leader, place))
        )
        for place, leader in leaders.items()
    }


def _configs(
    admin: AdminClient, topics: Iterable[TopicDescription]
) -> dict[str, dict[str, str | None] | None]:
    """Return what is set for each topic itself, None where it cannot be told."""
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it
    from korvet.admin.types import ConfigSource, Resource  # noqa: PLC0415 - other commands start without it

    told = admin.configs.describe([Resource.topic(each.name) for each in topics])
    return {
        resource.name: None
        if isinstance(configs, AdminError)
        else {each.name: each.value for each in configs.values() if each.source is ConfigSource.TOPIC}
        for resource, configs in told.items()
    }


def _print(
    topic: TopicDescription,
    logs: Mapping[TopicPartition, _Log],
    configs: Mapping[str, str | None] | None,
) -> None:
    count = len(topic.partitions)
    head = f"{shown(topic.name)}: {count} partition{'s' if count != 1 else ''}"
    if topic.topic_id is not None:
        head += f", id {topic.topic_id}"
    click.echo(head)
    if configs is None:
        click.echo("  settings: -")
    for name, value in sorted((configs or {}).items()):
        click.echo(shown(f"  {name}={_UNKNOWN if value is None else value}"))
    print_table(
        _TITLES,
        [_cells(topic, each, logs) for each in topic.partitions],
        numbers=("Partition", "Begin", "End", "Size"),
    )


def _cells(
    topic: TopicDescription, partition: PartitionDescription, logs: Mapping[TopicPartition, _Log]
) -> tuple[str, ...]:
    log = _log(topic, partition, logs)
    return (
        str(partition.partition),
        _UNKNOWN if partition.leader is None else str(partition.leader),
        ",".join(map(str, partition.replicas)),
        ",".join(map(str, partition.in_sync)),
        _UNKNOWN if log.begin is None else str(log.begin),
        _UNKNOWN if log.end is None else str(log.end),
        _UNKNOWN if log.size_bytes is None else amount(log.size_bytes),
    )


def _as_object(
    topic: TopicDescription, logs: Mapping[TopicPartition, _Log], configs: Mapping[str, str | None] | None
) -> dict[str, Any]:
    def of(partition: PartitionDescription) -> dict[str, Any]:
        return {
            "partition": partition.partition,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replicas,
            "in_sync": partition.in_sync,
            "offline": partition.offline,
            **_log(topic, partition, logs)._asdict(),
        }

    return {
        "topic": topic.name,
        "id": None if topic.topic_id is None else str(topic.topic_id),
        "internal": topic.internal,
        "partitions": [of(each) for each in topic.partitions],
        "configs": configs,
    }


def _log(
    topic: TopicDescription, partition: PartitionDescription, logs: Mapping[TopicPartition, _Log]
) -> _Log:
    from korvet.admin.types import TopicPartition  # noqa: PLC0415 - other commands start without it

    return logs[TopicPartition(topic.name, partition.partition)]


if TYPE_CHECKING:
    from korvet.admin.errors import AdminError
    from korvet.admin.topics import CreatedTopic, NewTopic

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
    from korvet.admin.errors import AdminError, TopicExistsError  # noqa: PLC0415 - other commands start without it

    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.topics.create(wanted, validate_only=validate_only)
    there = [name for name, each in outcomes.items() if if_not_exists and isinstance(each, TopicExistsError)]
    failed = {
        name: each for name, each in outcomes.items() if isinstance(each, AdminError) and name not in there
    }
    done = "could be created" if validate_only else "created"
    if as_json:
        made = not validate_only
        rows = [
            _topics_as_object(name, each, made=made, there=name in there) for name, each in outcomes.items()
        ]
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
    from korvet.admin.topics import NewTopic  # noqa: PLC0415 - other commands start without it

    return [
        NewTopic(name, partitions, replication_factor, brokers, settings) for name in dict.fromkeys(names)
    ]


def _topics_as_object(
    name: str, outcome: CreatedTopic | AdminError, *, made: bool, there: bool
) -> dict[str, Any]:
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it

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
    from korvet.admin.types import Resource  # noqa: PLC0415 - other commands start without it

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
