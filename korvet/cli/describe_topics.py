"""`korvet topics describe`: what topics consist of, where their partitions lie, how large they are, what is set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from korvet.cli.bootstrap import broker_options, connected, failures_told, print_table, shown
from korvet.cli.names import TOPIC
from korvet.cli.progress import amount

if TYPE_CHECKING:
    from korvet.admin import AdminClient, PartitionDescription, TopicDescription, TopicPartition

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
    from korvet.admin import AdminError  # noqa: PLC0415 - other commands start without it

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
    from korvet.admin import EARLIEST, LATEST, AdminError, TopicPartition  # noqa: PLC0415 - other commands start without it

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
    from korvet.admin import AdminError, ConfigSource, Resource  # noqa: PLC0415 - other commands start without it

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
    from korvet.admin import TopicPartition  # noqa: PLC0415 - other commands start without it

    return logs[TopicPartition(topic.name, partition.partition)]
