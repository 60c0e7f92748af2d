"""`korvet topics`: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, TopicExistsError, UnknownTopicOrPartitionError
from korvet.admin.offsets import EARLIEST, LATEST, LogOffset
from korvet.admin.topics import CreatedTopic, NewTopic, PartitionDescription, TopicDescription
from korvet.admin.types import ConfigSource, Resource, TopicPartition
from korvet.cli.options import (
    TOPIC,
    broker_options,
    connected,
    parse_brokers,
    parse_settings,
    validate_option,
    yes_option,
)
from korvet.cli.output import (
    NONE,
    cell,
    confirm,
    format_bytes,
    print_json,
    print_outcomes,
    print_table,
    printable,
    report_failures,
)
from korvet.cli.placement import elect_leaders, reassign
from korvet.cli.run import CommandGroup

_COUNT = click.IntRange(1, 2**31 - 1)
_names_argument = click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics, and assign them to brokers; of any Kafka cluster."""


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions", type=_COUNT, metavar="N", help="Number of partitions; by default the cluster's."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 2**15 - 1),
    metavar="N",
    help="Replicas of each partition; by default the cluster's.",
)
@click.option(
    "--replica-assignment",
    "assignment",
    metavar="0:1,1:0",
    help="The brokers of each partition, its preferred leader first.",
)
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A setting; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists.")
@validate_option
@broker_options
def create(
    bootstrap_server: str,
    timeout: float,
    names: tuple[str, ...],
    *,
    if_not_exists: bool,
    validate_only: bool,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the flags that `_new_topics` takes
) -> None:
    """Create topics."""
    new = _new_topics(names, **given)
    with connected(bootstrap_server, timeout) as admin:
        outcomes = admin.topics.create(new, validate_only=validate_only)
    existing = {
        name for name, each in outcomes.items() if if_not_exists and isinstance(each, TopicExistsError)
    }
    if as_json:
        print_json(
            [
                {"topic": name, "created": False, "error": None}
                if name in existing
                else _created_as_object(name, each, validate_only=validate_only)
                for name, each in outcomes.items()
            ]
        )
    else:
        done = "could be created" if validate_only else "created"
        for name in outcomes:
            if name in existing or not isinstance(outcomes[name], AdminError):
                click.echo(f"{'already exists:' if name in existing else done} {printable(name)}")
    report_failures("topic", {name: each for name, each in outcomes.items() if name not in existing})


def _new_topics(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    assignment: str | None,
    configs: tuple[str, ...],
) -> list[NewTopic]:
    brokers = None
    if assignment is not None:
        if partitions is not None or replication_factor is not None:
            raise click.UsageError("--replica-assignment excludes --partitions and --replication-factor")
        brokers = [parse_brokers("--replica-assignment", each) for each in assignment.split(",")]
    settings = parse_settings("--config", configs)
    return [
        NewTopic(name, partitions, replication_factor, brokers, settings) for name in dict.fromkeys(names)
    ]


def _created_as_object(
    name: str, outcome: CreatedTopic | AdminError, *, validate_only: bool
) -> dict[str, Any]:
    if isinstance(outcome, AdminError):
        return {"topic": name, "created": False, "error": str(outcome)}
    return {
        "topic": name,
        "created": not validate_only,
        "error": None,
        "id": None if validate_only or outcome.topic_id is None else str(outcome.topic_id),
        "partitions": outcome.partitions,
        "replication_factor": outcome.replication_factor,
    }


@topics.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@broker_options
def list_topics(bootstrap_server: str, timeout: float, *, internal: bool, as_json: bool) -> None:
    """List the topics."""
    with connected(bootstrap_server, timeout) as admin:
        found = [each for each in admin.topics.list() if internal or not each.internal]
    ids = {each.name: None if each.topic_id is None else str(each.topic_id) for each in found}
    if as_json:
        print_json(
            [
                {
                    "topic": each.name,
                    "id": ids[each.name],
                    "partitions": each.partitions,
                    "internal": each.internal,
                }
                for each in found
            ]
        )
    else:
        rows = [(each.name, str(each.partitions), cell(ids[each.name])) for each in found]
        print_table(("Topic", "Partitions", "Id"), rows, numbers=("Partitions",))


class _Contents(NamedTuple):
    """What a partition holds; None for what is not known."""

    begin: int | None
    end: int | None
    size_bytes: int | None


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, type=TOPIC)
@click.option("--all-topics", is_flag=True, help="Every topic that is not internal.")
@broker_options
def describe(
    bootstrap_server: str, timeout: float, names: tuple[str, ...], *, all_topics: bool, as_json: bool
) -> None:
    """Show the partitions of topics with leaders, offsets and sizes, and the settings that are not the default.

    Begin and end are offsets. The size is the bytes of the log at its leader. "-" stands for what is not known.
    """
    if all_topics == bool(names):
        raise click.UsageError("name topics, or give --all-topics")
    with connected(bootstrap_server, timeout) as admin:
        if all_topics:
            names = tuple(each.name for each in admin.topics.list() if not each.internal)
        outcomes = {str(key): each for key, each in admin.topics.describe(dict.fromkeys(names)).items()}
        found = [each for each in outcomes.values() if not isinstance(each, AdminError)]
        contents = _contents(admin, found)
        configs = _topic_configs(admin, found)
    if as_json:
        print_json([_as_object(each, contents, configs[each.name]) for each in found])
    else:
        for each in found:
            _print(each, contents, configs[each.name])
    report_failures("topic", outcomes)


def _contents(admin: AdminClient, topics: Iterable[TopicDescription]) -> dict[TopicPartition, _Contents]:
    leaders = {
        TopicPartition(topic.name, each.partition): each.leader
        for topic in topics
        for each in topic.partitions
    }
    begins = admin.offsets.at(dict.fromkeys(leaders, EARLIEST))
    ends = admin.offsets.at(dict.fromkeys(leaders, LATEST))
    # Only the leaders are asked. A leader that is away fails its own partitions and no others.
    sizes: dict[tuple[int | None, TopicPartition], int] = {}
    brokers = sorted({leader for leader in leaders.values() if leader is not None})
    for broker, dirs in admin.partitions.log_dirs(brokers, leaders).items():
        for log_dir in () if isinstance(dirs, AdminError) else dirs:
            for partition, log in log_dir.partitions.items():
                if not log.future:
                    sizes[broker, partition] = log.size_bytes

    def offset(outcome: LogOffset | AdminError) -> int | None:
        return None if isinstance(outcome, AdminError) else outcome.offset

    return {
        partition: _Contents(
            offset(begins[partition]), offset(ends[partition]), sizes.get((leader, partition))
        )
        for partition, leader in leaders.items()
    }


def _topic_configs(
    admin: AdminClient, topics: Iterable[TopicDescription]
) -> dict[str, dict[str, str | None] | None]:
    """Return the settings that each topic itself has, None where they are not known."""
    outcomes = admin.configs.describe([Resource.topic(each.name) for each in topics])
    return {
        resource.name: None
        if isinstance(configs, AdminError)
        else {each.name: each.value for each in configs.values() if each.source is ConfigSource.TOPIC}
        for resource, configs in outcomes.items()
    }


def _print(
    topic: TopicDescription,
    contents: Mapping[TopicPartition, _Contents],
    configs: Mapping[str, str | None] | None,
) -> None:
    count = len(topic.partitions)
    head = f"{printable(topic.name)}: {count} partition{'s' if count != 1 else ''}"
    if topic.topic_id is not None:
        head += f", id {topic.topic_id}"
    click.echo(head)
    if configs is None:
        click.echo(f"  settings: {NONE}")
    for name, value in sorted((configs or {}).items()):
        click.echo(printable(f"  {name}={cell(value)}"))

    def cells(partition: PartitionDescription) -> tuple[str, ...]:
        log = contents[TopicPartition(topic.name, partition.partition)]
        return (
            str(partition.partition),
            cell(partition.leader),
            ",".join(map(str, partition.replicas)),
            ",".join(map(str, partition.in_sync)),
            cell(log.begin),
            cell(log.end),
            NONE if log.size_bytes is None else format_bytes(log.size_bytes),
        )

    print_table(
        ("Partition", "Leader", "Replicas", "In sync", "Begin", "End", "Size"),
        [cells(each) for each in topic.partitions],
        numbers=("Partition", "Begin", "End", "Size"),
    )


def _as_object(
    topic: TopicDescription,
    contents: Mapping[TopicPartition, _Contents],
    configs: Mapping[str, str | None] | None,
) -> dict[str, Any]:
    partitions = [
        {
            "partition": each.partition,
            "leader": each.leader,
            "leader_epoch": each.leader_epoch,
            "replicas": each.replicas,
            "in_sync": each.in_sync,
            "offline": each.offline,
            **contents[TopicPartition(topic.name, each.partition)]._asdict(),
        }
        for each in topic.partitions
    ]
    return {
        "topic": topic.name,
        "id": None if topic.topic_id is None else str(topic.topic_id),
        "internal": topic.internal,
        "partitions": partitions,
        "configs": configs,
    }


@topics.command()
@_names_argument
@click.option("--partitions", type=_COUNT, metavar="N", help="New total partition count (can only grow).")
@click.option(
    "--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="Set this; may be repeated."
)
@click.option(
    "--delete-config",
    "-d",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Reset this to the default; may be repeated.",
)
@validate_option
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
    """Add partitions to topics, or change their settings.

    Existing records stay in their partitions. With more partitions, a key may map to another partition from then on.
    """
    changes: dict[str, str | None] = {**parse_settings("--config", configs), **dict.fromkeys(deleted)}
    if len(changes) < len(configs) + len(set(deleted)):
        raise click.UsageError("--config and --delete-config name the same setting")
    if partitions is None and not changes:
        raise click.UsageError("give --partitions, --config or --delete-config")
    outcomes: dict[str, AdminError | None] = dict.fromkeys(names)
    with connected(bootstrap_server, timeout) as admin:
        if changes:
            resources = {Resource.topic(name): changes for name in outcomes}
            altered = admin.configs.alter(resources, validate_only=validate_only)
            outcomes = {each.name: error for each, error in altered.items()}
        if partitions is not None:
            growing = [name for name, error in outcomes.items() if error is None]
            outcomes |= admin.topics.create_partitions(
                dict.fromkeys(growing, partitions), validate_only=validate_only
            )
    print_outcomes("topic", "could be altered" if validate_only else "altered", outcomes, as_json=as_json)


@topics.command()
@_names_argument
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
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
    """Delete topics with all their records, and the offsets that groups have committed for them."""
    wanted = list(dict.fromkeys(names))
    confirm(f"Delete {', '.join(wanted)} with all records?", "nothing is deleted", yes=yes)
    with connected(bootstrap_server, timeout) as admin:
        outcomes = {
            str(name): error
            for name, error in admin.topics.delete(wanted).items()
            if not (if_exists and isinstance(error, UnknownTopicOrPartitionError))
        }
    print_outcomes("topic", "deleted", outcomes, as_json=as_json)


topics.add_command(reassign)
topics.add_command(elect_leaders)
